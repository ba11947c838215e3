//! Explanations on stderr: what went wrong, where, and what to do. Each kind of mistake is explained
//! once.
//!
//! - `watch`: what happens to queue pairs, from the engine's events and their times.
//! - `connect`: failures of connecting by address and port.
//! - `text`: the texts about queue pairs. It has no state and does not use the time.
//! - `regions`: the memory regions that texts name.
//! - `later`: looks after a while, for programs that sleep.
//! - `limits`: limits that a program finds by trying.
//! - `wanted`: names of devices that are not in the list.
//! - `once`: verbs that fail, and the rule to explain only once.

mod connect;
mod later;
pub(crate) mod limits;
mod once;
mod regions;
mod text;
mod wanted;
mod watch;

pub(crate) use connect::{connecting, silent};
pub(crate) use later::Later;
pub(crate) use once::{fills, once, refused, unsent};
pub(crate) use wanted::{Instead, unknown_devices};
pub(crate) use watch::{NewQp, Watch};

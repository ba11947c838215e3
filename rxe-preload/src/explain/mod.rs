//! Explanations on stderr: what went wrong, where, and what to do.
//! Each kind of mistake is explained once.
//!
//! - `watch`: problems of queue pairs, found from the engine's events and their times.
//! - `connect`: failures to connect by address and port.
//! - `text`: the texts about queue pairs. They depend on no state and no time.
//! - `regions`: the memory regions that the texts name.
//! - `later`: checks that run after a delay, while the program's threads sleep.
//! - `limits`: device limits that a program finds by trial.
//! - `wanted`: device names that are not in the device list.
//! - `once`: verbs that fail, and the rule to explain each kind only once.

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

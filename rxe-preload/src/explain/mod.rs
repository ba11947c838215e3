//! What a person is told on stderr: what went wrong, where, and what to do, once per kind of mistake.
//!
//! - `watch`: what becomes of queue pairs, from the engine's events and with the time they last.
//! - `connect`: how connecting by address and port ends.
//! - `text`: the words for what becomes of queue pairs. It has no state and knows no time.
//! - `regions`: the memory regions that texts name.
//! - `once`: verbs that are refused, and the rule of saying things once.

mod connect;
mod once;
mod regions;
mod text;
mod watch;

pub(crate) use connect::{connecting, silent};
pub(crate) use once::{fills, once, refused, unsent};
pub(crate) use watch::{NewQp, Watch};

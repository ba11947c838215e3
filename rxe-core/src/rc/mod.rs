//! Reliable connection. IBTA 9.7.
//!
//! The requester's side:
//! - `inflight`: the requests from first PSN to completion; the only module that knows which packet is
//!   next and which is the oldest unacknowledged,
//! - `requester`: starts requests (fence, READ limit) and sends their packets,
//! - `completer`: handles the peer's responses,
//! - `controller`: the contract with the part that decides how much is sent and when it is sent again,
//! - `recovery`: that part: timers, retry counts and the window; `window` and `rtt`, the round-trip
//!   time, are its parts.
//!
//! The responder's side:
//! - `responder`: checks requests in order and executes those that pass,
//! - `errors`: the consequences of a failed check,
//! - `response`: responses that wait to be sent; `replay`: what is kept to answer duplicates.

mod completer;
#[cfg(test)]
mod congestion_tests;
mod controller;
mod errors;
#[cfg(test)]
mod extension_tests;
mod inflight;
mod recovery;
mod replay;
mod requester;
mod responder;
mod response;
mod rtt;
#[cfg(test)]
mod shared_queue_tests;
#[cfg(test)]
mod tests;
mod window;
#[cfg(test)]
mod xrc_tests;

pub(crate) use controller::Controller;
pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

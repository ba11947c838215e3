//! Reliable connection. IBTA 9.7.
//!
//! The requester's side, by what changes together:
//! - `inflight`: the requests from first PSN to completion; the only place that knows which
//!   packet is next and which is the oldest unacknowledged,
//! - `requester`: what may be sent now (fence, window, READ limit) and when to ask for an answer,
//! - `completer`: what an answer means,
//! - `retry`: timers and counts,
//! - `window`: how much may be unacknowledged.
//!
//! The responder's side:
//! - `responder`: the order of checks and what happens to a good request,
//! - `fault`: what follows from a failed check,
//! - `reply`: answers waiting to be sent, `replay`: answers kept for duplicates.

mod completer;
#[cfg(test)]
mod congestion_tests;
#[cfg(test)]
mod extension_tests;
mod fault;
mod inflight;
mod replay;
mod reply;
mod requester;
mod responder;
mod retry;
#[cfg(test)]
mod shared_queue_tests;
#[cfg(test)]
mod tests;
mod window;
#[cfg(test)]
mod xrc_tests;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

//! Reliable connection. IBTA 9.7.
//!
//! The requester's side:
//! - `inflight`: the requests from first PSN to completion; the only place that knows which
//!   packet is next and which is the oldest unacknowledged,
//! - `requester`: decides what may be sent now (fence, window, READ limit) and when to ask for an
//!   acknowledgement,
//! - `completer`: handles the peer's responses,
//! - `retry`: timers and retry counts; `rtt`: the round-trip time that one of them is made of,
//! - `window`: how many packets may be unacknowledged.
//!
//! The responder's side:
//! - `responder`: checks requests in order and executes those that pass,
//! - `errors`: the consequences of a failed check,
//! - `response`: responses that wait to be sent; `replay`: responses kept for duplicates.

mod completer;
#[cfg(test)]
mod congestion_tests;
mod errors;
#[cfg(test)]
mod extension_tests;
mod inflight;
mod replay;
mod requester;
mod responder;
mod response;
mod retry;
mod rtt;
#[cfg(test)]
mod shared_queue_tests;
#[cfg(test)]
mod tests;
mod window;
#[cfg(test)]
mod xrc_tests;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

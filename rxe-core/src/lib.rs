//! The RoCEv2 protocol as an ordinary library: bytes and time in, bytes and completions out. No
//! socket, no clock, no thread, no environment.
//!
//! - [`types`]: small values (PSN, QPN, keys, GID, MTU, timeouts).
//! - [`wire`]: what stands on the wire: headers, opcodes, ICRC, the way in and the way out.
//! - [`mem`]: registered memory and who may touch it.
//! - [`queue`]: work requests, the rings they are posted to, completions.
//! - [`qp`]: queue pairs: attributes, the state machine, the handle that programs post to.
//! - `rc`, `uc`, `ud`: the transport services, each a requester and a responder; `message`: what
//!   they share; `service`: what they see of their queue pair and their engine.
//! - [`bounds`]: what peers can make it keep; [`keyed`]: a queue from which objects take their entries.
//! - [`cm`]: the communication manager: its messages and its state machine.
//! - [`engine`]: all queue pairs together; its opening says in which order to call what. Its events
//!   and counters are those of `event`, its configuration that of `config`.

pub mod bounds;
pub mod cm;
mod config;
pub mod engine;
mod error;
mod event;
pub mod keyed;
pub mod mem;
mod message;
mod prefetch;
pub mod qp;
pub mod queue;
mod rc;
mod service;
mod sync;
#[cfg(test)]
mod testing;
pub mod types;
mod uc;
mod ud;
pub mod wire;

pub use error::VerbsError;

//! The RoCEv2 protocol as an ordinary library. Its inputs are bytes and the time; its outputs are
//! bytes and completions. It uses no socket, clock, thread or environment variable.
//!
//! - [`types`]: small values (PSN, QPN, keys, GID, MTU, timeouts).
//! - [`wire`]: the packet formats: headers, opcodes, the ICRC, parsing and writing of packets.
//! - [`mem`]: registered memory and the access checks on it.
//! - [`queue`]: work requests, the rings they are posted to, completions.
//! - [`qp`]: queue pairs: attributes, the state machine, the handle that programs post to.
//! - `rc`, `uc`, `ud`: the transport services, each with a requester and a responder. `message`
//!   contains the code they share; `service` is their interface to their queue pair and their
//!   engine.
//! - [`bounds`]: limits on the memory that peers can make this crate use.
//! - [`keyed`]: a queue whose entries can be removed by the object they belong to.
//! - [`cm`]: the communication manager: its messages and its state machine.
//! - [`engine`]: all queue pairs of a device. The head of the module states the order of calls. The
//!   events and counters of the engine are in `event`, its configuration in `config`.

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

//! The communication manager: how two programs that know only an address and a service find each
//! other's queue pairs. IBTA chapter 12; RDMA IP CM service, annex A11.
//!
//! - [`mad`]: the messages, as they stand in the 256 bytes of a management datagram.
//! - [`Manager`]: the state machine: connections, questions, listeners.
//! - [`service`]: service IDs made of IP ports, and the addresses that open a request's private data.

pub mod mad;
mod manager;
pub mod service;

pub use manager::{
    CLOSED_FOR, CmConfig, CmError, CmEvent, ConnId, HELD_FOR, ListenerId, MAX_CONNECTIONS,
    MAX_OUTBOX, Manager, Outgoing, Route,
};

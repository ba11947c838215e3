//! The communication manager, which connects queue pairs of two programs. The programs need to know
//! only an address and a service. IBTA chapter 12; RDMA IP CM service, annex A11.
//!
//! - [`mad`]: the messages in management datagrams of 256 bytes.
//! - [`Manager`]: the state machine of connections, SIDR queries and listeners.
//! - [`service`]: service IDs of IP ports, and the addresses at the start of a request's private
//!   data.

pub mod mad;
mod manager;
pub mod service;

pub use manager::{
    CLOSED_FOR, CmConfig, CmError, CmEvent, ConnId, ConnectionInfo, ListenerId, MAX_CONNECTIONS,
    MAX_OUTBOX, Manager, Outgoing, Route,
};

//! Connections by address and port: the connection manager, with the terms of librdmacm.
//!
//! - [`EventChannel`]: delivers events; one descriptor to sleep on.
//! - [`CmId`]: an identifier, which listens or is one end of a connection.
//! - [`CmEvent`], [`CmEventKind`]: an event and its kind; [`ConnParam`], [`UdParam`]: the
//!   parameters of both ends.
//!
//! A client resolves the address ([`CmId::resolve_addr`]), then the route, creates its queue pair
//! ([`CmId::create_qp`]) and calls [`CmId::connect`]; a server binds, listens, and accepts or
//! rejects each [`CmEventKind::ConnectRequest`]. Each step ends with an event. `examples/echo.rs`
//! shows both.
//!
//! The peer may be a program on kernel `rdma_rxe`, or on hardware.

mod channel;
mod cm_port;
mod connect;
mod devices;
mod error;
mod event;
mod id;
mod multicast;
mod ports;
mod process;
mod queue;
mod state;

pub use rxe_core::cm::mad::RejReason;
pub use rxe_core::cm::service::PortSpace;
use rxe_core::types::Qkey;

pub use channel::EventChannel;
pub use devices::DeviceSource;
pub use event::{CmEventKind, CmParam, ConnParam, UdParam};
pub use id::CmId;
pub use process::CmEvent;

/// The Q_Key of datagram queue pairs that the connection manager creates. `RDMA_UDP_QKEY`.
pub const UDP_QKEY: Qkey = Qkey::new(0x0123_4567);

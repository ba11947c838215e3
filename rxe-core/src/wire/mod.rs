//! The packet formats of RoCEv2, from the Ethernet header to the ICRC. IBTA chapter 9 and annex
//! A17.
//!
//! Each header has a file. A header is a plain value with `parse` and `emit`, which lose no bit.
//! Both work on an array of exactly the header's size, so that the only length check is made where
//! the array is taken out of the packet. All received packets pass through [`Packet`], and all sent
//! packets through [`emit`].

mod aeth;
mod atomic;
mod batch;
mod bth;
mod bytes;
pub mod cnp;
mod coalesced;
mod deth;
mod direct;
mod drop;
pub mod emit;
mod eth;
mod ext;
mod feth;
pub mod frame;
pub mod grh;
mod header_len;
pub mod icrc;
mod ipv4;
mod ipv6;
mod net;
mod opcode;
mod packet;
mod reth;
mod udp;
mod whole;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::AtomicEth;
pub use batch::{Burst, TxBatch, TxLimits};
pub use bth::{Bth, BthView, QPN_BLOCK, qpn_block};
pub use deth::Deth;
pub use direct::{Direct, Placed, whole_len, write_whole};
pub use drop::DropReason;
pub use eth::{Ethernet, Mac, VlanTag};
pub use ext::Ext;
pub use feth::Feth;
pub(crate) use net::id_step;
pub use net::{Coalesced, Frame, IpId, NetHeader, UDP_PORT};
pub use opcode::{OpInfo, OpKind, Opcode, Position, SendExtra, Service};
pub use packet::{Packet, PacketRepr};
pub use reth::Reth;

//! Ways onto a wire for RoCEv2: each backend moves UDP payloads between the engine and a network.
//!
//! [`Backend`] is the contract; everything else implements it or wraps what does. A backend knows
//! nothing of what stands in a payload, but that the ICRC covers parts of the IP and UDP headers:
//! what a backend does not let its user choose of those it says in its [`Capabilities`].

mod backend;
mod blocking;
mod error;
mod fabric;
mod fault;
mod interface;
mod lease;
mod loss;
mod netlink;
mod open;
mod packet;
mod pcap;
mod rng;
mod sharing;
mod shm;
mod sys;
#[cfg(test)]
mod testing;
mod trace;
mod udp;

/// What other processes can write to, for the fuzzers of this project: no interface.
#[doc(hidden)]
pub mod untrusted {
    pub use crate::shm::ring;
}

pub use backend::{Backend, Capabilities, Counters, SendStatus, SrcPort};
pub use blocking::{NonBlocking, may_block};
pub use error::{NetError, PortOwner};
pub use fabric::{Delivery, Fabric, FabricCounters, FabricPort, Faults, Hub};
pub use fault::Fault;
pub use interface::{Address, GidEntry, GidTable, Interface, InterfaceMonitor, MacAddr, Scope};
pub use lease::PortGroups;
pub use open::{BackendKind, open};
pub use packet::{PacketBackend, PacketConfig};
pub use pcap::{
    CapturedPacket, Direction, PacketBlock, Pcap, PcapHandle, PcapOptions, PcapReader, PcapStatus,
    PcapWriter,
};
pub use sharing::{Sharing, closed_service};
pub use shm::Shm;
pub use sys::event_fd::EventFd;
pub use sys::exit::at_exit;
pub use sys::secure::has_gained_rights;
pub use sys::thread::spawn_thread;
pub use sys::timer_fd::TimerFd;
pub use trace::Trace;
pub use udp::{UdpBackend, UdpConfig};

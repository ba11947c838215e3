//! Ways onto a wire for RoCEv2: each backend moves UDP payloads between the engine and a network.
//!
//! The rooms, from the bottom up:
//!
//! - `interface`: links, addresses, and the GID table made of them.
//! - `host`: what the processes of one host share: an address, its queue pair numbers, QP1.
//! - The contract: [`Backend`] with its [`Capabilities`], [`Counters`] and [`NetError`]. Everything above
//!   implements it or wraps an implementation.
//! - `wrappers`: around any backend. [`Pcap`] writes what passes, [`Fault`] loses or changes it.
//! - `fabric`: a network in memory and in virtual time.
//! - `backends`: one way onto a wire each.
//!
//! A backend does not look into payloads. But the ICRC in a payload covers parts of the IP and UDP headers,
//! so a backend says in its [`Capabilities`] which of those its user cannot choose.

mod backend;
mod backends;
mod counters;
mod error;
mod fabric;
mod host;
mod interface;
mod rng;
#[cfg(test)]
mod testing;
mod wrappers;

/// Parsers of what other processes can write, for this project's fuzzers and tests. It is no public interface.
#[doc(hidden)]
pub mod untrusted {
    pub use crate::backends::shm::{lane, ring};
    pub use crate::host::untrusted as lease;
}

pub use backend::{Backend, Capabilities, SendStatus, SrcPort};
pub use backends::l2::{L2Backend, L2Config, L2ConfigError, L2Link};
pub use backends::packet::{LinkCapture, LinkFrame, PacketBackend, PacketConfig};
pub use backends::shm::Shm;
pub use backends::udp::{UdpBackend, UdpConfig};
pub use backends::xdp::{XdpBackend, XdpConfig, XdpInterface, XdpMode};
pub use backends::{BackendKind, open, probe};
pub use counters::Counters;
pub use error::{L2Failure, NetError, PortOwner, XdpRefusal};
pub use fabric::{
    Delivery, Egress, EgressCounters, EgressQueue, Fabric, FabricCounters, FabricPort, Hub,
    Impairments, LinkConfig, Marking, Passage, Star, StarCounters,
};
pub use host::ask as report;
pub use host::membership::{Joiner, Membership};
pub use host::port_owner::{process_is_stopped, process_name};
pub use host::questions::Questions;
pub use host::sharing::Sharing;
pub use host::{CaptureMessage, CaptureSource, CaptureStream, PortGroups};
pub use interface::{Address, GidEntry, GidTable, Interface, InterfaceMonitor, MacAddr, Scope};
pub use rng::Rng;
pub use wrappers::fault::{
    Fault, FaultAction, FaultAmount, FaultPath, FaultReport, FaultRule, FaultTally, OpcodeFilter,
    PacketFilter, PsnFilter, QpFilter,
};
pub use wrappers::pcap::{
    Direction, LiveCapture, PacketBlock, Pcap, PcapHandle, PcapOptions, PcapStatus, PcapWriter,
    Tap, missing_before,
};

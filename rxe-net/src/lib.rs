//! Ways onto a wire for RoCEv2: each backend moves UDP payloads between the engine and a network.
//!
//! [`Backend`] is the contract; everything else implements it or wraps an implementation. A backend
//! does not look into payloads. But the ICRC in a payload covers parts of the IP and UDP headers, so
//! a backend says in its [`Capabilities`] which of those its user cannot choose.

mod backend;
mod counters;
mod error;
mod fabric;
mod fault;
mod interface;
mod interval;
mod l2;
mod lease;
mod loss;
mod membership;
mod open;
mod packet;
mod pcap;
mod port_owner;
pub mod probe;
mod questions;
mod rng;
mod sharing;
mod shm;
#[cfg(test)]
mod testing;
mod udp;
mod udp_socket;
mod xdp;

/// Parsers of what other processes can write, for this project's fuzzers and tests. It is no public interface.
#[doc(hidden)]
pub mod untrusted {
    pub use crate::lease::untrusted as lease;
    pub use crate::shm::{lane, ring};
}

pub use backend::{Backend, Capabilities, SendStatus, SrcPort};
pub use counters::Counters;
pub use error::{L2Failure, NetError, PortOwner, XdpRefusal};
pub use fabric::{
    Delivery, Egress, EgressCounters, EgressQueue, Fabric, FabricCounters, FabricPort, Hub,
    Impairments, LinkConfig, Marking, Passage, Star, StarCounters,
};
pub use fault::{
    Fault, FaultAction, FaultAmount, FaultPath, FaultReport, FaultRule, FaultTally, OpcodeFilter,
    PacketFilter, PsnFilter, QpFilter,
};
pub use interface::{Address, GidEntry, GidTable, Interface, InterfaceMonitor, MacAddr, Scope};
pub use l2::{L2Backend, L2Config, L2ConfigError, L2Link};
pub use lease::ask as report;
pub use lease::{CaptureMessage, CaptureSource, CaptureStream, PortGroups};
pub use membership::{Joiner, Membership};
pub use open::{BackendKind, open};
pub use packet::{LinkCapture, LinkFrame, PacketBackend, PacketConfig};
pub use pcap::{
    Direction, LiveCapture, PacketBlock, Pcap, PcapHandle, PcapOptions, PcapStatus, PcapWriter,
    Tap, missing_before,
};
pub use port_owner::{process_is_stopped, process_name};
pub use questions::Questions;
pub use rng::Rng;
pub use sharing::Sharing;
pub use shm::Shm;
pub use udp::{UdpBackend, UdpConfig};
pub use xdp::{XdpBackend, XdpConfig, XdpInterface, XdpMode};

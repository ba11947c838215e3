//! Network backends for RoCEv2: each moves UDP payloads between the engine and a network.
//!
//! The modules, from the bottom up:
//!
//! - `interface`: links, addresses, and the GID table made of them.
//! - `host`: the resources that the processes of one host share: an address, its queue pair
//!   numbers, QP1.
//! - The contract: [`Backend`] with its [`Capabilities`], [`Counters`] and [`NetError`]. The
//!   modules below implement it or wrap an implementation.
//! - `wrappers`: wrappers of any backend. [`Pcap`] records packets, [`Fault`] drops or changes
//!   them.
//! - `fabric`: a simulated network in memory and in virtual time.
//! - `backends`: the backends, one module each.
//!
//! Modules without system calls compile on every platform, for programs that simulate or write
//! captures: the contract, `fabric`, the rules of faults, and the format of captures. With the
//! feature `pnet`, so does the capture of an interface. The rest is for Linux.
//!
//! A backend does not read payloads. But the ICRC in a payload covers parts of the IP and UDP
//! headers, so a backend states in its [`Capabilities`] which of those headers its user cannot
//! choose.

// Some items are only used by the Linux modules.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod backend;
mod backends;
mod counters;
mod error;
mod fabric;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod interface;
mod rng;
#[cfg(test)]
mod testing;
mod wrappers;

/// Parsers of input from other processes, for this project's fuzzers and tests. Not a public
/// interface.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod untrusted {
    pub use crate::backends::shm::{lane, ring};
    pub use crate::host::untrusted as address_sharing;
}

pub use backend::{Backend, Capabilities, SendStatus, SrcPort};
#[cfg(target_os = "linux")]
pub use backends::l2::{L2Backend, L2Config, L2ConfigError, L2Link};
pub use backends::link_frame::LinkFrame;
#[cfg(target_os = "linux")]
pub use backends::packet::{LinkCapture, PacketBackend, PacketConfig};
#[cfg(any(
    all(unix, not(target_os = "linux"), feature = "pnet"),
    all(windows, feature = "npcap")
))]
pub use backends::pnet::LinkCapture;
#[cfg(target_os = "linux")]
pub use backends::shm::Shm;
#[cfg(target_os = "linux")]
pub use backends::udp::{UdpBackend, UdpConfig};
#[cfg(target_os = "linux")]
pub use backends::xdp::{XdpBackend, XdpConfig, XdpInterface, XdpMode};
#[cfg(target_os = "linux")]
pub use backends::{BackendKind, open, probe};
pub use counters::Counters;
pub use error::{L2Failure, NetError, PortOwner, XdpRefusal};
pub use fabric::{
    Delivery, Egress, EgressCounters, EgressQueue, Fabric, FabricCounters, LinkConfig, Marking,
    Passage, SwitchCounters, SwitchedNetwork,
};
#[cfg(target_os = "linux")]
pub use fabric::{FabricPort, Hub};
#[cfg(target_os = "linux")]
pub use host::ask as report;
#[cfg(target_os = "linux")]
pub use host::membership::{Membership, MulticastJoiner};
#[cfg(target_os = "linux")]
pub use host::peer_probes::PeerProbes;
#[cfg(target_os = "linux")]
pub use host::port_owner::{process_is_stopped, process_name, process_parent};
#[cfg(target_os = "linux")]
pub use host::sharing::Sharing;
#[cfg(target_os = "linux")]
pub use host::{CaptureMessage, CaptureSource, CaptureStream, PortGroups};
#[cfg(target_os = "linux")]
pub use interface::{Address, GidEntry, GidTable, Interface, InterfaceMonitor, MacAddr, Scope};
pub use rng::Rng;
#[cfg(target_os = "linux")]
pub use wrappers::fault::Fault;
pub use wrappers::fault::language as fault_language;
pub use wrappers::fault::{
    FaultAction, FaultAmount, FaultPath, FaultReport, FaultRule, FaultTally, OpcodeFilter,
    PacketFilter, PathCounters, PsnFilter, QpFilter,
};
pub use wrappers::pcap::{Direction, PacketBlock, PcapWriter};
#[cfg(target_os = "linux")]
pub use wrappers::pcap::{
    LiveCapture, Pcap, PcapHandle, PcapOptions, PcapStatus, Tap, missing_before,
};

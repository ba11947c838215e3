//! RDMA verbs over RoCEv2 in an ordinary process: no kernel module and, by default, no privileges.
//!
//! Names follow libibverbs, without the `ibv_` prefix, and the rules are those of the IBTA
//! specification. An object keeps alive the objects that it depends on, so a program may drop its
//! objects in any order. Any number of threads may use an object. Misuse returns an [`Error`] that
//! says what to do.
//!
//! - [`devices`], [`Device`]: one device for each network interface that has an address, loopback
//!   included.
//! - [`ProtectionDomain`], [`MemoryRegion`]: memory that requests and peers may access;
//!   [`MemoryWindow`]: a peer's access to part of a region, granted and revoked by requests;
//!   [`Access::ON_DEMAND`], [`ProtectionDomain::prefetch`], [`handle_memory_faults`]: memory that
//!   may be mapped and unmapped while it is registered; [`DeviceMemory`]: memory of the device.
//! - [`CompletionQueue`], [`CompletionChannel`]: completions of requests, and how to wait for them.
//! - [`QueuePair`]: posting requests ([`QueuePair::send`], [`QueuePair::write`],
//!   [`QueuePair::read`], [`QueuePair::compare_swap`], [`QueuePair::fetch_add`],
//!   [`QueuePair::atomic_write`], [`QueuePair::flush`], [`QueuePair::bind`]); [`Endpoint`] and
//!   [`QueuePair::connect`]: connecting to a peer; [`SharedReceiveQueue`]: receives that several
//!   queue pairs share; [`XrcDomain`]: one connection that reaches several shared receive queues.
//! - [`AddressHandle`], [`QueuePair::activate`], [`QueuePair::attach_multicast`]: datagrams.
//! - [`cm`]: connections by address and port, as with librdmacm.
//! - [`device::DeviceAttr`]: how many objects of each kind a device allows, and how large they may
//!   be; all limits are enforced.
//! - [`AsyncEvent`], [`Device::explain`], [`Device::counters`]: what else happened on a device, and
//!   why; [`Status::meaning`]: the usual cause of a completion status, and what to do.
//! - [`observe`]: counters, objects and packets of devices that other processes have open.
//! - [`cluster`]: many hosts in one process and in virtual time.
//! - `task` (feature `tokio`): completions and events as futures.
//!
//! A thread that posts, polls or waits drives the engine itself. Threads of the device serve peers
//! while the program does something else.
//!
//! A device that was opened before `fork` stays the parent's, because its threads and its shared
//! memory belong to the parent. In a child, verbs on the device fail with [`Error::Forked`], and
//! dropping its objects changes nothing for the parent. The child may execute another program or
//! open devices itself.
//!
//! ```
//! use rxe_verbs::{Access, ConnectOptions, Device};
//! use std::time::Duration;
//!
//! # fn main() -> rxe_verbs::Result<()> {
//! let device = Device::options("lo").address([127, 9, 9, 9].into()).open()?;
//! let pd = device.create_pd()?;
//! let cq = device.create_cq(16)?;
//!
//! // Two queue pairs, connected with each other.
//! let (a, b) = (pd.qp(&cq).build()?, pd.qp(&cq).build()?);
//! a.connect(&b.endpoint(), &ConnectOptions::default())?;
//! b.connect(&a.endpoint(), &ConnectOptions::default())?;
//!
//! // One sends what the other has a receive for.
//! let memory = pd.register(64, Access::LOCAL_WRITE)?;
//! b.recv(1, &[memory.slice(..)])?;
//! a.send_bytes(2, b"hello").post()?;
//! for _ in 0..2 {
//!     let done = cq.wait_one(Duration::from_secs(5))?;
//!     println!("request {}: {}", done.id, done.status);
//! }
//! assert_eq!(memory.to_vec(..5)?, b"hello");
//! # Ok(())
//! # }
//! ```

pub mod cluster;
pub mod cm;
pub mod device;
mod device_error;
mod error;
mod event;
mod faults;
mod objects;
pub mod observe;
mod os;
mod progress;
#[cfg(feature = "tokio")]
pub mod task;

pub use device::{Device, DeviceInfo, OpenOptions, SourcePortError, SourcePortPolicy};
pub use error::{Error, PostError, Result};
pub use event::{AsyncEvent, AsyncKind};
pub use faults::{FaultError, FaultPlan, InjectedFaults, VerbsFault};
pub use objects::{
    AddressHandle, CompletionChannel, CompletionQueue, ConnectOptions, DeviceMemory, Endpoint,
    MemoryRegion, MemoryWindow, Prefetch, ProtectionDomain, QpBuilder, QueuePair, Request,
    Reregistration, SharedReceiveQueue, XrcDomain,
};
pub use observe::UseCounts;
pub use os::{handle_memory_faults, recover_from_fault};
pub use progress::{AckPolicy, flush_before_exit};

pub use rxe_core::VerbsError;
pub use rxe_core::engine::{Counters, Event, Limits};
pub use rxe_core::mem::{Access, Binding, WindowType};
pub use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpCap, QpState, QpType};
pub use rxe_core::queue::{
    Completion, CompletionOp, Datagram, Immediate, Payload, Placement, RecvRequest, Remote,
    SendFlags, SendOp, SendRequest, Sge, SgeList, Status,
};
pub use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Psn, Qkey, Qpn, RnrTimer, Time};
pub use rxe_net::{
    Backend, BackendKind, FaultRule, GidEntry, GidTable, Interface, NetError, PcapHandle,
    PcapOptions,
};

/// Returns all devices of this host: those that reach other hosts first, loopback last.
///
/// # Errors
/// Fails if the interfaces cannot be listed.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    Ok(DeviceInfo::list()?)
}

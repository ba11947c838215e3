//! The objects of verbs, one file or folder each: protection domains, memory regions and windows,
//! device memory, completion queues and channels, queue pairs, shared receive queues, XRC domains
//! and address handles. IBTA 11.2.
//!
//! Objects are handles. Each keeps alive the objects from which it was created, so a program may
//! drop its objects in any order. Any number of threads may use an object.

mod ah;
mod channel;
mod cq;
mod dm;
mod mr;
mod mw;
mod on_demand;
mod pd;
mod qp;
mod srq;
mod xrc;

pub use ah::AddressHandle;
pub use channel::CompletionChannel;
pub use cq::CompletionQueue;
pub use dm::DeviceMemory;
pub use mr::{MemoryRegion, Reregistration};
pub use mw::MemoryWindow;
pub use on_demand::Prefetch;
pub use pd::ProtectionDomain;
pub use qp::{ConnectOptions, Endpoint, QpBuilder, QueuePair, Request};
pub use srq::SharedReceiveQueue;
pub use xrc::XrcDomain;

//! The devices of this host: one for each interface with an address, without configuration. IBTA
//! 11.2.1.

mod attr;
mod endpoints;
mod identity;
pub mod links;
mod list;
mod odp;
mod open;
mod options;
mod port_monitor;
mod qpn_allocator;
mod shards;
mod source_port;
pub mod sysfs;
mod tentative;
mod wire;

pub use attr::{AtomicCap, DeviceAttr, DeviceCap, Guid, PhysState, PortAttr, PortState};
pub use identity::Identity;
pub use list::DeviceInfo;
pub use odp::{OdpCaps, OdpTransportCaps};

pub use crate::device_error::DeviceError;
pub use open::Device;
pub(crate) use open::WeakDevice;
pub use options::OpenOptions;
pub(crate) use port_monitor::BoundToDevice;
pub(crate) use qpn_allocator::QpnPermit;
pub(crate) use shards::ShardSet;
pub use source_port::{SourcePortError, SourcePortPolicy};

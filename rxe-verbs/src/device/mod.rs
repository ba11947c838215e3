//! The devices of this host: there is one for each interface with an address, without set-up.
//! IBTA 11.2.1.

mod attr;
mod list;

pub use attr::{AtomicCap, DeviceAttr, DeviceCap, Guid, PhysState, PortAttr, PortState};
pub use list::{DeviceError, DeviceInfo};

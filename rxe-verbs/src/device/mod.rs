//! The devices of this host: there is one for each interface with an address, without set-up.
//! IBTA 11.2.1.

mod attr;
mod follow;
pub mod links;
mod list;
mod numbers;
mod open;
mod options;
mod quota;

pub use attr::{AtomicCap, DeviceAttr, DeviceCap, Guid, PhysState, PortAttr, PortState};
pub(crate) use follow::Follow;
pub use list::{DeviceError, DeviceInfo};
pub(crate) use numbers::Number;
pub use open::Device;
pub(crate) use open::{WeakDevice, closed};
pub use options::OpenOptions;
pub(crate) use quota::Place;

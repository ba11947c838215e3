//! Small value types. Each is a newtype, so that for example a packet sequence number cannot be
//! passed where a queue pair number is expected.

mod access;
mod attr;
mod gid;
mod key;
mod mtu;
mod psn;
mod qpn;
mod status;
mod time;
mod timeout;

pub use access::{Access, AccessError, FaultCause, MemoryFault};
pub use attr::{AddressVector, AttrMask, QpAttr, QpCap, QpState, QpType};
pub use gid::Gid;
pub use key::{Key, Pkey, Qkey};
pub use mtu::Mtu;
pub use psn::Psn;
pub use qpn::Qpn;
pub use status::{CompletionOp, Status};
pub use time::Time;
pub use timeout::{AckTimeout, RnrTimer};

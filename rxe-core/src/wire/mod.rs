//! What stands on the wire.

mod net;

pub use net::{Frame, IpId, NetHeader, Run, TxBatch, TxLimits, UDP_PORT};

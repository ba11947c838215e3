//! Congestion notification packet: a BTH with BECN set, and 16 reserved bytes. IBTA A17.9.3.

use super::{Bth, Opcode, header_len};
use crate::types::{Psn, Qpn};

/// The number of reserved bytes after the BTH.
pub const LEN: usize = header_len::CNP_RESERVED;

/// Returns the BTH of a notification to `dest_qp`: BECN 1, PSN 0, and MigReq 0 as ConnectX sends
/// it.
pub const fn bth(dest_qp: Qpn) -> Bth {
    Bth { mig_req: false, becn: true, ..Bth::new(Opcode::CNP, dest_qp, Psn::ZERO) }
}

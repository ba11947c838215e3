//! The bytes of each transport header, and of the pad. IBTA 9.2 and 9.3; for a CNP's reserved bytes A17.9.3.
//!
//! The opcode table adds these up, and the headers themselves are arrays of these sizes.

/// Base transport header.
pub(super) const BTH: usize = 12;
/// Datagram extended transport header.
pub(super) const DETH: usize = 8;
/// RDMA extended transport header.
pub(super) const RETH: usize = 16;
/// Atomic extended transport header.
pub(super) const ATOMIC_ETH: usize = 28;
/// Acknowledgement extended transport header.
pub(super) const AETH: usize = 4;
/// Atomic acknowledgement extended transport header.
pub(super) const ATOMIC_ACK_ETH: usize = 8;
/// A header of one word: ImmDt, IETH, XRCETH, FETH.
pub(super) const WORD: usize = 4;
/// The reserved bytes after the BTH of a CNP.
pub(super) const CNP_RESERVED: usize = 16;
/// All headers of a packet together: the most that an opcode has, an XRC atomic.
pub(super) const MAX: usize = BTH + WORD + ATOMIC_ETH;

/// Bytes that fill a payload up to a multiple of 4.
#[inline]
pub(super) const fn pad(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

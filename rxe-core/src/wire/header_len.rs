//! The lengths of the transport headers and of the pad in bytes. IBTA 9.2 and 9.3; A17.9.3 for the
//! reserved bytes of a CNP.
//!
//! The opcode table adds these lengths up, and encoded headers are arrays of these sizes.

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
/// The maximum length of all headers of a packet, which is that of an XRC atomic.
pub(super) const MAX: usize = BTH + WORD + ATOMIC_ETH;

/// Returns the number of bytes that extend a payload to a multiple of 4.
#[inline]
pub(super) const fn pad(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

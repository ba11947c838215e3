//! Frames of several packets.
//!
//! A host that lets the kernel split datagrams (`UDP_SEGMENT`) or merge them (`UDP_GRO`) captures
//! several packets in one frame: one IP and UDP header, then packet after packet, each with its BTH
//! and ICRC. All packets have the same size, except that the last may be shorter.

use rxe_core::wire::{Bth, NetHeader, OpInfo, icrc};

use super::transport::{Icrc, Transport, hidden, is_right};
use super::unseen::{MAX_PAYLOAD, MAX_SEGMENTS};
use crate::header;

/// The most ICRCs that are computed to find the packet size of one frame.
const MAX_CHECKS: usize = 64;

/// Returns the packet size in bytes if the frame holds several packets.
/// The packets are between `first.at` and `end`; `first` is the result of parsing all of them as
/// one packet.
pub(super) fn segment(
    net: &NetHeader,
    first: &Transport<'_>,
    frame: &[u8],
    end: usize,
) -> Option<usize> {
    let least = header::BTH.len + icrc::LEN;
    let longest = first.info.map(largest)?;
    let bytes = frame.get(first.at..end.min(frame.len()))?;
    let is_cut = bytes.len() < first.len;
    let is_whole = first.wrong.is_none() && first.icrc == Icrc::Right;
    let may_be_one = first.icrc != Icrc::Wrong && first.wrong.is_none() && first.len <= longest;
    // In a truncated frame no ICRC can be checked; the BTH of the second packet decides instead.
    if is_whole || may_be_one && !is_cut || first.len < 2 * least {
        return None;
    }
    let mut checks = 0;
    // A candidate size is one at which another BTH of the same conversation begins.
    let header_len = first.info.map_or(header::BTH.len, |info| info.header_len);
    for size in (header_len + icrc::LEN..=longest.min(first.len - least)).step_by(4) {
        let Some(next) = bytes.get(size..).and_then(<[u8]>::first_chunk) else { break };
        let next = Bth::parse(next);
        let alike = next.tver == 0
            && next.pkey == first.bth.pkey
            && next.dest_qp.block() == first.bth.dest_qp.block()
            && next.opcode.info().is_some();
        if !alike || first.len.div_ceil(size) > MAX_SEGMENTS {
            continue;
        }
        let packet = bytes.get(..size)?;
        // The rest of the frame may be missing, but the first packet was captured whole.
        let follows =
            next.dest_qp == first.bth.dest_qp && next.psn == first.bth.psn.next() && is_cut;
        if follows || is_right(&hidden(net).unwrap_or(*net), packet, 0) {
            return Some(size);
        }
        checks += 1;
        if checks == MAX_CHECKS {
            break;
        }
    }
    None
}

/// Returns the largest possible size in bytes of a packet with this opcode.
fn largest(info: &OpInfo) -> usize {
    info.header_len + MAX_PAYLOAD + icrc::LEN
}

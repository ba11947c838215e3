//! Two engines with faults, a requester and a responder. What a sound engine says is changed into what a
//! broken one would say, with a right ICRC; the engine at the other end gets that, and answers as it
//! does.

use std::collections::BTreeSet;

use rxe_core::types::Psn;
use rxe_core::wire::{OpKind, Position, icrc};
use rxe_lab::check::Kind;
use rxe_tests::lone::Said;

/// Where the AETH, the RETH and what follows the AETH begin.
const EXT: usize = 12;
/// Where a RETH has its DMA length.
const DMA_LEN: usize = EXT + 12;
/// Where an AETH has its MSN.
const MSN: usize = EXT + 1;
/// Where an ATOMIC ACKNOWLEDGE has what was found.
const FOUND: usize = EXT + 4;

/// What an engine always does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The requester sends packets before the last with 4 bytes less than the path MTU.
    ShortPacket,
    /// The requester sends SEND FIRST instead of SEND MIDDLE.
    FirstAgain,
    /// The requester says that a WRITE has 4 bytes more than it has.
    LongWrite,
    /// The requester computes the ICRC without the pad.
    IcrcWithoutPad,
    /// The requester does not set AckReq before it sends something again.
    NoAckReq,
    /// The responder counts every other message only.
    SlowMsn,
    /// The responder answers a READ in several packets with ONLY first.
    OnlyFirst,
    /// The responder leaves out the last 4 bytes of a READ.
    ShortRead,
    /// The responder executes a repeated atomic again.
    AtomicAgain,
}

pub(crate) const BUGS: [Bug; 9] = [
    Bug::ShortPacket,
    Bug::FirstAgain,
    Bug::LongWrite,
    Bug::IcrcWithoutPad,
    Bug::NoAckReq,
    Bug::SlowMsn,
    Bug::OnlyFirst,
    Bug::ShortRead,
    Bug::AtomicAgain,
];

impl Bug {
    /// The end that has it: 0 for the requester, 1 for the responder.
    fn side(self) -> usize {
        match self {
            Self::ShortPacket
            | Self::FirstAgain
            | Self::LongWrite
            | Self::IcrcWithoutPad
            | Self::NoAckReq => 0,
            Self::SlowMsn | Self::OnlyFirst | Self::ShortRead | Self::AtomicAgain => 1,
        }
    }

    /// What the analyst calls it.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::ShortPacket | Self::LongWrite => &[Kind::Length],
            Self::FirstAgain => &[Kind::OpcodeOrder],
            Self::IcrcWithoutPad => &[Kind::Icrc, Kind::IcrcArtefact],
            Self::NoAckReq => &[Kind::AckNotRequested],
            Self::SlowMsn => &[Kind::Msn],
            Self::OnlyFirst | Self::ShortRead => &[Kind::Response],
            Self::AtomicAgain => &[Kind::Atomic],
        }
    }
}

/// An engine with a bug, or none.
#[derive(Debug)]
pub(crate) struct Broken {
    bug: Option<Bug>,
    /// The newest request.
    newest: Option<Psn>,
    /// The atomics that were answered.
    answered: BTreeSet<u32>,
    /// Messages by an acknowledgement of all that was sent.
    msn: Option<u32>,
    /// The first packet that shows the bug.
    pub(crate) hit: Option<Psn>,
}

impl Broken {
    pub(crate) fn new(bug: Option<Bug>) -> Self {
        Self { bug, newest: None, answered: BTreeSet::new(), msn: None, hit: None }
    }

    /// Takes what a sound engine says, and makes of it what the broken one says.
    pub(crate) fn pass(&mut self, side: usize, said: &mut Said) {
        let Some(bug) = self.bug else { return };
        let packet = said.packet();
        let (info, psn, pad) = (packet.info(), packet.psn(), packet.pad());
        let len = packet.payload().len();
        if side == 0 {
            self.newest = self.newest.filter(|newest| !psn.after(*newest)).or(Some(psn));
        }
        if side != bug.side() {
            return;
        }
        let (kind, position) = (info.kind, info.position);
        let is_write = kind == OpKind::Write;
        let is_read = kind == OpKind::ReadResponse;
        let goes_on = matches!(position, Position::First | Position::Middle);
        let cut = |said: &mut Said| {
            let end = said.bytes.len() - icrc::LEN - pad;
            said.bytes.drain(end - 4..end);
        };
        let shows = match bug {
            Bug::ShortPacket if goes_on && (is_write || kind == OpKind::Send) => {
                cut(said);
                true
            }
            Bug::FirstAgain if kind == OpKind::Send && position == Position::Middle => {
                // RC SEND MIDDLE is 1, FIRST is 0.
                said.bytes[0] -= 1;
                true
            }
            Bug::LongWrite if info.has_reth && is_write => {
                said.bytes[DMA_LEN + 3] ^= 4;
                true
            }
            Bug::IcrcWithoutPad if pad > 0 => {
                let end = said.bytes.len();
                said.bytes[end - 1] ^= 0x80;
                self.hit.get_or_insert(psn);
                return;
            }
            Bug::NoAckReq if is_write || kind == OpKind::Send => {
                // The greatest bit of the last word.
                let is_repeated = self.newest.is_some_and(|newest| newest != psn);
                said.bytes[8] &= if is_repeated { 0xff } else { 0x7f };
                is_repeated
            }
            Bug::SlowMsn if kind == OpKind::Acknowledge && self.newest == Some(psn) => {
                let [high, middle, low] = [0, 1, 2].map(|n| u32::from(said.bytes[MSN + n]));
                let msn = high << 16 | middle << 8 | low;
                let said_msn = msn.div_ceil(2).to_be_bytes();
                said.bytes[MSN..MSN + 3].copy_from_slice(&said_msn[1..]);
                // Messages since the acknowledgement before, of which not all were counted.
                let before = self.msn.replace(msn);
                before.is_some_and(|before| msn - before != msn.div_ceil(2) - before.div_ceil(2))
            }
            Bug::OnlyFirst if is_read && position == Position::First => {
                // RC READ RESPONSE FIRST is 13, ONLY is 16.
                said.bytes[0] += 3;
                true
            }
            Bug::ShortRead if is_read && !goes_on && len >= 4 => {
                cut(said);
                true
            }
            Bug::AtomicAgain if kind == OpKind::AtomicAcknowledge => {
                let is_repeated = !self.answered.insert(psn.value());
                said.bytes[FOUND + 7] ^= u8::from(is_repeated);
                is_repeated
            }
            _ => return,
        };
        let end = said.bytes.len() - icrc::LEN;
        said.bytes.truncate(end);
        icrc::append(&said.net, &mut said.bytes, 0);
        if shows {
            self.hit.get_or_insert(psn);
        }
    }
}

//! Two engines with injected bugs, a requester and a responder. The packets of a correct engine are
//! changed into those of a broken one, with a correct ICRC. The engine at the other end receives
//! them, and answers as usual.

use std::collections::BTreeSet;

use rxe_core::types::Psn;
use rxe_core::wire::{OpKind, Position, Syndrome, icrc};
use rxe_lab::check::Kind;
use rxe_tests::lone::Said;

/// The offset of the first extension header: AETH or RETH.
const EXT: usize = 12;
/// The offset of the DMA length in a RETH.
const DMA_LEN: usize = EXT + 12;
/// The offset of the syndrome in an AETH.
const SYNDROME: usize = EXT;
/// The offset of the MSN in an AETH.
const MSN: usize = EXT + 1;
/// The offset of the original value in an ATOMIC ACKNOWLEDGE.
const FOUND: usize = EXT + 4;

/// A bug of an engine, which it shows whenever possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The requester sends packets before the last with 4 bytes less than the path MTU.
    ShortPacket,
    /// The requester sends SEND FIRST instead of SEND MIDDLE.
    FirstAgain,
    /// The requester sends ONLY instead of FIRST when it retransmits a message.
    OnlyAgain,
    /// The requester announces 4 bytes more in a WRITE than it sends.
    LongWrite,
    /// The requester computes the ICRC without the pad.
    IcrcWithoutPad,
    /// The requester does not set AckReq before it retransmits.
    NoAckReq,
    /// The responder counts only every other message.
    SlowMsn,
    /// The responder begins the answer to a READ of several packets with ONLY.
    OnlyFirst,
    /// The responder omits the last 4 bytes of a READ.
    ShortRead,
    /// The responder executes a retransmitted atomic again.
    AtomicAgain,
    /// The requester sends without credits.
    IgnoresCredits,
    /// The responder gives many credits, then few.
    CreditsTakenBack,
    /// The responder sends the number of its receives instead of its code.
    CreditsNotEncoded,
}

pub(crate) const BUGS: [Bug; 13] = [
    Bug::ShortPacket,
    Bug::FirstAgain,
    Bug::OnlyAgain,
    Bug::LongWrite,
    Bug::IcrcWithoutPad,
    Bug::NoAckReq,
    Bug::SlowMsn,
    Bug::OnlyFirst,
    Bug::ShortRead,
    Bug::AtomicAgain,
    Bug::IgnoresCredits,
    Bug::CreditsTakenBack,
    Bug::CreditsNotEncoded,
];

/// The time after which the requester has received the first credits, in nanoseconds.
const HEARD: u64 = 100_000;

impl Bug {
    /// Returns the end with the bug: 0 for the requester, 1 for the responder.
    fn side(self) -> usize {
        match self {
            Self::ShortPacket
            | Self::FirstAgain
            | Self::OnlyAgain
            | Self::LongWrite
            | Self::IcrcWithoutPad
            | Self::NoAckReq
            | Self::IgnoresCredits => 0,
            Self::SlowMsn
            | Self::OnlyFirst
            | Self::ShortRead
            | Self::AtomicAgain
            | Self::CreditsTakenBack
            | Self::CreditsNotEncoded => 1,
        }
    }

    /// Returns whether the bug concerns credits.
    pub(crate) fn is_of_credits(self) -> bool {
        matches!(self, Self::IgnoresCredits | Self::CreditsTakenBack | Self::CreditsNotEncoded)
    }

    /// Returns the number of receives that the responder has at the beginning.
    fn receives(self) -> u32 {
        match self {
            Self::IgnoresCredits => 2,
            Self::CreditsNotEncoded => 26,
            _ => 24,
        }
    }

    /// Returns the kinds of findings that the analyst must report.
    pub(crate) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::ShortPacket | Self::LongWrite => &[Kind::Length],
            Self::FirstAgain => &[Kind::OpcodeOrder],
            Self::OnlyAgain => &[Kind::Changed],
            Self::IcrcWithoutPad => &[Kind::Icrc, Kind::IcrcArtefact],
            Self::NoAckReq => &[Kind::AckNotRequested],
            Self::SlowMsn => &[Kind::Msn],
            Self::OnlyFirst | Self::ShortRead => &[Kind::Response],
            Self::AtomicAgain => &[Kind::Atomic],
            Self::IgnoresCredits => &[Kind::CreditLimit],
            Self::CreditsTakenBack | Self::CreditsNotEncoded => &[Kind::Credits],
        }
    }
}

/// An engine with or without a bug.
#[derive(Debug)]
pub(crate) struct Broken {
    bug: Option<Bug>,
    /// The newest request.
    newest: Option<Psn>,
    /// The messages of several packets that were sent.
    begun: BTreeSet<u32>,
    /// The atomics that were answered.
    answered: BTreeSet<u32>,
    /// The MSN in the last acknowledgement of everything that was sent.
    msn: Option<u32>,
    /// Whether the responder gives credits: the actual ones, or those of the bug.
    gives_credits: bool,
    /// The last PSNs of the messages that take a receive.
    taken: Vec<Psn>,
    /// The first acknowledgement with credits, and the time at which the requester received it.
    given: Option<(Psn, u8)>,
    heard: Option<u64>,
    /// The first packet that shows the bug.
    pub(crate) hit: Option<Psn>,
}

impl Broken {
    pub(crate) fn new(bug: Option<Bug>, gives_credits: bool) -> Self {
        Self {
            bug,
            newest: None,
            begun: BTreeSet::new(),
            answered: BTreeSet::new(),
            msn: None,
            gives_credits: gives_credits || bug.is_some_and(Bug::is_of_credits),
            taken: Vec::new(),
            given: None,
            heard: None,
            hit: None,
        }
    }

    /// Records the arrival of a packet at an end.
    pub(crate) fn arrives(&mut self, side: usize, now: u64, said: &Said) {
        let aeth = said.packet().ext().aeth;
        if side == 0
            && let Some(Syndrome::Ack { credits: 1..=30 }) = aeth.map(|aeth| aeth.syndrome)
        {
            self.heard.get_or_insert(now);
        }
    }

    /// Adds credits to an acknowledgement, or checks them.
    fn credit(&mut self, side: usize, now: u64, said: &mut Said) {
        let packet = said.packet();
        let (info, psn) = (packet.info(), packet.psn());
        let total = self.bug.map_or(24, Bug::receives);
        if side == 0 {
            let is_new = self.newest.is_none_or(|newest| psn.after(newest));
            let is_late = self.heard.is_some_and(|heard| now >= heard + HEARD);
            let begun = u32::try_from(self.taken.len()).unwrap() + 1;
            let is_beyond = is_new && info.consumes_recv && begun > total + 1;
            if self.bug == Some(Bug::IgnoresCredits) && is_beyond && is_late {
                self.hit.get_or_insert(psn);
            }
            if is_new && info.completes_recv {
                self.taken.push(psn);
            }
            return;
        }
        let Some(Syndrome::Ack { .. }) = packet.ext().aeth.map(|aeth| aeth.syndrome) else {
            return;
        };
        let taken = self.taken.iter().filter(|complete| !complete.after(psn)).count();
        let taken = u32::try_from(taken).unwrap();
        let left = total.saturating_sub(taken);
        let code = match self.bug {
            Some(Bug::CreditsNotEncoded) => u8::try_from(left).unwrap(),
            Some(Bug::CreditsTakenBack) if taken >= 2 => 2,
            _ => code_of(left),
        };
        let is_wrong = match (self.bug, self.given) {
            (Some(Bug::CreditsNotEncoded), Some((_, first))) => code + 3 <= first,
            (Some(Bug::CreditsTakenBack), Some((_, first))) => taken >= 2 && first > 2,
            _ => false,
        };
        if is_wrong && self.given.is_some_and(|(first, _)| psn.after(first)) {
            self.hit.get_or_insert(psn);
        }
        self.given.get_or_insert((psn, code));
        said.bytes[SYNDROME] = code;
        seal(said);
    }

    /// Changes a packet of a correct engine into that of the broken one.
    pub(crate) fn pass(&mut self, side: usize, now: u64, said: &mut Said) {
        if self.gives_credits {
            self.credit(side, now, said);
        }
        let psn = said.packet().psn();
        if side == 0 {
            self.newest = self.newest.filter(|newest| !psn.after(*newest)).or(Some(psn));
        }
        let Some(bug) = self.bug else { return };
        let packet = said.packet();
        let (info, pad) = (packet.info(), packet.pad());
        let len = packet.payload().len();
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
            Bug::OnlyAgain if position == Position::First && (is_write || kind == OpKind::Send) => {
                let is_repeated = !self.begun.insert(psn.value());
                // RC SEND FIRST is 0 and ONLY is 4; RC WRITE FIRST is 6 and ONLY is 10.
                said.bytes[0] += if is_repeated { 4 } else { 0 };
                is_repeated
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
                // AckReq is the highest bit of the last word of the BTH.
                let is_repeated = self.newest.is_some_and(|newest| newest != psn);
                said.bytes[8] &= if is_repeated { 0xff } else { 0x7f };
                is_repeated
            }
            Bug::SlowMsn if kind == OpKind::Acknowledge && self.newest == Some(psn) => {
                let [high, middle, low] = [0, 1, 2].map(|n| u32::from(said.bytes[MSN + n]));
                let msn = high << 16 | middle << 8 | low;
                let said_msn = msn.div_ceil(2).to_be_bytes();
                said.bytes[MSN..MSN + 3].copy_from_slice(&said_msn[1..]);
                // The messages since the previous acknowledgement, not all of which were counted.
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
        seal(said);
        if shows {
            self.hit.get_or_insert(psn);
        }
    }
}

/// Computes the ICRC again.
fn seal(said: &mut Said) {
    let end = said.bytes.len() - icrc::LEN;
    said.bytes.truncate(end);
    icrc::append(&said.net, &mut said.bytes, 0);
}

/// Returns the credit code of a number of messages, rounded down. IBTA 9.7.7.2.
fn code_of(messages: u32) -> u8 {
    const MESSAGES: [u32; 12] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48];
    u8::try_from(MESSAGES.partition_point(|n| *n <= messages)).unwrap() - 1
}

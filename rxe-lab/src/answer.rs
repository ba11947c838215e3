//! Describes what the peer of a queue pair sends to hand-made packets.
//!
//! A description has the answers and requests of the peer, with PSNs relative to the first, and two
//! descriptions can be compared.

use std::fmt;

use rxe_core::types::{Pkey, Psn, RnrTimer};
use rxe_core::wire::{
    Ext, NakCode, NetHeader, OpInfo, OpKind, Opcode, Packet, Position, Syndrome, icrc,
};

use crate::words;

/// The parts of a peer's packet that a conformance rule can be about.
/// The PSN of an answer counts from the first PSN that the peer expects, that of a request from the
/// first PSN that it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A positive acknowledgement: its PSN.
    Ack(i32),
    /// A NAK: its code and PSN.
    Nak(NakCode, i32),
    /// An RNR NAK: its PSN and timer code.
    Rnr(i32, u8),
    /// A READ response: its position in the message, its PSN, and its payload in bytes.
    Read(Position, i32, usize),
    /// An atomic acknowledgement: its PSN and the original value in memory.
    Atomic(i32, u64),
    /// A request: its opcode, its PSN, and its payload in bytes.
    Request(Opcode, i32, usize),
    /// An ACKNOWLEDGE with a reserved syndrome, or another packet that is not a request.
    Other(Opcode, i32),
}

/// A packet of the peer, with its headers and payload.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The parts that a rule can be about.
    pub said: Said,
    /// The opcode.
    pub opcode: Opcode,
    /// The extension headers.
    pub ext: Ext,
    /// Whether the packet requests an acknowledgement.
    pub ack_req: bool,
    /// The payload, without the pad.
    pub payload: Vec<u8>,
}

/// The PSNs from which the PSNs of a peer's packets are counted.
#[derive(Clone, Copy, Debug)]
pub struct FirstPsns {
    /// The first PSN that the peer sends.
    pub requests: Psn,
    /// The first PSN that the peer expects.
    pub answers: Psn,
}

impl Seen {
    /// Parses a packet of the peer, from BTH to ICRC.
    ///
    /// # Errors
    /// Fails if the packet is one that no device may send: its structure, ICRC or P_Key is wrong.
    pub fn read(net: &NetHeader, bytes: &[u8], psns: &FirstPsns) -> Result<Self, String> {
        let packet = Packet::parse(bytes).map_err(|why| {
            format!("a packet of {} B is malformed: {}", bytes.len(), why.explain())
        })?;
        let name = words::opcode(packet.opcode());
        if icrc::check(net, bytes).is_err() {
            return Err(format!("the ICRC of its {name} is wrong"));
        }
        if !packet.pkey().matches(Pkey::DEFAULT) {
            let pkey = packet.pkey().value();
            return Err(format!("the P_Key of its {name} is 0x{pkey:04x}, not that of its QP"));
        }
        let ext = packet.ext();
        let said = Said::of(packet.info(), packet.psn(), &ext, packet.payload().len(), psns);
        let payload = packet.payload().to_vec();
        let opcode = packet.opcode();
        Ok(Self { said, opcode, ext, ack_req: packet.ack_req(), payload })
    }

    /// Returns the MSN of the packet, if it has an AETH.
    pub fn msn(&self) -> Option<u32> {
        self.ext.aeth.map(|aeth| aeth.msn)
    }
}

impl Said {
    /// Describes a packet with these headers and `len` bytes of payload.
    pub fn of(info: &OpInfo, psn: Psn, ext: &Ext, len: usize, psns: &FirstPsns) -> Self {
        let psn = psn.diff(if info.is_request { psns.requests } else { psns.answers });
        match (info.kind, ext.aeth.map(|aeth| aeth.syndrome)) {
            (OpKind::ReadResponse, _) => Self::Read(info.position, psn, len),
            (OpKind::AtomicAcknowledge, _) => Self::Atomic(psn, ext.atomic_ack.unwrap_or(0)),
            (OpKind::Acknowledge, Some(Syndrome::Ack { .. })) => Self::Ack(psn),
            (OpKind::Acknowledge, Some(Syndrome::Nak(code))) => Self::Nak(code, psn),
            (OpKind::Acknowledge, Some(Syndrome::RnrNak { timer })) => Self::Rnr(psn, timer.code()),
            _ if info.is_request => Self::Request(info.opcode, psn, len),
            _ => Self::Other(info.opcode, psn),
        }
    }

    /// Describes a SEND ONLY of 8 bytes.
    pub fn send_only(psn: i32) -> Self {
        Self::Request(Opcode::RC_SEND_ONLY, psn, 8)
    }

    /// Describes a READ request.
    pub fn read_request(psn: i32) -> Self {
        Self::Request(Opcode::RC_READ_REQUEST, psn, 0)
    }

    /// Returns the PSN of the answered request; `None` if the packet is not an answer.
    pub fn answered(&self) -> Option<i32> {
        match self {
            Self::Ack(psn) | Self::Nak(_, psn) | Self::Rnr(psn, _) => Some(*psn),
            Self::Read(_, psn, _) | Self::Atomic(psn, _) => Some(*psn),
            Self::Request(..) | Self::Other(..) => None,
        }
    }
}

/// Describes in words how the packet that came differs from the expected one.
/// `wait` says how long it was waited for.
pub fn difference(wanted: &Said, got: Option<&Said>, wait: &str) -> Option<String> {
    match got {
        Some(got) if got == wanted => None,
        Some(got) => Some(format!("{wanted} was expected, {got} came")),
        None => Some(format!("{wanted} was expected, nothing came within {wait}")),
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(psn) => write!(f, "ACK {psn:+}"),
            Self::Nak(code, psn) => {
                let words = words::syndrome(Syndrome::Nak(*code));
                write!(f, "{} {psn:+}", words.replace("NAK:", "NAK"))
            }
            Self::Rnr(psn, code) => {
                let wait = RnrTimer::from_wire(*code).duration();
                write!(f, "RNR NAK {psn:+} (timer {code}: {} ms)", wait.as_secs_f64() * 1e3)
            }
            Self::Read(position, psn, len) => {
                let name = words::opcode(Opcode::read_response(*position));
                write!(f, "{name} {psn:+}, {len} B")
            }
            Self::Atomic(psn, value) => write!(f, "ATOMIC ACKNOWLEDGE {psn:+}, value 0x{value:x}"),
            Self::Request(opcode, psn, len) => {
                write!(f, "{} {psn:+}, {len} B", words::opcode(*opcode))
            }
            Self::Other(opcode, psn) => write!(f, "{} {psn:+}", words::opcode(*opcode)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_core::types::Qpn;
    use rxe_core::wire::{Aeth, Bth, PacketRepr, UDP_PORT, emit};

    const OWN_QPN: Qpn = Qpn::from_wire(0x34);
    const PSNS: FirstPsns = FirstPsns { requests: Psn::new(0x2000), answers: Psn::new(0x1000) };

    fn net() -> NetHeader {
        let [own, peer] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        NetHeader::outgoing(peer, own, UDP_PORT)
    }

    fn from_peer(opcode: Opcode, psn: u32, ext: Ext, change: fn(&mut Bth)) -> Vec<u8> {
        let mut bth = Bth::new(opcode, OWN_QPN, Psn::new(psn));
        change(&mut bth);
        let repr = PacketRepr { bth, ext, payload: &[], pad_bytes: [0; 3] };
        let mut bytes = Vec::new();
        emit::repr(&net(), &mut bytes, &repr);
        bytes
    }

    fn acknowledge(syndrome: Syndrome, psn: u32) -> Vec<u8> {
        let ext = Ext { aeth: Some(Aeth { syndrome, msn: 3 }), ..Ext::default() };
        from_peer(Opcode::RC_ACKNOWLEDGE, psn, ext, |_| {})
    }

    #[test]
    fn answers_and_requests_are_told_apart_and_counted_from_their_first_psn() {
        let read = |bytes: &[u8]| Seen::read(&net(), bytes, &PSNS).unwrap().said;
        assert_eq!(read(&acknowledge(Syndrome::ACK, 0x1002)), Said::Ack(2));
        let nak = Syndrome::Nak(NakCode::InvalidRequest);
        assert_eq!(read(&acknowledge(nak, 0xfff)), Said::Nak(NakCode::InvalidRequest, -1));
        let rnr = Syndrome::RnrNak { timer: RnrTimer::from_wire(14) };
        assert_eq!(read(&acknowledge(rnr, 0x1000)), Said::Rnr(0, 14));
        let send = from_peer(Opcode::RC_SEND_ONLY, 0x2001, Ext::default(), |_| {});
        assert_eq!(read(&send), Said::Request(Opcode::RC_SEND_ONLY, 1, 0));
    }

    #[test]
    fn a_packet_that_no_device_may_send_is_a_deviation() {
        let why = |bytes: &[u8]| Seen::read(&net(), bytes, &PSNS).unwrap_err();
        let mut damaged = acknowledge(Syndrome::ACK, 0x1000);
        damaged[13] ^= 1;
        assert_eq!(why(&damaged), "the ICRC of its ACKNOWLEDGE is wrong");
        assert!(why(&damaged[..11]).starts_with("a packet of 11 B is malformed"));
        let pkey = |bth: &mut Bth| bth.pkey = rxe_core::types::Pkey::new(0x8001);
        let other = from_peer(Opcode::RC_SEND_ONLY, 0x2000, Ext::default(), pkey);
        assert!(why(&other).contains("P_Key of its SEND ONLY is 0x8001"));
    }

    #[test]
    fn every_difference_is_one() {
        let ack = Said::Ack(0);
        let differs = |got: Option<&Said>| difference(&ack, got, "2 s");
        assert_eq!(differs(Some(&Said::Ack(0))), None);
        let nak = Said::Nak(NakCode::PsnSequenceError, 0);
        assert_eq!(
            differs(Some(&nak)).unwrap(),
            "ACK +0 was expected, NAK PSN sequence error +0 came"
        );
        assert_eq!(differs(None).unwrap(), "ACK +0 was expected, nothing came within 2 s");
        for other in [
            Said::Ack(1),
            Said::Rnr(0, 14),
            Said::Read(Position::Only, 0, 8),
            Said::Atomic(0, 1),
            Said::Other(Opcode::RC_ACKNOWLEDGE, 0),
        ] {
            assert!(differs(Some(&other)).is_some(), "{other}");
        }
        assert!(difference(&Said::Rnr(0, 14), Some(&Said::Rnr(0, 13)), "").is_some());
    }
}

//! What comes from the peer of a queue pair, as far as somebody who made the other packets by hand wants to
//! know: answers and requests with PSNs that count from the first, and how two of them differ.

use std::fmt;

use rxe_core::types::{Pkey, Psn, RnrTimer};
use rxe_core::wire::{
    Ext, NakCode, NetHeader, OpInfo, OpKind, Opcode, Packet, Position, Syndrome, icrc,
};

use crate::words;

/// A packet of the peer, as far as a rule is about it. PSNs of answers count from the first PSN that the
/// peer expects, those of requests from the first that it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A positive acknowledgement.
    Ack(i32),
    /// A NAK with this code.
    Nak(NakCode, i32),
    /// "Receiver not ready", with its timer code.
    Rnr(i32, u8),
    /// READ data, with its length.
    Read(Position, i32, usize),
    /// The answer to an atomic, with the value that it found.
    Atomic(i32, u64),
    /// A request, with the length of its payload.
    Request(Opcode, i32, usize),
    /// An ACKNOWLEDGE with a syndrome that is reserved, or another packet that is no request.
    Other(Opcode, i32),
}

/// The whole packet.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What it says.
    pub said: Said,
    /// Its opcode.
    pub opcode: Opcode,
    /// Its extension headers.
    pub ext: Ext,
    /// Whether it asks for an acknowledgement.
    pub ack_req: bool,
    /// Its payload, without the pad.
    pub payload: Vec<u8>,
}

/// What the PSNs of a peer's packets count from.
#[derive(Clone, Copy, Debug)]
pub struct FirstPsns {
    /// The first PSN that the peer sends.
    pub requests: Psn,
    /// The first PSN that the peer expects.
    pub answers: Psn,
}

impl Seen {
    /// Reads a packet, from BTH to ICRC.
    ///
    /// # Errors
    /// What no device may send: its structure, ICRC or P_Key is wrong.
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

    /// The MSN of its AETH.
    pub fn msn(&self) -> Option<u32> {
        self.ext.aeth.map(|aeth| aeth.msn)
    }
}

impl Said {
    /// What a packet says that has these headers and so many bytes of payload.
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

    /// A SEND of 8 bytes.
    pub fn send_only(psn: i32) -> Self {
        Self::Request(Opcode::RC_SEND_ONLY, psn, 8)
    }

    /// The request of a READ.
    pub fn read_request(psn: i32) -> Self {
        Self::Request(Opcode::RC_READ_REQUEST, psn, 0)
    }

    /// The PSN of the request that this answers; `None` of what is no answer.
    pub fn answered(&self) -> Option<i32> {
        match self {
            Self::Ack(psn) | Self::Nak(_, psn) | Self::Rnr(psn, _) => Some(*psn),
            Self::Read(_, psn, _) | Self::Atomic(psn, _) => Some(*psn),
            Self::Request(..) | Self::Other(..) => None,
        }
    }
}

/// How what came differs from what was expected, in words.
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

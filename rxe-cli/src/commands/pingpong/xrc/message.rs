//! The address message of ibv_xsrq_pingpong: 66 bytes, text and a NUL.
//! The text is `LID:QPN:QPN:PSN:SRQN:GID` in hex, with 4, 6, 6, 6, 6 and 32 digits. The first QPN
//! is the target's. The second QPN and the PSN are the initiator's.

use std::fmt;
use std::io::{Read, Write};

use rxe_core::types::{Gid, Psn, Qpn};

use super::super::exchange::{self, Address, hex, unhex};
use super::super::in6;
use super::super::transport::Transport;
use crate::common::{Error, rendezvous};

/// The address that one side sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The InfiniBand LID; 0 on Ethernet.
    pub(super) lid: u16,
    /// The target, which receives messages to this side.
    pub(super) recv_qpn: Qpn,
    /// The initiator, which sends messages of this side.
    pub(super) send_qpn: Qpn,
    pub(super) psn: Psn,
    /// The shared receive queue that messages to this side must name.
    pub(super) srqn: u32,
    pub(super) gid: Gid,
}

const LEN: usize = 66;
/// The length in bytes of a message of the other services.
const OTHER: usize = 52;

impl Destination {
    pub(super) fn send(self, stream: &mut impl Write) -> Result<(), Error> {
        // The peer reads the message with one call, so it is written with one.
        stream.write_all(&self.to_message()).map_err(|e| rendezvous::broken(&e))
    }

    pub(super) fn receive(stream: &mut impl Read) -> Result<Self, Error> {
        let mut message = [0; LEN];
        exchange::read_text(stream, &mut message[..OTHER])?;
        if let Some(other) = Address::of_other(&message[..OTHER]) {
            return Err(exchange::other_service(Transport::Xrc, other));
        }
        exchange::read_text(stream, &mut message[OTHER..])?;
        Self::from_message(&message).ok_or_else(|| exchange::stranger(&message))
    }

    fn to_message(self) -> [u8; LEN] {
        let Self { lid, recv_qpn, send_qpn, psn, srqn, gid } = self;
        let text = format!(
            "{lid:04x}:{:06x}:{:06x}:{:06x}:{srqn:06x}:{}",
            recv_qpn.value(),
            send_qpn.value(),
            psn.value(),
            hex(gid)
        );
        let mut message = [0; LEN];
        message.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        message
    }

    fn from_message(message: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?.split('\0').next()?;
        let mut parts = text.split(':');
        let mut number = || u32::from_str_radix(parts.next()?.trim(), 16).ok();
        Some(Self {
            lid: u16::try_from(number()?).ok()?,
            recv_qpn: Qpn::new(number()?)?,
            send_qpn: Qpn::new(number()?)?,
            psn: Psn::new(number()?),
            srqn: number()?,
            gid: unhex(parts.next()?)?,
        })
    }
}

/// Formats the address like ibv_xsrq_pingpong.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, recv_qpn, send_qpn, psn, srqn, gid } = self;
        write!(
            f,
            "LID {lid:04x}, QPN RECV {:06x} SEND {:06x}, PSN {:06x}, SRQN {srqn:06x}, GID {}",
            recv_qpn.value(),
            send_qpn.value(),
            psn.value(),
            in6(*gid)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &[u8; LEN] =
        b"0000:000011:000012:0a0b0c:000003:00000000000000000000ffff0a000001\0";

    fn destination() -> Destination {
        Destination {
            lid: 0,
            recv_qpn: Qpn::new(0x11).unwrap(),
            send_qpn: Qpn::new(0x12).unwrap(),
            psn: Psn::new(0x0a_0b0c),
            srqn: 3,
            gid: Gid::from("10.0.0.1".parse::<std::net::IpAddr>().unwrap()),
        }
    }

    #[test]
    fn a_message_is_what_ibv_xsrq_pingpong_writes() {
        let mut bytes = Vec::new();
        destination().send(&mut bytes).unwrap();
        assert_eq!(bytes, MESSAGE);
        assert_eq!(Destination::receive(&mut &MESSAGE[..]).unwrap(), destination());
        assert_eq!(
            destination().to_string(),
            "LID 0000, QPN RECV 000011 SEND 000012, PSN 0a0b0c, SRQN 000003, GID ::ffff:10.0.0.1"
        );
    }

    #[test]
    fn another_service_is_named_and_a_stranger_too() {
        let error = |said: &[u8]| Destination::receive(&mut &said[..]).unwrap_err().to_string();
        let uc = b"0X00:000011:0a0b0c:00000000000000000000ffff0a000001\0";
        assert!(error(uc).starts_with("this side runs --transport xrc, the peer --transport uc"));
        let c = b"0000:000011:0a0b0c:00000000000000000000ffff0a000001\0";
        assert!(error(c).contains("--transport rc"), "{}", error(c));
        assert!(error(b"SSH-2.0").starts_with("the peer speaks something else"));
        assert!(error(&MESSAGE[..60]).starts_with("the peer"));
        assert!(error(b"").starts_with("the peer hung up"));
    }
}

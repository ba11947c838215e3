//! Acknowledge extended transport header. IBTA 9.3.5 and 9.7.5.2.

use super::bytes::u32_at;
use super::header_len::AETH as LEN;
use crate::types::RnrTimer;

/// An AETH as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The meaning of the acknowledgement.
    pub syndrome: Syndrome,
    /// The message sequence number, 24 bits: the number of messages that the responder has
    /// completed.
    pub msn: u32,
}

/// The 8 bits that state the meaning of an acknowledgement. Bytes and values correspond one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// A positive acknowledgement of all packets up to the PSN.
    Ack {
        /// The end-to-end flow control credits, encoded in 5 bits. [`Syndrome::NO_CREDITS`] means
        /// that there is no flow control. ConnectX sends 0, which means no limit.
        credits: u8,
    },
    /// An RNR NAK: no receive was posted for this message.
    RnrNak {
        /// The time after which the requester may try again.
        timer: RnrTimer,
    },
    /// A NAK: the request is refused.
    Nak(NakCode),
    /// A value that the specification reserves, as the whole byte.
    Reserved(u8),
}

/// The reason why a request is refused. IBTA 9.7.5.2.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A PSN was skipped; the NAK carries the expected PSN.
    PsnSequenceError = 0,
    /// The responder does not support or expect the request.
    InvalidRequest = 1,
    /// The request has no right to access the memory.
    RemoteAccessError = 2,
    /// The responder cannot continue.
    RemoteOperationalError = 3,
    /// An invalid RD request (RD only).
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// The credit code for "no flow control". IBTA 9.7.7.2.
    pub const NO_CREDITS: u8 = 0x1f;
    /// A positive acknowledgement without flow control, as kernel `rdma_rxe` sends it.
    pub const ACK: Self = Self::Ack { credits: Self::NO_CREDITS };

    /// Decodes a byte: bit 7 is reserved, bits 6 and 5 are the kind, the rest is its value.
    #[inline]
    pub fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::RnrNak { timer: RnrTimer::from_wire(value) },
            0b011 => NakCode::from_code(value).map_or(Self::Reserved(byte), Self::Nak),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the encoded byte.
    #[inline]
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

impl NakCode {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::PsnSequenceError,
        Self::InvalidRequest,
        Self::RemoteAccessError,
        Self::RemoteOperationalError,
        Self::InvalidRdRequest,
    ];

    /// Returns the reason with this code, or `None` if the code is reserved.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

impl Aeth {
    /// Creates a positive acknowledgement without flow control.
    pub const fn ack(msn: u32) -> Self {
        Self { syndrome: Syndrome::ACK, msn }
    }

    /// Parses every field.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        Self { syndrome: Syndrome::from_byte(bytes[0]), msn: u32_at(bytes, 0) & 0xff_ffff }
    }

    /// Returns the encoded header. The MSN is truncated to 24 bits.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        (u32::from(self.syndrome.to_byte()) << 24 | self.msn & 0xff_ffff).to_be_bytes()
    }
}

impl Default for Aeth {
    fn default() -> Self {
        Self::ack(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_comes_back() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndromes_read_as_the_specification_says() {
        let rnr = Syndrome::RnrNak { timer: RnrTimer::new(12).unwrap() };
        for (byte, want) in [
            (0x00, Syndrome::Ack { credits: 0 }),
            (0x1f, Syndrome::ACK),
            (0x2c, rnr),
            (0x60, Syndrome::Nak(NakCode::PsnSequenceError)),
            (0x61, Syndrome::Nak(NakCode::InvalidRequest)),
            (0x62, Syndrome::Nak(NakCode::RemoteAccessError)),
            (0x63, Syndrome::Nak(NakCode::RemoteOperationalError)),
            (0x64, Syndrome::Nak(NakCode::InvalidRdRequest)),
            (0x65, Syndrome::Reserved(0x65)),
            (0x40, Syndrome::Reserved(0x40)),
            (0x80, Syndrome::Reserved(0x80)),
        ] {
            assert_eq!(Syndrome::from_byte(byte), want, "0x{byte:02x}");
        }
    }

    #[test]
    fn the_msn_has_the_low_24_bits() {
        let bytes = [0x60, 0xab, 0xcd, 0xef];
        let aeth = Aeth::parse(&bytes);
        assert_eq!(aeth.msn, 0xab_cdef);
        assert_eq!(aeth.emit(), bytes);
    }
}

use std::fmt;

/// A queue pair number: 24 bits. IBTA 9.2.2 (BTH), 3.5.4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP0, subnet management: it does not exist in RoCE, a packet to it is dropped.
    pub const SMI: Self = Self(0);
    /// QP1, the general services interface: management datagrams, those of the CM among them.
    pub const GSI: Self = Self(1);
    /// The destination of every multicast packet.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The queue pair number `value`; `None` if it needs more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= 0xff_ffff { Some(Self(value)) } else { None }
    }

    /// The low 24 bits of a word read from the wire.
    pub const fn from_wire(word: u32) -> Self {
        Self(word & 0xff_ffff)
    }

    /// The high 8 bits of the number. Processes that share an address have QPNs in blocks of their
    /// own, told apart by these bits.
    pub const fn block(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// The number, below 2²⁴.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_more_than_24_bits_are_refused_but_masked_from_the_wire() {
        assert_eq!(Qpn::new(0x1_000_000), None);
        assert_eq!(Qpn::new(0xff_ffff), Some(Qpn::MULTICAST));
        assert_eq!(Qpn::from_wire(0xab00_0001), Qpn::GSI);
    }
}

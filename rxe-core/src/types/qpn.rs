use std::fmt;

/// A queue pair number: 24 bits. IBTA 9.2.2 (BTH), 3.5.4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP0, subnet management. It does not exist in RoCE; packets to it are dropped.
    pub const SMI: Self = Self(0);
    /// QP1, the general services interface. It receives management datagrams, including those of
    /// the CM.
    pub const GSI: Self = Self(1);
    /// The destination QPN of every multicast packet.
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// Creates the QPN `value`. Returns `None` if it needs more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= 0xff_ffff { Some(Self(value)) } else { None }
    }

    /// Creates a QPN from the low 24 bits of a word of a packet.
    pub const fn from_wire(word: u32) -> Self {
        Self(word & 0xff_ffff)
    }

    /// Returns the high 8 bits of the number. Processes that share an address own disjoint ranges
    /// of QPNs, identified by these bits.
    pub const fn block(self) -> u8 {
        self.0.to_be_bytes()[1]
    }

    /// Returns the number, below 2²⁴.
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

use std::fmt;

/// A path MTU: the maximum payload of a packet. IBTA 9.7 and 11.2.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes: the largest that fits an Ethernet MTU of 1500.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// All path MTUs, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// The header bytes that kernel `rdma_rxe` subtracts from a link's MTU. They are for IP, UDP,
    /// BTH, extension headers and ICRC.
    const OVERHEAD: u32 = 80;

    /// Returns the payload size in bytes.
    pub const fn bytes(self) -> usize {
        128 << self.to_verbs()
    }

    /// Returns the path MTU of exactly this many bytes.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Returns the encoding of `enum ibv_mtu` and of CM messages: 1 for 256 bytes to 5 for 4096.
    pub const fn to_verbs(self) -> u8 {
        self as u8
    }

    /// Returns the path MTU encoded as 1 to 5.
    pub fn from_verbs(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.to_verbs() == code)
    }

    /// Returns the largest path MTU that fits a link of MTU `netdev_mtu`. The MTU of a link
    /// includes the IP header. Returns `None` if even 256 bytes do not fit.
    pub fn largest_for_link(netdev_mtu: u32) -> Option<Self> {
        let room = netdev_mtu.checked_sub(Self::OVERHEAD)? as usize;
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
    }
}

/// Formats the size in bytes.
impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_come_back() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_verbs(code).unwrap();
            assert_eq!((mtu.to_verbs(), mtu.bytes()), (code, bytes));
            assert_eq!(Mtu::from_bytes(bytes), Some(mtu));
        }
        assert_eq!((Mtu::from_verbs(0), Mtu::from_verbs(6)), (None, None));
        assert_eq!(Mtu::from_bytes(1500), None);
    }

    #[test]
    fn a_link_gets_what_fits_with_headers() {
        for (link, want) in [
            (0, None),
            (335, None),
            (336, Some(Mtu::M256)),
            (1500, Some(Mtu::M1024)),
            (4175, Some(Mtu::M2048)),
            (4176, Some(Mtu::M4096)),
            (65536, Some(Mtu::M4096)),
        ] {
            assert_eq!(Mtu::largest_for_link(link), want, "link MTU {link}");
        }
    }
}

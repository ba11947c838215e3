use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier: in RoCEv2, an IPv6 address, or an IPv4 address mapped into one
/// (`::ffff:a.b.c.d`), in 16 bytes. IBTA annex A17.4.4.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// All zero: an empty entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// Creates a GID from its bytes, in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes, in network order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns whether this is an empty entry of a GID table.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns the IP address of this GID: IPv4 if it is a mapped address.
    pub fn to_ip(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

/// Formats a GID as the kernel prints it in sysfs: eight groups of four digits, without
/// abbreviation.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_mapped_and_comes_back() {
        let ip: IpAddr = "192.168.1.2".parse().unwrap();
        let gid = Gid::from(ip);
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:c0a8:0102");
        assert_eq!(gid.to_ip(), ip);
    }
}

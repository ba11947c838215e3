use std::fmt;

/// A local or remote key: names a memory region or window. IBTA 10.6.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub u32);

impl Key {
    /// The key `value`.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// A queue key: what a datagram must carry to be let into a UD queue pair. IBTA 3.5.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The Q_Key of QP1. IBTA 10.2.5 fixes it.
    pub const GSI: Self = Self(0x8001_0000);

    /// The key `value`.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Whether only privileged code may put it into a send request: its top bit is set.
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// A partition key: 15 bits of partition, and a top bit for full membership. IBTA 10.9.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition, as a full member: what every RoCE device has.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL: u16 = 0x8000;

    /// The key `value`.
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The number.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Whether two ends may talk: the same partition, and at least one of them a full member. IBTA
    /// 10.9.3.
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::FULL == 0 && (self.0 | other.0) & Self::FULL != 0
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Prints a newtype in hex, at its full width, alone and in its constructor's clothes.
macro_rules! hex {
    ($($name:ident $width:literal),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("0x{:0", $width, "x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    )*};
}

hex!(Key "8", Qkey "8", Pkey "4");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_limited_members_do_not_match() {
        let (full, limited) = (Pkey(0x8123), Pkey(0x0123));
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(Pkey(0x8124)));
    }

    #[test]
    fn keys_print_in_hex() {
        assert_eq!(Key(0x1ff).to_string(), "0x000001ff");
        assert_eq!(format!("{:?}", Pkey::DEFAULT), "Pkey(0xffff)");
    }
}

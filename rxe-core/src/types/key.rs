use std::fmt;

/// A local or remote key, which names a memory region or window. IBTA 10.6.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub u32);

impl Key {
    /// Creates the key `value`.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Returns the number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// A queue key. A UD queue pair accepts only datagrams that carry its Q_Key. IBTA 3.5.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The Q_Key of QP1, a constant of IBTA 10.2.5.
    pub const GSI: Self = Self(0x8001_0000);

    /// Creates the key `value`.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Returns the number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns whether only privileged code may put this Q_Key into a send request: its top bit is
    /// set.
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// A partition key: 15 bits of partition, and a top bit for full membership. IBTA 10.9.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition with full membership. Every RoCE device has this key.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL: u16 = 0x8000;

    /// Creates the key `value`.
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// Returns the number.
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Returns whether ends with these keys may communicate: both are in one partition and at least
    /// one is a full member. IBTA 10.9.3.
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::FULL == 0 && (self.0 | other.0) & Self::FULL != 0
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Implements `Display` (hexadecimal, full width) and `Debug` (with the type's name) for a newtype.
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

//! A macro that generates the parser and the emitter of a message from one table of its fields.

use crate::types::{Gid, Psn, Qkey, Qpn};

/// A value of a bit field.
pub(super) trait Field: Sized {
    /// Creates the value from the bits of its field.
    fn from_bits(bits: u64) -> Self;
    /// Returns the bits of the field.
    fn to_bits(&self) -> u64;
}

/// A value of whole bytes.
pub(super) trait Block: Sized {
    /// Reads the value from the bytes at `at`; bytes beyond the end read as zero.
    fn read(bytes: &[u8], at: usize) -> Self;
    /// Writes the value to the bytes at `at`.
    fn write(&self, bytes: &mut [u8], at: usize);
}

/// Defines a message or a part of one: its fields with byte, bit and width, and its blocks with
/// their first byte.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$fmeta:meta])* $field:ident: $t:ty [$at:literal, $bit:literal, $width:literal],)*
        }
        $({
            $($(#[$bmeta:meta])* $block:ident: $bt:ty [$bat:literal],)*
        })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $t,)*
            $($($(#[$bmeta])* pub $block: $bt,)*)?
        }

        impl Block for $name {
            fn read(bytes: &[u8], at: usize) -> Self {
                Self {
                    $($field: Field::from_bits(bits::get(bytes, at + $at, $bit, $width)),)*
                    $($($block: Block::read(bytes, at + $bat),)*)?
                }
            }

            fn write(&self, bytes: &mut [u8], at: usize) {
                $(bits::put(bytes, at + $at, $bit, $width, Field::to_bits(&self.$field));)*
                $($(Block::write(&self.$block, bytes, at + $bat);)*)?
            }
        }

        /// Creates a message whose fields are all zero.
        impl Default for $name {
            fn default() -> Self {
                Self::read(&[], 0)
            }
        }
    };
}

pub(super) use layout;

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Field for $t {
            fn from_bits(bits: u64) -> Self {
                // No field is wider than its type, so the conversion never fails.
                Self::try_from(bits).unwrap_or(Self::MAX)
            }
            fn to_bits(&self) -> u64 {
                u64::from(*self)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl Field for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
    fn to_bits(&self) -> u64 {
        u64::from(*self)
    }
}

impl Field for Qpn {
    fn from_bits(bits: u64) -> Self {
        Self::from_wire(u32::from_bits(bits))
    }
    fn to_bits(&self) -> u64 {
        u64::from(self.value())
    }
}

impl Field for Psn {
    fn from_bits(bits: u64) -> Self {
        Self::new(u32::from_bits(bits))
    }
    fn to_bits(&self) -> u64 {
        u64::from(self.value())
    }
}

impl Field for Qkey {
    fn from_bits(bits: u64) -> Self {
        Self(u32::from_bits(bits))
    }
    fn to_bits(&self) -> u64 {
        u64::from(self.value())
    }
}

impl<const N: usize> Block for [u8; N] {
    fn read(bytes: &[u8], at: usize) -> Self {
        let mut out = [0; N];
        for (to, from) in out.iter_mut().zip(bytes.iter().skip(at)) {
            *to = *from;
        }
        out
    }
    fn write(&self, bytes: &mut [u8], at: usize) {
        for (to, from) in bytes.iter_mut().skip(at).zip(self) {
            *to = *from;
        }
    }
}

impl Block for Gid {
    fn read(bytes: &[u8], at: usize) -> Self {
        Self::from_bytes(Block::read(bytes, at))
    }
    fn write(&self, bytes: &mut [u8], at: usize) {
        self.as_bytes().write(bytes, at);
    }
}

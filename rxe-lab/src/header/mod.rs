//! Tables of the fields of each header: name, position and format.
//! Code that prints every field of a packet, as text or JSON, reads these tables.
//!
//! The names are those of the specifications: IBTA chapters 5, 8 and 9 and annexes A14, A17 and A19
//! for the transport, IBTA chapters 12 and 13 and annex A11 for management, IEEE 802.3 and 802.1Q,
//! RFC 791, 8200 and 768. `tunnel` lists those of tunnels.

mod cm;
mod link;
mod net;
mod transport;
mod tunnel;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use cm::{IP_CM, IP_CM_V6, IP_SERVICE, MAD, SERVICE_ID, cm, private_data_of_request};
pub use link::{ERF, ERF_EXTENSION, ETHERNET, LOOPBACK, LRH, SLL, SLL2, VLAN};
pub use net::{GRH, IPV4, IPV4_OPTIONS, IPV6, IPV6_EXTENSION, IPV6_FRAGMENT, UDP};
pub use transport::{
    AETH, ATOMIC_ACK_ETH, ATOMIC_ETH, BTH, CNP, DETH, FETH, ICRC, IETH, IMM_DT, PAYLOAD, RETH,
    XRCETH,
};
pub use tunnel::{
    CISCO_HDLC, CONTROL_WORD, ERSPAN_II, ERSPAN_III, ERSPAN_PLATFORM, GENEVE, GENEVE_OPTION, GRE,
    GRE_ACKNOWLEDGMENT, GRE_CALL, GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE, GTP, GTP_EXTENSION,
    GTP_OPTIONAL, I_TAG, MPLS, NSH, NSH_CONTEXT, NVGRE, PPP, PPP_COMPRESSED, PPP_DIRECTION,
    PPP_FRAMING, PPPOE, RADIOTAP, SNAP, VXLAN, VXLAN_GPE, WIFI, WIFI_ADDRESS, WIFI_HT, WIFI_QOS,
};

/// The names of the fields that number a virtual network: in VXLAN and GENEVE, and in NVGRE.
pub const NETWORK_IDS: &[&str] = &["VNI", "VSID"];

/// The name of the field that numbers a session: in ERSPAN and PPPoE.
pub const SESSION_IDS: &[&str] = &["SessionID"];

/// A kind of header.
#[derive(Debug)]
pub struct Header {
    /// The name of the header.
    pub name: &'static str,
    /// The length in bytes; 0 if the length varies.
    pub len: usize,
    /// The fields, in their order in the header.
    pub fields: &'static [Field],
}

/// A field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name of the field, without spaces.
    pub name: &'static str,
    /// The byte of the header in which the field begins.
    pub byte: usize,
    /// The bit of that byte at which the field begins; 0 is the most significant.
    pub bit: usize,
    /// The width in bits; 0 means up to the end of the header.
    pub width: usize,
    /// The format in which the field is printed.
    pub form: Form,
}

/// The format in which a field is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A decimal number.
    Dec,
    /// A hexadecimal number with all its digits.
    Hex,
    /// A hexadecimal number of whole bytes, of which the least significant is first.
    Little,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address or GID.
    Ipv6,
    /// An Ethernet address.
    Mac,
    /// Hexadecimal bytes.
    Bytes,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number and its width in bits.
    Number(u64, usize),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// An IPv6 address or GID.
    Ipv6(Ipv6Addr),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// The position of a header in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The kind of header.
    pub header: &'static Header,
    /// The offset of the header in the frame.
    pub at: usize,
    /// The length of the header in bytes.
    pub len: usize,
}

impl Layer {
    /// Creates a layer of a fixed-length header at offset `at`.
    pub fn new(header: &'static Header, at: usize) -> Self {
        Self { header, at, len: header.len }
    }

    /// Returns the fields with their values, as far as the frame was captured.
    pub fn fields<'a>(
        &self,
        frame: &'a [u8],
    ) -> impl Iterator<Item = (&'static Field, Value<'a>)> + use<'a> {
        let to = frame.len().min(self.at + self.len);
        let bytes = frame.get(self.at..to).unwrap_or_default();
        self.header.fields.iter().filter_map(move |field| Some((field, field.value(bytes)?)))
    }

    /// Returns the number in the field that has one of these names.
    /// `None` if the header has no such field, or it was not captured.
    pub fn number(&self, names: &[&str], frame: &[u8]) -> Option<u64> {
        self.header.number(names, frame.get(self.at..)?)
    }
}

impl Header {
    /// Returns the number in the field that has one of these names, from the bytes of the header.
    /// `None` if there is no such field, or the bytes end before it.
    pub fn number(&self, names: &[&str], bytes: &[u8]) -> Option<u64> {
        let field = self.fields.iter().find(|field| names.contains(&field.name))?;
        match field.value(bytes)? {
            Value::Number(n, _) => Some(n),
            _ => None,
        }
    }
}

impl Field {
    /// Returns the value of the field in these bytes of its header.
    /// `None` if the field was not captured whole. A field that extends to the end of its header needs
    /// only one captured byte.
    pub fn value<'a>(&self, header: &'a [u8]) -> Option<Value<'a>> {
        let rest = header.get(self.byte..)?;
        if self.width == 0 {
            return (!rest.is_empty()).then_some(Value::Bytes(rest));
        }
        let bytes = rest.get(..(self.bit + self.width).div_ceil(8))?;
        Some(match self.form {
            Form::Ipv4 => Value::Ipv4(<[u8; 4]>::try_from(bytes).ok()?.into()),
            Form::Ipv6 => Value::Ipv6(<[u8; 16]>::try_from(bytes).ok()?.into()),
            Form::Mac | Form::Bytes => Value::Bytes(bytes),
            Form::Little => {
                let value = bytes.iter().rfold(0u64, |value, b| value << 8 | u64::from(*b));
                Value::Number(value, self.width)
            }
            Form::Dec | Form::Hex => {
                // At most 64 bits in at most 8 bytes: no 64-bit field begins within a byte.
                let all = bytes.iter().fold(0u64, |value, b| value << 8 | u64::from(*b));
                let value = all >> (bytes.len() * 8 - self.bit - self.width);
                Value::Number(value & (u64::MAX >> (64 - self.width)), self.width)
            }
        })
    }
}

/// Defines a header table: for each field its byte, bit, width and format.
macro_rules! header {
    (
        $(#[$meta:meta])*
        $vis:vis $id:ident $name:literal, $len:literal;
        $($field:literal [$byte:literal, $bit:literal, $width:literal] $form:ident,)*
    ) => {
        $(#[$meta])*
        $vis static $id: $crate::header::Header = $crate::header::Header {
            name: $name,
            len: $len,
            fields: &[$($crate::header::Field {
                name: $field,
                byte: $byte,
                bit: $bit,
                width: $width,
                form: $crate::header::Form::$form,
            }),*],
        };
    };
}

use header;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_header_belong_to_its_fields_once_each() {
        let all = [
            &ETHERNET,
            &VLAN,
            &SLL,
            &SLL2,
            &LOOPBACK,
            &ERF,
            &LRH,
            &IPV4,
            &IPV6,
            &GRH,
            &UDP,
            &BTH,
            &DETH,
            &RETH,
            &ATOMIC_ETH,
            &AETH,
            &ATOMIC_ACK_ETH,
            &IMM_DT,
            &IETH,
            &XRCETH,
            &FETH,
            &CNP,
            &ICRC,
            &MAD,
            &IP_SERVICE,
            &IP_CM,
            &IP_CM_V6,
            &VXLAN,
            &VXLAN_GPE,
            &GENEVE,
            &GTP,
            &GTP_OPTIONAL,
            &GRE,
            &GRE_CHECKSUM,
            &GRE_KEY,
            &NVGRE,
            &GRE_CALL,
            &GRE_SEQUENCE,
            &GRE_ACKNOWLEDGMENT,
            &ERSPAN_II,
            &ERSPAN_III,
            &ERSPAN_PLATFORM,
            &MPLS,
            &CONTROL_WORD,
            &NSH,
            &I_TAG,
            &PPPOE,
            &PPP_DIRECTION,
            &PPP_FRAMING,
            &PPP,
            &PPP_COMPRESSED,
            &CISCO_HDLC,
            &SNAP,
            &WIFI,
            &WIFI_ADDRESS,
            &WIFI_QOS,
            &WIFI_HT,
        ];
        let messages = (0x10..=0x1a).map(|id| cm(id).unwrap());
        for header in all.into_iter().chain(messages) {
            let mut at = 0;
            for field in header.fields {
                assert_eq!(field.byte * 8 + field.bit, at, "{}: {}", header.name, field.name);
                assert!(!field.name.contains(' ') && field.bit < 8, "{}", field.name);
                at += if field.width == 0 { header.len * 8 - at } else { field.width };
            }
            assert_eq!(at, header.len * 8, "{}", header.name);
            let mut names: Vec<_> = header.fields.iter().map(|f| f.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), header.fields.len(), "{}: a name twice", header.name);
        }
    }

    #[test]
    fn fields_that_are_cut_have_no_value() {
        let bytes = [0x04, 0xf0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0x89, 0xab, 0xcd];
        let of = |len: usize| {
            let layer = Layer::new(&BTH, 0);
            layer.fields(&bytes[..len]).map(|(f, v)| (f.name, v)).collect::<Vec<_>>()
        };
        let whole = of(12);
        assert!(whole.contains(&("DestQP", Value::Number(0x12_3456, 24))), "{whole:?}");
        assert!(whole.contains(&("PSN", Value::Number(0x89_abcd, 24))));
        assert!(whole.contains(&("Pad", Value::Number(3, 2))) && whole.len() == BTH.fields.len());
        assert!(of(11).iter().all(|(name, _)| *name != "PSN"), "it ends in the PSN");
        assert_eq!(of(0), []);
        let private = cm(0x10).unwrap().fields.last().unwrap();
        assert_eq!(private.value(&[0; 140]), None);
        assert_eq!(private.value(&[0; 141]), Some(Value::Bytes(&[0])));
    }
}

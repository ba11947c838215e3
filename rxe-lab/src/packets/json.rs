//! Packets as JSON, one object per line.
//! The fields of each header are an object under the header's name. Numbers of more than 53 bits,
//! which JavaScript cannot represent, are hexadecimal strings.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::Shown;
use crate::frame::Content;
use crate::header::{Field, Form, Layer, Value};
use crate::words;

/// Writes a packet as a line of JSON. With `verbose` it has offsets and the payload.
///
/// # Errors
/// Fails if `out` does.
pub fn write_json(out: &mut impl Write, shown: &Shown<'_>, verbose: bool) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Packet { shown, verbose })?;
    out.write_all(b"\n")
}

struct Packet<'a> {
    shown: &'a Shown<'a>,
    verbose: bool,
}

impl Serialize for Packet<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Shown { record, frame, packet, mark, since } = self.shown;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("frame", &record.number)?;
        if let Some((index, count)) = packet.and_then(|packet| packet.segment) {
            map.serialize_entry("segment", &index)?;
            map.serialize_entry("segments", &count)?;
        }
        if let Some(at) = record.at {
            let time = format!("{}.{:09}", at.as_secs(), at.subsec_nanos());
            map.serialize_entry("time", &time)?;
            map.serialize_entry("relative", &since.as_secs_f64())?;
        }
        map.serialize_entry("interface", &record.interface)?;
        map.serialize_entry("length", &record.original_len)?;
        map.serialize_entry("captured", &record.bytes.len())?;
        if let Some((src, dst)) = frame.ends {
            map.serialize_entry("source", &src.to_string())?;
            map.serialize_entry("destination", &dst.to_string())?;
        }
        if let Content::Malformed(why) = frame.content {
            map.serialize_entry("malformed", why)?;
        }
        if let Some(packet) = packet {
            map.serialize_entry("opcode", &packet.bth.opcode.to_string())?;
            map.serialize_entry("payload", &packet.payload_len)?;
            map.serialize_entry("icrc", &words::icrc(packet.icrc))?;
            if let Some(aeth) = packet.ext.aeth {
                map.serialize_entry("syndrome", &words::syndrome(aeth.syndrome))?;
            }
            if let Some(message) = packet.cm_message() {
                map.serialize_entry("message", message.name())?;
            }
            if let Some(wrong) = packet.wrong {
                map.serialize_entry("malformed", wrong.name())?;
            }
        }
        if let Some(mark) = mark {
            map.serialize_entry("analysis", &mark.to_string())?;
        }
        if !record.comments.is_empty() {
            map.serialize_entry("comments", &record.comments)?;
        }
        let layers: Vec<_> = frame
            .layers
            .iter()
            .chain(packet.map(|packet| &packet.layers).into_iter().flatten())
            .filter(|layer| self.verbose || layer.header.name != "Payload")
            .collect();
        let names = names(&layers);
        for (name, layer) in names.iter().zip(&layers) {
            map.serialize_entry(name, &Fields { layer, bytes: record.bytes })?;
        }
        if self.verbose {
            let offsets: Vec<_> = names.into_iter().zip(layers.iter().map(|it| it.at)).collect();
            map.serialize_entry("offsets", &Offsets(&offsets))?;
        }
        map.end()
    }
}

/// Returns the names of headers. The second of its kind is numbered, as in `VLAN2`, and in `IPv4_2`
/// because the name ends with a digit.
fn names(layers: &[&Layer]) -> Vec<String> {
    let mut counts = HashMap::new();
    let name = |layer: &&Layer| {
        let name = layer.header.name;
        let count = counts.entry(name).or_insert(0);
        *count += 1;
        let between = if name.ends_with(|c: char| c.is_ascii_digit()) { "_" } else { "" };
        if *count == 1 { name.into() } else { format!("{name}{between}{count}") }
    };
    layers.iter().map(name).collect()
}

struct Offsets<'a>(&'a [(String, usize)]);

impl Serialize for Offsets<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, at)| (name, at)))
    }
}

struct Fields<'a> {
    layer: &'a Layer,
    bytes: &'a [u8],
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.layer.fields(self.bytes);
        serializer.collect_map(fields.map(|(field, value)| (field.name, Shape { field, value })))
    }
}

struct Shape<'a> {
    field: &'a Field,
    value: Value<'a>,
}

impl Serialize for Shape<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Number(n, bits) if bits > 53 => {
                serializer.collect_str(&format_args!("0x{n:016x}"))
            }
            Value::Number(n, _) => serializer.serialize_u64(n),
            Value::Ipv4(ip) => serializer.collect_str(&ip),
            Value::Ipv6(ip) => serializer.collect_str(&ip),
            Value::Bytes(bytes) => {
                let between = if self.field.form == Form::Mac { ":" } else { "" };
                let digits: Vec<_> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                serializer.serialize_str(&digits.join(between))
            }
        }
    }
}

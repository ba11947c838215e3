//! The values of fields as text.

use std::fmt::Write as _;

use super::Shown;
use crate::header::{Field, Form, Layer, Value};
use crate::words;

/// The most bytes of a field that are shown.
const MAX_BYTES: usize = 32;

/// Formats the value of a field, with its meaning in words if it has one.
pub fn field_text(shown: &Shown<'_>, layer: &Layer, field: &Field, value: Value<'_>) -> String {
    let text = format_value(field, value);
    let Some(packet) = shown.packet else { return text };
    let meaning = match (layer.header.name, field.name) {
        ("BTH", "OpCode") => packet.bth.opcode.to_string(),
        ("AETH", "Syndrome") => match packet.ext.aeth {
            Some(aeth) => words::syndrome(aeth.syndrome),
            None => return text,
        },
        ("ICRC", "ICRC") => words::icrc(packet.icrc),
        _ => return text,
    };
    format!("{text} ({meaning})")
}

fn format_value(field: &Field, value: Value<'_>) -> String {
    match value {
        Value::Number(n, _) if field.form == Form::Dec => n.to_string(),
        Value::Number(n, bits) => format!("0x{n:0width$x}", width = bits.div_ceil(4)),
        Value::Ipv4(ip) => ip.to_string(),
        Value::Ipv6(ip) => ip.to_string(),
        Value::Bytes(bytes) => format_bytes(field, bytes),
    }
}

fn format_bytes(field: &Field, bytes: &[u8]) -> String {
    let between = if field.form == Form::Mac { ":" } else { "" };
    let first: Vec<_> = bytes.iter().take(MAX_BYTES).map(|b| format!("{b:02x}")).collect();
    let mut text = first.join(between);
    if bytes.len() > MAX_BYTES {
        let _ = write!(text, "… ({} bytes)", bytes.len());
    }
    text
}

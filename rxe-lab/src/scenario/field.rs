//! Writes values into header fields, by the tables of [`crate::header`].

use std::net::IpAddr;

use rxe_core::wire::Opcode;
use rxe_net::Rng;
use toml::{Spanned, Value};

use super::description::Fields;
use super::error::{Mistake, Result};
use crate::header::{Field, Form, Header};

/// The context of a packet's field values.
pub(super) struct Place<'a> {
    /// How many packets this step has built before.
    pub(super) nth: u64,
    /// The PSN that `+0` stands for.
    pub(super) psn: u32,
    pub(super) rng: &'a mut Rng,
}

/// Writes fields into the bytes of a header.
pub(super) fn write(
    header: &Header,
    bytes: &mut [u8],
    fields: &Fields,
    place: &mut Place<'_>,
) -> Result<()> {
    for (name, value) in fields {
        let Some(field) = header.fields.iter().find(|field| field.name == name.get_ref()) else {
            let names: Vec<_> = header.fields.iter().map(|field| field.name).collect();
            let (name_of, names) = (header.name, names.join(", "));
            let text = format!("{name_of} has no field `{}`: it has {names}", name.get_ref());
            return Err(Mistake::at(name, text));
        };
        match field.form {
            Form::Dec | Form::Hex => {
                let number = number(field, value, place)?;
                put(field, bytes, number);
            }
            Form::Ipv4 | Form::Ipv6 => {
                let address: Option<IpAddr> = value.get_ref().as_str().and_then(|s| s.parse().ok());
                match (field.form, address) {
                    (Form::Ipv4, Some(IpAddr::V4(ip))) => copy(field, bytes, &ip.octets()),
                    (Form::Ipv6, Some(IpAddr::V6(ip))) => copy(field, bytes, &ip.octets()),
                    _ => return Err(Mistake::at(value, "an address of this version is expected")),
                }
            }
            Form::Mac | Form::Bytes | Form::Little => {
                let all = hex(value, value.get_ref().as_str().unwrap_or("-"))?;
                let (least, most) = match field.width / 8 {
                    // A field without a width extends to the end of the header; unwritten bytes
                    // stay zero.
                    0 => (0, bytes.len() - field.byte),
                    width => (width, width),
                };
                if !(least..=most).contains(&all.len()) {
                    let text = format!("{} has {most} bytes, not {}", field.name, all.len());
                    return Err(Mistake::at(value, text));
                }
                copy(field, bytes, &all);
            }
        }
    }
    Ok(())
}

/// Writes a number into a field; bits that do not fit are dropped.
pub(super) fn put(field: &Field, bytes: &mut [u8], number: u64) {
    let end = field.bit + field.width;
    for at in 0..field.width {
        let place = end - 1 - at;
        let (byte, mask) = (field.byte + place / 8, 0x80 >> (place % 8));
        if let Some(byte) = bytes.get_mut(byte) {
            *byte = if number >> at & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
    }
}

/// Writes a number into the field with this name, if there is one.
pub(super) fn put_named(header: &Header, bytes: &mut [u8], name: &str, number: u64) {
    if let Some(field) = header.fields.iter().find(|field| field.name == name) {
        put(field, bytes, number);
    }
}

fn copy(field: &Field, bytes: &mut [u8], from: &[u8]) {
    if let Some(to) = bytes.get_mut(field.byte..field.byte + from.len()) {
        to.copy_from_slice(from);
    }
}

/// Evaluates a value as the number for a field.
fn number(field: &Field, value: &Spanned<Value>, place: &mut Place<'_>) -> Result<u64> {
    let max = u64::MAX >> (64 - field.width.clamp(1, 64));
    let fits = |number: u64| {
        let text = format!("{} has {} bits: at most {max:#x} fits", field.name, field.width);
        if number <= max { Ok(number) } else { Err(Mistake::at(value, text)) }
    };
    match value.get_ref() {
        Value::Integer(number) => {
            let negative = |_| Mistake::at(value, "a field cannot be negative");
            fits(u64::try_from(*number).map_err(negative)?)
        }
        Value::Boolean(bit) => Ok(u64::from(*bit)),
        Value::String(text) => fits(word(field, value, text, place)?),
        Value::Table(table) => {
            let get = |name: &str| table.get(name).and_then(Value::as_integer);
            let known = table.len() == 2;
            match (get("start"), get("step"), get("from"), get("to")) {
                (Some(start), Some(step), _, _) if known => {
                    let nth = place.nth.cast_signed();
                    Ok(start.wrapping_add(step.wrapping_mul(nth)).cast_unsigned() & max)
                }
                (_, _, Some(from), Some(to)) if known && 0 <= from && from < to => {
                    let span = to.cast_unsigned() - from.cast_unsigned();
                    fits(from.cast_unsigned() + place.rng.below(span.saturating_add(1)))
                }
                _ => Err(Mistake::at(
                    value,
                    "a table here is { start = 0, step = 1 }, or { from = 0, to = 9 } for a random number",
                )),
            }
        }
        _ => Err(Mistake::at(value, "a number is expected")),
    }
}

/// Evaluates a string: an opcode, a number, or a distance such as `+1` from the first PSN.
fn word(field: &Field, value: &Spanned<Value>, text: &str, place: &Place<'_>) -> Result<u64> {
    if field.name == "OpCode" {
        return opcode(value, text).map(|opcode| u64::from(opcode.0));
    }
    if field.name == "PSN"
        && let Some(distance) = text.strip_prefix(['+', '-']).and_then(|n| n.parse::<u32>().ok())
    {
        let psn = if text.starts_with('+') {
            place.psn.wrapping_add(distance)
        } else {
            place.psn.wrapping_sub(distance)
        };
        let psn = psn.wrapping_add(u32::try_from(place.nth).unwrap_or(0));
        return Ok(u64::from(psn & 0xff_ffff));
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| {
        let hint = if field.name == "PSN" { " or a distance such as \"+1\"" } else { "" };
        Mistake::at(value, format!("{} is a number{hint}, not {text:?}", field.name))
    })
}

/// Returns the opcode with this name.
pub(super) fn opcode<T>(at: &Spanned<T>, name: &str) -> Result<Opcode> {
    let same = |it: &str| it.replace('-', "_").eq_ignore_ascii_case(&name.replace('-', "_"));
    let found = Opcode::all().find(|info| same(info.name));
    found.map(|info| info.opcode).ok_or_else(|| {
        Mistake::at(
            at,
            format!("no opcode has the name {name:?}: RC_SEND_ONLY is one; or its number"),
        )
    })
}

/// Parses hexadecimal digits; spaces, colons and newlines are ignored.
pub(super) fn hex<T>(at: &Spanned<T>, text: &str) -> Result<Vec<u8>> {
    let digits: Option<Vec<u32>> =
        (text.chars()).filter(|c| !matches!(c, ' ' | ':' | '\n')).map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0);
    let digits = digits.ok_or_else(|| {
        Mistake::at(at, "bytes are written as pairs of hexadecimal digits: \"00 ff 1a\"")
    })?;
    let byte = |pair: &[u32]| u8::try_from(pair[0] << 4 | pair[1]).unwrap_or(0);
    Ok(digits.chunks_exact(2).map(byte).collect())
}

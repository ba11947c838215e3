//! Parses amounts, times, and the values of filters.

use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{OpKind, Opcode};

use super::super::rules::{FaultAmount, OpcodeFilter, PsnFilter, QpFilter};
use super::words::{FaultError, Word};

type Result<T> = std::result::Result<T, FaultError>;

/// The largest number of packets that a description may contain.
const MAX_COUNT: u64 = 1_000_000_000_000;
/// The longest delay that a description may contain.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// The longest time before an asynchronous event that a description may contain.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The names of opcode kinds. Each stands for the opcodes of all transport services.
pub const KINDS: [(&str, OpKind); 10] = [
    ("send", OpKind::Send),
    ("write", OpKind::Write),
    ("read", OpKind::ReadRequest),
    ("read_response", OpKind::ReadResponse),
    ("ack", OpKind::Acknowledge),
    ("atomic_ack", OpKind::AtomicAcknowledge),
    ("compare_swap", OpKind::CompareSwap),
    ("fetch_add", OpKind::FetchAdd),
    ("atomic_write", OpKind::AtomicWrite),
    ("flush", OpKind::Flush),
];

/// The units of time and their lengths in nanoseconds. Both Unicode characters for "micro" are
/// accepted.
pub const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// Returns whether a word is meant as a number, valid or not.
pub(super) fn begins_as_number(word: Word<'_>) -> bool {
    word.text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
}

/// Parses a percentage or a number of packets. `0` is accepted for a control run without faults.
pub(super) fn amount(word: Word<'_>) -> Result<FaultAmount> {
    let wrong = |why| Err(FaultError::new(word, why));
    if word.text == "0" {
        return Ok(FaultAmount::Share(0));
    }
    let Some(percent) = word.text.strip_suffix('%') else {
        return Ok(FaultAmount::First(count(word)?));
    };
    match decimal(percent, 10_000) {
        Some(share) if share <= u64::from(FaultAmount::MILLION) => {
            Ok(FaultAmount::Share(u32::try_from(share).unwrap_or(FaultAmount::MILLION)))
        }
        Some(_) => wrong("more than 100 %"),
        None => wrong(
            "not an amount: write a percentage with up to four decimals (0.1%), or a number of packets (3)",
        ),
    }
}

/// Parses a number of packets from 1 to `most`.
fn count_up_to(word: Word<'_>, most: u64) -> Result<u64> {
    let number = word.text.parse().ok().filter(|count| (1..=most).contains(count));
    number.ok_or_else(|| {
        let why = format!("not a count: write a whole number from 1 to {most}");
        FaultError::new(word, why)
    })
}

/// Parses a number of packets, at least 1.
///
/// # Errors
/// Fails if the word is not one.
pub fn count(word: Word<'_>) -> Result<u64> {
    count_up_to(word, MAX_COUNT)
}

/// Parses the length of a burst, or the number of packets that overtake one.
pub(super) fn small_count(word: Word<'_>) -> Result<u32> {
    let count = count_up_to(word, 1_000_000)?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Parses a delay and its jitter: `50us` or `50us±10us`, where `+-` may replace `±`. A jitter
/// without a unit has the unit of the delay.
pub(super) fn delay(word: Word<'_>) -> Result<(Duration, Duration)> {
    let parts = word.split_once("±").or_else(|| word.split_once("+-"));
    let Some((base, jitter)) = parts else { return Ok((time(word)?, Duration::ZERO)) };
    let unit = UNITS.iter().find(|(unit, _)| number_before(base.text, unit).is_some());
    let range = duration(jitter, unit.map(|(_, ns)| *ns), MAX_DELAY);
    let (base, range) = (time(base)?, range?);
    if range > base {
        return Err(FaultError::new(jitter, "longer than the delay itself"));
    }
    Ok((base, range))
}

/// Parses a delay, which must have a unit.
///
/// # Errors
/// Fails if the word is not one.
pub fn time(word: Word<'_>) -> Result<Duration> {
    duration(word, None, MAX_DELAY)
}

/// Parses the time at which an event occurs.
///
/// # Errors
/// Fails if the word is not one.
pub fn moment(word: Word<'_>) -> Result<Duration> {
    duration(word, None, MAX_WAIT)
}

/// Looks up a name in `table` and returns its value. The name may omit `prefix` and `suffix`.
/// `what` says in the error what was expected.
///
/// # Errors
/// Fails if the word is not one.
pub fn named<T: Copy>(
    word: Word<'_>,
    what: &str,
    table: &[(&str, T)],
    prefix: &str,
    suffix: &str,
) -> Result<T> {
    let short = word.text.strip_prefix(prefix).unwrap_or(word.text);
    let short = short.strip_suffix(suffix).unwrap_or(short);
    let found = table.iter().find(|(name, _)| *name == short).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|(name, _)| *name).collect();
        let whole: Vec<_> = names.iter().map(|name| format!("{prefix}{name}{suffix}")).collect();
        let list = format!("one of {}", names.join(", "));
        let names = names.into_iter().chain(whole.iter().map(String::as_str));
        FaultError::unknown(word, &format!("not {what}"), &list, names)
    })
}

/// Parses a time of at most `most`. A time without a unit is in units of `unit` nanoseconds, or an
/// error if `unit` is `None`.
fn duration(word: Word<'_>, unit: Option<u64>, most: Duration) -> Result<Duration> {
    let with_unit =
        UNITS.iter().find_map(|(unit, ns)| Some((number_before(word.text, unit)?, *ns)));
    let nanos = match (with_unit, unit) {
        (Some((number, unit)), _) => decimal(number, unit),
        (None, Some(unit)) => decimal(word.text, unit),
        (None, None) => None,
    };
    match nanos.map(Duration::from_nanos) {
        Some(time) if time <= most => Ok(time),
        Some(_) => {
            let why = format!("longer than {} seconds", most.as_secs());
            Err(FaultError::new(word, why))
        }
        None => Err(FaultError::new(word, "not a time: write a number and ns, us, ms or s (50us)")),
    }
}

/// Returns the text before the unit if it ends with a digit.
fn number_before<'t>(text: &'t str, unit: &str) -> Option<&'t str> {
    text.strip_suffix(unit).filter(|number| number.ends_with(|c: char| c.is_ascii_digit()))
}

/// Parses a decimal number and multiplies it by `unit`. Returns `None` if the product is not a
/// whole number, and `u64::MAX` if it is too large.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let parts = parts.checked_mul(unit)?;
    if !parts.is_multiple_of(scale) {
        return None;
    }
    let whole = whole.parse().unwrap_or(u64::MAX);
    Some(whole.saturating_mul(unit).saturating_add(parts / scale))
}

/// Parses a queue pair: its number, or `#` and its position in the order of appearance.
pub(super) fn qp(word: Word<'_>) -> Result<QpFilter> {
    let number = match word.text.strip_prefix('#') {
        Some(nth) => nth.parse().ok().filter(|nth| *nth > 0).map(QpFilter::Nth),
        None => number(word.text).and_then(Qpn::new).map(QpFilter::Number),
    };
    number.ok_or_else(|| {
        let why = "not a queue pair: write its number (0x11 or 17), or #1 for the first that packets go to";
        FaultError::new(word, why)
    })
}

/// Parses the name of an opcode or of an opcode kind.
pub(super) fn opcode(word: Word<'_>) -> Result<OpcodeFilter> {
    let name = word.text.replace('-', "_");
    let kind = KINDS.iter().find(|(kind, _)| kind.eq_ignore_ascii_case(&name));
    let one = || Opcode::all().find(|info| info.name.eq_ignore_ascii_case(&name));
    kind.map(|(_, kind)| OpcodeFilter::Kind(*kind))
        .or_else(|| one().map(|info| OpcodeFilter::Is(info.opcode)))
        .ok_or_else(|| {
            let kinds = KINDS.map(|(kind, _)| kind);
            let list = kinds.join(", ") + ", or a whole name such as RC_SEND_ONLY or CNP";
            let names = kinds.into_iter().chain(Opcode::all().map(|info| info.name));
            FaultError::unknown(word, "not an opcode", &list, names)
        })
}

/// Parses a PSN or a range of PSNs. With `+`, they are distances from the flow's first PSN.
pub(super) fn psn(word: Word<'_>) -> Result<PsnFilter> {
    let wrong = |why| FaultError::new(word, why);
    let parse = || {
        let (relative, text) = match word.text.strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, word.text),
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) if relative => (first, last.strip_prefix('+').unwrap_or(last)),
            Some(both) => both,
            None => (text, text),
        };
        let psn = |text| number(text).filter(|psn| *psn < Psn::SPACE);
        Some(PsnFilter { relative, first: psn(first)?, last: psn(last)? })
    };
    let range = parse().ok_or_else(|| {
        wrong("not a PSN: write 100, 100..200, or +0..+99 for the first hundred of each flow")
    })?;
    if range.first > range.last {
        return Err(wrong("the range ends before it begins"));
    }
    Ok(range)
}

/// Parses an IP address.
pub(super) fn address(word: Word<'_>) -> Result<IpAddr> {
    let why = "not an address: write one such as 10.0.0.1 or fd00::1";
    word.text.parse().map_err(|_| FaultError::new(word, why))
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Option<u32> {
    let digits = |text: &str, radix| text.chars().all(|c| c.is_digit(radix));
    match text.strip_prefix("0x") {
        Some(hex) if digits(hex, 16) => u32::from_str_radix(hex, 16).ok(),
        None if digits(text, 10) => text.parse().ok(),
        _ => None,
    }
}

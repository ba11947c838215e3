//! Numbers with units.

use std::time::Duration;

/// Formats bytes: `1 MiB`, `1.5 KiB`, `17 B`.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

/// Formats a duration with three significant digits: `3.61 µs`, `22.0 ms`, `1.50 s`.
pub(crate) fn duration(d: Duration) -> String {
    let seconds = d.as_secs_f64();
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// Parses a size: `65536`, `64K`, `64KiB`, `1M`, `2G`. Units are powers of 1024, as in perftest.
/// clap shows the error, which says what is expected.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err("a number of bytes is expected, as in 4096, 64K or 1M".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "a number of bytes is expected, as in 4096, 64K or 1M")?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more bytes than there are".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, n, back) in [
            ("0", 0, "0 B"),
            ("1023", 1023, "1023 B"),
            ("64K", 65536, "64 KiB"),
            ("1536", 1536, "1.5 KiB"),
            ("1MiB", 1 << 20, "1 MiB"),
            ("3g", 3 << 30, "3 GiB"),
        ] {
            assert_eq!(parse_size(text), Ok(n), "{text}");
            assert_eq!(bytes(n), back);
        }
        for bad in ["", "K", "-1", "1.5M", "64Q", "99999999999G"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_keep_three_digits() {
        let ns = |n| duration(Duration::from_nanos(n));
        assert_eq!(ns(3_610), "3.61 µs");
        assert_eq!(ns(22_040_000), "22.0 ms");
        assert_eq!(ns(655_360_000), "655 ms");
        assert_eq!(ns(1_500_000_000), "1.50 s");
        assert_eq!(ns(80), "80.0 ns");
    }
}

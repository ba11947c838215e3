//! The filters of `rxe decode`.

use std::collections::HashSet;
use std::net::IpAddr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rxe_core::types::Psn;
use rxe_core::wire::Opcode;
use rxe_lab::check::{Kind, Report};
use rxe_lab::frame::{Address, Icrc};
use rxe_lab::track::Mark;

use super::Shown;

/// Filters. A packet is shown if each of them takes it.
#[derive(clap::Args, Default)]
pub(in crate::commands) struct Select {
    /// Only packets to or from this queue pair; several: --qp 0x11 --qp 0x12. Only datagrams name the
    /// one they are from
    #[arg(long, value_name = "QPN", value_parser = number, value_delimiter = ',')]
    qp: Vec<u32>,
    /// Only these opcodes: a number, or a part of the name, as in send or rc_acknowledge
    #[arg(long, value_name = "OPCODE", value_parser = opcode, value_delimiter = ',')]
    opcode: Vec<String>,
    /// Only packets to or from this address
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    addr: Vec<IpAddr>,
    /// Only these PSNs, as in 0x5f3a01 or 100-200; a range may wrap
    #[arg(long, value_name = "A-B", value_parser = psns)]
    psn: Option<(u32, u32)>,
    /// Only packets of which this is said. What comes after malformed are findings of `rxe check`: they
    /// take the frames that show one, and the file is read twice
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = only())]
    only: Vec<Only>,
    /// The frames of the analyst's findings that are wanted.
    #[arg(skip)]
    found: HashSet<u64>,
}

/// A value of `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    /// A property that the packet itself and earlier ones show.
    Shown(Finding),
    /// A finding of the analyzer.
    Found(Kind),
}

/// Returns the parser of `--only`.
fn only() -> impl TypedValueParser<Value = Only> {
    let shown = Finding::value_variants().iter().filter_map(|finding| {
        let value = finding.to_possible_value()?;
        Some((value.get_name().to_owned(), value, Only::Shown(*finding)))
    });
    let mut all: Vec<_> = shown.collect();
    for kind in Kind::ALL {
        // Where both have the same name, the property wins, because it needs no second reading of
        // the file.
        if !all.iter().any(|(name, ..)| name == kind.name()) {
            let value = PossibleValue::new(kind.name()).help(kind.sentence());
            all.push((kind.name().to_owned(), value, Only::Found(*kind)));
        }
    }
    PossibleValuesParser::new(all.iter().map(|(_, value, _)| value.clone()))
        .map(move |name| all.iter().find(|(other, ..)| *other == name).expect("it is one").2)
}

/// What is said of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Finding {
    /// A packet with the same PSN was seen before
    Retransmitted,
    /// Packets before it are missing, or it fills such a gap
    OutOfOrder,
    /// An acknowledgement that acknowledges nothing new
    DuplicateAck,
    /// A negative acknowledgement, or an RNR NAK
    Nak,
    /// Its ICRC is wrong
    BadIcrc,
    /// Its headers contradict each other
    Malformed,
}

impl Select {
    /// Returns whether there is any filter.
    pub(super) fn is_some(&self) -> bool {
        !self.qp.is_empty()
            || !self.opcode.is_empty()
            || !self.addr.is_empty()
            || self.psn.is_some()
            || !self.only.is_empty()
    }

    /// Returns whether a filter needs the analyzer's report on the whole capture.
    pub(super) fn needs_findings(&self) -> bool {
        self.kinds().next().is_some()
    }

    /// Returns the kinds of the analyzer's findings that `--only` names.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.only.iter().filter_map(|only| match only {
            Only::Found(kind) => Some(*kind),
            Only::Shown(_) => None,
        })
    }

    /// Records the frames of the analyzer's findings that `--only` names.
    pub(super) fn take_findings(&mut self, report: Report) {
        self.found = report.frames;
    }

    /// Returns whether every filter accepts the packet.
    pub(super) fn takes(&self, shown: &Shown<'_>) -> bool {
        if !self.is_some() {
            return true;
        }
        let ends = shown.frame.ends;
        let of_address = |ip: &IpAddr| {
            ends.is_some_and(|(src, dst)| [src, dst].contains(&Address::Ip(ip.to_canonical())))
        };
        if !self.addr.is_empty() && !self.addr.iter().any(of_address) {
            return false;
        }
        let is_said = |only: &Only| match only {
            Only::Shown(finding) => finding.is_of(shown),
            // The analyzer counts damaged packets and names the first.
            Only::Found(Kind::Icrc) => Finding::BadIcrc.is_of(shown),
            Only::Found(_) => self.found.contains(&shown.record.number),
        };
        if !self.only.is_empty() && !self.only.iter().any(is_said) {
            return false;
        }
        let Some(packet) = shown.packet else {
            return self.qp.is_empty() && self.opcode.is_empty() && self.psn.is_none();
        };
        let is_qp = |qp: &u32| {
            packet.bth.dest_qp.value() == *qp
                || packet.source_qp().is_some_and(|from| from.value() == *qp)
        };
        let is_opcode = |wanted: &String| is_called(packet.bth.opcode, wanted);
        let is_psn = |(first, last): (u32, u32)| {
            let (first, last) = (Psn::new(first), Psn::new(last));
            (packet.bth.psn - first.value()).value() <= (last - first.value()).value()
        };
        (self.qp.is_empty() || self.qp.iter().any(is_qp))
            && (self.opcode.is_empty() || self.opcode.iter().any(is_opcode))
            && self.psn.is_none_or(is_psn)
    }
}

impl Finding {
    fn is_of(self, shown: &Shown<'_>) -> bool {
        let packet = shown.packet;
        match self {
            Self::Retransmitted => shown.mark == Some(Mark::Retransmitted),
            Self::OutOfOrder => matches!(shown.mark, Some(Mark::Gap(_) | Mark::Late)),
            Self::DuplicateAck => shown.mark == Some(Mark::DuplicateAck),
            Self::Nak => packet.is_some_and(|packet| packet.is_nak()),
            Self::BadIcrc => packet.is_some_and(|packet| packet.icrc == Icrc::Wrong),
            Self::Malformed => packet.is_none_or(|packet| packet.wrong.is_some()),
        }
    }
}

/// Parses a number of 24 bits, decimal or hexadecimal.
pub(in crate::commands) fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().filter(|number| *number < Psn::SPACE);
    number.ok_or_else(|| "a number of at most 24 bits is expected, as in 17 or 0x11".to_owned())
}

/// Returns whether an opcode has this number, or this text in its name.
fn is_called(opcode: Opcode, text: &str) -> bool {
    match number(text) {
        Ok(wanted) => wanted == u32::from(opcode.0),
        Err(_) => opcode.name().contains(&text.to_uppercase().replace(['-', ' '], "_")),
    }
}

/// Checks that an opcode has this number or this text in its name.
fn opcode(text: &str) -> Result<String, String> {
    let is_one = !text.is_empty() && (0..=u8::MAX).any(|code| is_called(Opcode(code), text));
    let wrong = "no opcode is this number or has this in its name: write a number up to 255, or a part of a \
                 name, as in send or rc_acknowledge";
    if is_one { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

fn psns(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok((number(first)?, number(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((number("17"), number("0x11")), (Ok(17), Ok(17)));
        assert_eq!((psns("5"), psns("0xfffff0-15")), (Ok((5, 5)), Ok((0xff_fff0, 15))));
        for bad in ["", "x", "0x", "-1", "0x1000000"] {
            assert!(number(bad).is_err(), "{bad}");
        }
        assert!(psns("1-").is_err() && psns("1-2-3").is_err());
    }

    #[test]
    fn an_opcode_is_a_number_or_a_part_of_a_name_that_exists() {
        for good in ["4", "0xff", "send", "rc-acknowledge", "Write Only", "unknown"] {
            assert_eq!(opcode(good), Ok(good.to_owned()));
        }
        for bad in ["", "sned", "256", "rc_sends"] {
            assert!(opcode(bad).is_err(), "{bad}");
        }
    }
}

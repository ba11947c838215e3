//! The filters of `rxe decode`.

use std::collections::HashSet;
use std::net::IpAddr;

use rxe_core::types::Psn;
use rxe_core::wire::Opcode;

use super::Shown;
use crate::check::{Kind, Report};
use crate::frame::{Address, Icrc};
use crate::header::{Layer, NETWORK_IDS, SESSION_IDS};
use crate::track::Mark;

/// Conditions on packets. A packet is shown if each condition accepts it; an empty one accepts all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The queue pair to or from which the packet goes.
    pub qps: Vec<u32>,
    /// Opcodes: numbers, or parts of names.
    pub opcodes: Vec<String>,
    /// The address to or from which the packet goes.
    pub addresses: Vec<IpAddr>,
    /// The first and the last PSN. The range may wrap.
    pub psns: Option<(u32, u32)>,
    /// The virtual network of a tunnel around the packet: the VNI of VXLAN or GENEVE, or the VSID
    /// of NVGRE.
    pub networks: Vec<u32>,
    /// The session of a tunnel around the packet: that of ERSPAN or PPPoE.
    pub sessions: Vec<u32>,
    /// What is said of the packet.
    pub only: Vec<Only>,
    /// The frames of the analyzer's findings that `only` names, which [`Self::take_findings`] records.
    pub found: HashSet<u64>,
}

/// What must be said of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// A property that the packet itself and earlier ones show.
    Property(Property),
    /// A finding of the analyzer.
    Found(Kind),
}

/// A property that a packet itself and earlier ones show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// A packet with the same PSN was seen before.
    Retransmitted,
    /// Packets before it are missing, or it fills such a gap.
    OutOfOrder,
    /// An acknowledgement that acknowledges nothing new.
    DuplicateAck,
    /// A negative acknowledgement, or an RNR NAK.
    Nak,
    /// Its ICRC is wrong.
    BadIcrc,
    /// Its headers contradict each other.
    Malformed,
}

impl Only {
    /// Returns everything that can be said of a packet: a name, a description and the value.
    /// Where a property and a finding have the same name, only the property is listed, because it
    /// needs no second reading of the file.
    pub fn all() -> Vec<(&'static str, &'static str, Self)> {
        let properties = Property::ALL.map(|it| (it.name(), it.sentence(), Self::Property(it)));
        let mut all = properties.to_vec();
        for kind in Kind::ALL {
            if !all.iter().any(|(name, ..)| *name == kind.name()) {
                all.push((kind.name(), kind.sentence(), Self::Found(*kind)));
            }
        }
        all
    }
}

impl Filter {
    /// Returns whether there is any condition.
    pub fn is_some(&self) -> bool {
        !self.qps.is_empty()
            || !self.opcodes.is_empty()
            || !self.addresses.is_empty()
            || self.psns.is_some()
            || !self.networks.is_empty()
            || !self.sessions.is_empty()
            || !self.only.is_empty()
    }

    /// Returns whether a condition needs the analyzer's report on the whole capture.
    pub fn needs_findings(&self) -> bool {
        self.kinds().next().is_some()
    }

    /// Returns the kinds of the analyzer's findings that `only` names.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.only.iter().filter_map(|only| match only {
            Only::Found(kind) => Some(*kind),
            Only::Property(_) => None,
        })
    }

    /// Records the frames of the analyzer's findings that `only` names.
    /// [`Checker::collect_frames_of`](crate::check::Checker::collect_frames_of) must have been told
    /// of [`Self::kinds`].
    pub fn take_findings(&mut self, report: Report) {
        self.found = report.frames;
    }

    /// Returns whether every filter accepts the packet.
    pub fn takes(&self, shown: &Shown<'_>) -> bool {
        if !self.is_some() {
            return true;
        }
        let ends = shown.frame.ends;
        let of_address = |ip: &IpAddr| {
            ends.is_some_and(|(src, dst)| [src, dst].contains(&Address::Ip(ip.to_canonical())))
        };
        if !self.addresses.is_empty() && !self.addresses.iter().any(of_address) {
            return false;
        }
        let has = |names: &[&str], wanted: &[u32]| {
            let of = |layer: &Layer| layer.number(names, shown.record.bytes);
            let is_wanted = |id: u64| wanted.iter().any(|wanted| u64::from(*wanted) == id);
            wanted.is_empty() || shown.frame.layers.iter().filter_map(of).any(is_wanted)
        };
        if !has(NETWORK_IDS, &self.networks) || !has(SESSION_IDS, &self.sessions) {
            return false;
        }
        let is_said = |only: &Only| match only {
            Only::Property(property) => property.is_of(shown),
            // The analyzer counts damaged packets and names the first.
            Only::Found(Kind::Icrc) => Property::BadIcrc.is_of(shown),
            Only::Found(_) => self.found.contains(&shown.record.number),
        };
        if !self.only.is_empty() && !self.only.iter().any(is_said) {
            return false;
        }
        let Some(packet) = shown.packet else {
            return self.qps.is_empty() && self.opcodes.is_empty() && self.psns.is_none();
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
        (self.qps.is_empty() || self.qps.iter().any(is_qp))
            && (self.opcodes.is_empty() || self.opcodes.iter().any(is_opcode))
            && self.psns.is_none_or(is_psn)
    }
}

impl Property {
    /// All properties.
    pub const ALL: [Self; 6] = [
        Self::Retransmitted,
        Self::OutOfOrder,
        Self::DuplicateAck,
        Self::Nak,
        Self::BadIcrc,
        Self::Malformed,
    ];

    /// Returns the name of the property.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retransmitted => "retransmitted",
            Self::OutOfOrder => "out-of-order",
            Self::DuplicateAck => "duplicate-ack",
            Self::Nak => "nak",
            Self::BadIcrc => "bad-icrc",
            Self::Malformed => "malformed",
        }
    }

    /// Returns a description of the property, as a sentence without its full stop.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Retransmitted => "A packet with the same PSN was seen before",
            Self::OutOfOrder => "Packets before it are missing, or it fills such a gap",
            Self::DuplicateAck => "An acknowledgement that acknowledges nothing new",
            Self::Nak => "A negative acknowledgement, or an RNR NAK",
            Self::BadIcrc => "Its ICRC is wrong",
            Self::Malformed => "Its headers contradict each other",
        }
    }

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
///
/// # Errors
/// Fails with a message for users.
pub fn number(text: &str) -> Result<u32, String> {
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
///
/// # Errors
/// Fails with a message for users.
pub fn opcode(text: &str) -> Result<String, String> {
    let is_one = !text.is_empty() && (0..=u8::MAX).any(|code| is_called(Opcode(code), text));
    let wrong = "no opcode is this number or has this in its name: write a number up to 255, or a part of a \
                 name, as in send or rc_acknowledge";
    if is_one { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

/// Parses a PSN, or a range of PSNs.
///
/// # Errors
/// Fails with a message for users.
pub fn psns(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok((number(first)?, number(last)?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::capture::{LinkType, Record};
    use crate::frame::tests::encapsulations::{self, NETWORK, SESSION, Wrapped};
    use crate::frame::tests::tunnels::inner;
    use crate::frame::{Content, decode};

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

    #[test]
    fn a_virtual_network_or_session_is_that_of_any_tunnel() {
        let takes = |frame: &Wrapped, filter: &Filter| {
            let record = Record {
                number: 1,
                at: None,
                interface: 0,
                link: LinkType(frame.link),
                bytes: &frame.bytes,
                original_len: frame.bytes.len(),
                direction: None,
                comments: Vec::new(),
            };
            let frame = decode(&record);
            let Content::Rdma(packets) = &frame.content else { panic!("{frame:?}") };
            let packet = packets.first();
            filter.takes(&Shown {
                record: &record,
                frame: &frame,
                packet,
                mark: None,
                since: Duration::ZERO,
            })
        };
        let all = encapsulations::all(&inner(false));
        let taken = |filter: &Filter| {
            let taken = all.iter().filter(|frame| takes(frame, filter)).map(|frame| frame.name);
            taken.collect::<Vec<_>>()
        };
        let network = |of: u32| Filter { networks: vec![7, of], ..Filter::default() };
        let session = |of: u32| Filter { sessions: vec![of], ..Filter::default() };
        let networks = taken(&network(NETWORK));
        for name in ["VXLAN", "VXLAN-GPE with IP", "GENEVE", "NVGRE", "VXLAN in ERSPAN II"] {
            assert!(networks.contains(&name), "{name}: {networks:?}");
        }
        assert!(!networks.contains(&"GRE") && !networks.contains(&"ERSPAN II"), "{networks:?}");
        let sessions = taken(&session(SESSION));
        for name in ["ERSPAN II", "ERSPAN III", "PPPoE", "PPPoE alone", "VXLAN in ERSPAN II"] {
            assert!(sessions.contains(&name), "{name}: {sessions:?}");
        }
        let both = Filter { networks: vec![NETWORK], ..session(SESSION) };
        assert_eq!(taken(&both), ["VXLAN in ERSPAN II"]);
        assert!(taken(&network(NETWORK + 1)).is_empty() && taken(&session(1)).is_empty());
    }
}

//! Checks that `rxe decode --json` and tshark agree on every field that both know. The frames are
//! those of the project's captures, of other devices' captures, the same frames behind other link
//! layers and in tunnels, and frames of several packets. A field or a packet that only one of them shows is a
//! difference, too.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_test_support::skipped;
use serde_json::Value;

mod decode_util;
/// One frame inside each encapsulation. The unit tests of the decoder use the same table.
#[path = "../../rxe-lab/src/frame/tests/encapsulations.rs"]
#[allow(dead_code, reason = "the unit tests use all of it")]
mod encapsulations;
use decode_util::fields::FIELDS;
use decode_util::{Pcapng, frames_of, run};

/// Fields that tshark shows twice, in the packet and alone.
const SHOWN_TWICE: [&str; 2] = ["infiniband.immdt", "infiniband.ieth"];

/// Numbers that tshark prints in hexadecimal without 0x.
const IN_BARE_HEX: [&str; 2] = ["infiniband.immdt", "infiniband.ieth"];

#[test]
fn every_field_that_both_know_is_the_same() {
    let test = "every_field_that_both_know_is_the_same";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.pcapng");
    let frames = all_frames(test);
    let mut file = Pcapng::new();
    for (nth, frame) in frames.iter().enumerate() {
        file.packet(frame.link, nth as u64 * 1_000_000_007, &frame.bytes, frame.bytes.len());
    }
    fs::write(&path, file.bytes).unwrap();
    let Some(theirs) = tshark(test, &path) else { return };
    let ours = decoded(&path);
    let mut all = Comparison::default();
    for (nth, frame) in frames.iter().enumerate() {
        let packets = ours.get(&(nth as u64 + 1)).map_or(&[][..], Vec::as_slice);
        all.frame(frame, packets, &theirs[nth], &theirs);
    }
    let Comparison { compared, reasons, wrong } = all;
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(60)].join("\n")
    );
    let missed = FIELDS.iter().map(|f| f.2).filter(|name| !compared.contains(name));
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "fields that no frame has: {missed:?}");
    let unused = ALONE.iter().map(|rule| rule.why).filter(|why| !reasons.contains(why));
    let unused: Vec<_> = unused.collect();
    assert!(unused.is_empty(), "exceptions that no frame needs: {unused:?}");
}

/// tshark's values of a frame by field name. Several values are separated by `;`.
type Row = BTreeMap<String, String>;

/// The compared fields, and the differences.
#[derive(Default)]
struct Comparison {
    /// tshark's names of the fields for which both had a value.
    compared: HashSet<&'static str>,
    /// The reasons of [`ALONE`] for values that only one of them had.
    reasons: HashSet<&'static str>,
    wrong: Vec<String>,
}

impl Comparison {
    /// Compares a frame. `row` is tshark's row of the frame, `all` has the rows of all frames.
    fn frame(&mut self, frame: &Sample, packets: &[Value], row: &Row, all: &[Row]) {
        let name = &frame.name;
        for packet in packets {
            if packet["time"] != row["frame.time_epoch"] {
                let (mine, their) = (&packet["time"], &row["frame.time_epoch"]);
                self.wrong.push(format!("{name}: time {mine} {their}"));
            }
        }
        // tshark dissects only the first packet of a frame.
        if !frame.parts.is_empty() {
            if packets.len() != frame.parts.len() {
                let (is, should) = (packets.len(), frame.parts.len());
                return self.wrong.push(format!("{name}: {is} packets, not {should}"));
            }
            for (nth, (packet, part)) in packets.iter().zip(&frame.parts).enumerate() {
                let name = format!("{name}, packet {}", nth + 1);
                if packet["segment"] != nth + 1 {
                    self.wrong.push(format!("{name}: its number is {}", packet["segment"]));
                }
                self.packet(&name, packet, row, is_before_transport);
                self.packet(&name, packet, &all[*part], |header| !is_before_transport(header));
            }
            return;
        }
        let they_found = !row["infiniband.bth.opcode"].is_empty();
        match packets {
            [packet] => {
                if !packet["BTH"].is_null() && !they_found && !is_hidden(packet) {
                    self.wrong.push(format!("{name}: only we find a packet"));
                }
                self.packet(name, packet, row, |_| true);
            }
            [] if they_found => self.wrong.push(format!("{name}: only tshark finds a packet")),
            [] => {}
            _ => self.wrong.push(format!("{name}: {} packets, not 1", packets.len())),
        }
    }

    /// Compares the fields of a packet in the headers that `takes` accepts.
    fn packet(&mut self, name: &str, packet: &Value, row: &Row, takes: impl Fn(&str) -> bool) {
        // Several of our fields share a tshark name, and some of ours have several tshark names.
        let (mut only_ours, mut only_theirs) = (BTreeMap::new(), BTreeMap::new());
        let (mut our_both, mut their_both) = (HashSet::new(), HashSet::new());
        for (header, field, their_name) in FIELDS.iter().filter(|(header, ..)| takes(header)) {
            // A second header of a kind is the second occurrence of its fields.
            for nth in 0..MOST_OF_A_KIND {
                if *header == "LinuxCooked" && nth > 0 {
                    // LinuxCooked2 is version 2 of the header, not a second one; a frame has only
                    // one.
                    continue;
                }
                let name_of_header = match nth {
                    0 => (*header).to_owned(),
                    _ if header.ends_with(|c: char| c.is_ascii_digit()) => {
                        format!("{header}_{}", nth + 1)
                    }
                    _ => format!("{header}{}", nth + 1),
                };
                let mine = &packet[&name_of_header][field];
                // tshark names a service tag's fields differently, and counts the tag behind it as
                // the first.
                let service = header == &"VLAN" && packet["Ethernet"]["EtherType"] == 0x88a8;
                let (their_name, occurrence) = match nth {
                    0 if service => match service_tag(field) {
                        Some(name) => (name, 0),
                        None => continue,
                    },
                    1 if service => (*their_name, 0),
                    // tshark has one name for two fields of a REQ.
                    0 if (*header, *field) == ("REQ", "Reserved8") => (*their_name, 1),
                    _ => (*their_name, nth),
                };
                // tshark has one name for the versions of both protocols.
                let is_of_header = |their: &&str| {
                    their_name != "ip.version" || header.ends_with(their.trim_start())
                };
                let all: Vec<_> = row[their_name].split(';').filter(is_of_header).collect();
                if all.len() == 2
                    && all[0] == all[1]
                    && SHOWN_TWICE.contains(&their_name)
                    && occurrence == 1
                {
                    continue;
                }
                let their = all.get(occurrence).copied().unwrap_or_default();
                let bare = IN_BARE_HEX.contains(&their_name) && !their.is_empty();
                let their = if bare { format!("0x{their}") } else { their.to_owned() };
                let (own, other) = ((*header, *field, nth), (their_name, occurrence));
                match (mine.is_null(), their.is_empty()) {
                    (true, true) => {}
                    (false, true) => {
                        only_ours.insert(own, mine);
                    }
                    (true, false) => {
                        only_theirs.insert(other, (*header, their));
                    }
                    (false, false) => {
                        our_both.insert(own);
                        their_both.insert(other);
                        self.field(name, (*header, *field, their_name), &their, mine, packet);
                    }
                }
            }
        }
        for ((header, field, nth), mine) in only_ours {
            if !our_both.contains(&(header, field, nth)) && !self.may_be_alone(header, packet) {
                self.wrong.push(format!("{name}: only we have {header} {nth}, {field}: {mine}"));
            }
        }
        for ((their_name, nth), (header, their)) in only_theirs {
            if !their_both.contains(&(their_name, nth)) && !self.may_be_alone(header, packet) {
                self.wrong.push(format!("{name}: only tshark has {their_name}: {their}"));
            }
        }
    }

    /// Compares a field for which both have a value.
    fn field(
        &mut self,
        name: &str,
        (header, field, their_name): (&str, &str, &'static str),
        their: &str,
        mine: &Value,
        packet: &Value,
    ) {
        let (mine, their) =
            (&as_theirs(their_name, mine), as_ours(their_name, their, mine, packet));
        if let Some(why) = tshark_is_wrong(header, field, packet) {
            self.compared.insert(why);
            return;
        }
        self.compared.insert(their_name);
        if normal(mine) != normal(&Value::from(their.as_str())) {
            self.wrong.push(format!("{name}: {header}.{field} is {mine}, tshark: {their}"));
        }
    }

    /// Returns whether there is a known reason why only one of them has a value.
    fn may_be_alone(&mut self, header: &str, packet: &Value) -> bool {
        let rule = ALONE.iter().find(|rule| (rule.when)(header, packet));
        self.reasons.extend(rule.map(|rule| rule.why));
        rule.is_some()
    }
}

/// A reason why only one of them has a value of a field.
struct Alone {
    /// Returns whether the reason holds for a field, by its header and its packet.
    when: fn(&str, &Value) -> bool,
    why: &'static str,
}

/// The most headers of one kind in a frame.
const MOST_OF_A_KIND: usize = 4;

const ALONE: [Alone; 11] = [
    Alone {
        when: |_, packet| is_hidden(packet),
        why: "tshark looks at nothing behind the link layer, the IP header or that of a tunnel",
    },
    Alone {
        when: |header, packet| header == "Ethernet" && !packet["I_TAG"].is_null(),
        why: "tshark has other names for the Ethernet header inside 802.1ah",
    },
    Alone {
        when: |header, packet| header == "Ethernet" && !packet["LLC"].is_null(),
        why: "tshark has another name for a length in place of an EtherType",
    },
    Alone {
        when: |header, packet| header == "GREKey" && !packet["NVGRE"].is_null(),
        why: "tshark does not divide the key of NVGRE",
    },
    Alone {
        when: |header, packet| {
            let opcode = packet["BTH"]["OpCode"].as_u64();
            // The RC opcodes 21, masked atomics, FLUSH and ATOMIC WRITE; XRC, and reserved ones.
            let unknown = matches!(opcode, Some(21 | 24..=31 | 96 | 160..));
            unknown && header != "BTH" && !is_before_transport(header)
        },
        why: "tshark takes the headers of opcodes that it does not know for payload",
    },
    Alone {
        when: |header, packet| header.starts_with("IP_CM") && !packet["SIDR_REQ"].is_null(),
        why: "tshark takes no message of the service ID resolution protocol apart",
    },
    Alone {
        when: |header, packet| header == "ICRC" && packet["BTH"]["OpCode"] == 0x81,
        why: "tshark shows no ICRC of a congestion notification",
    },
    Alone {
        when: |header, packet| {
            ["ICRC", "Payload"].contains(&header) && !packet["malformed"].is_null()
        },
        why: "what is payload and what is not is unclear in a malformed packet",
    },
    Alone {
        when: |header, packet| is_rd(packet) && header != "BTH" && !is_before_transport(header),
        why: "RoCE devices have no reliable datagrams: we take their headers for payload",
    },
    Alone {
        when: |header, packet| {
            // All other captured MADs have the class of communication management (7).
            let class = &packet["MAD"]["MgmtClass"];
            ["ICRC", "Payload"].contains(&header) && class.as_u64() == Some(0)
        },
        why: "tshark shows nothing behind the header of a MAD of no class",
    },
    Alone {
        when: |header, packet| {
            ["ICRC", "Payload"].contains(&header) && packet["BTH"]["DestQP"] == 0
        },
        why: "tshark takes what is sent to queue pair 0 for a MAD",
    },
];

/// Returns whether a packet belongs to the reliable datagram service.
fn is_rd(packet: &Value) -> bool {
    matches!(packet["BTH"]["OpCode"].as_u64(), Some(64..=95))
}

/// Returns whether a header precedes the transport headers.
fn is_before_transport(header: &str) -> bool {
    const TRANSPORT: &str = "BTH";
    let at = |name| FIELDS.iter().position(|(header, ..)| *header == name);
    at(header) < at(TRANSPORT)
}

/// Returns whether tshark dissects little of a packet: native InfiniBand without ERF, family 10 of
/// BSD loopback, a first fragment, ERSPAN with IP, or Ethernet behind MPLS without a control word.
fn is_hidden(packet: &Value) -> bool {
    !packet["LRH"].is_null() && packet["ERF"].is_null()
        || !packet["Loopback"].is_null() && !packet["IPv6"].is_null()
        || packet["IPv6Fragment"]["M"] == 1
        || packet["IPv4"]["Flags"] == 1
        || packet["ERSPAN_III"]["FT"] == 2
        || !packet["MPLS"].is_null()
            && !packet["Ethernet2"].is_null()
            && packet["ControlWord"].is_null()
}

/// Returns tshark's name of a field of a service tag.
fn service_tag(field: &str) -> Option<&'static str> {
    SERVICE_TAG.into_iter().find(|(ours, _)| *ours == field).map(|(_, theirs)| theirs)
}

const SERVICE_TAG: [(&str, &str); 3] =
    [("PCP", "ieee8021ad.priority"), ("DEI", "ieee8021ad.dei"), ("VID", "ieee8021ad.id")];

/// Returns the field's name if tshark's value is known to be wrong. The field then counts as
/// compared.
fn tshark_is_wrong(header: &str, field: &str, packet: &Value) -> Option<&'static str> {
    match (header, field) {
        // Of the 32 bits of flow label (20), reserved (6) and rate (6), tshark takes the first 12
        // for the flow label, then 2 of the last 8, then 6. IBTA 12.6.5, table 106.
        ("REQ", "PrimaryFlowLabel") => Some("infiniband.cm.req.prim_flowlabel"),
        ("REQ", "Reserved3") => Some("infiniband.cm.req.prim_reserved0"),
        ("REQ", "PrimaryPacketRate") => Some("infiniband.cm.req.prim_pktrate"),
        ("REQ", "AlternateFlowLabel") => Some("infiniband.cm.req.alt_flowlabel"),
        ("REQ", "Reserved6") => Some("infiniband.cm.req.alt_reserved0"),
        ("REQ", "AlternatePacketRate") => Some("infiniband.cm.req.alt_pktrate"),
        // tshark takes 2 of the 6 bits after the first two. IBTA 12.6.7, table 108.
        ("REJ", "Reserved1") => Some("infiniband.cm.rej.reserved0"),
        // tshark's data field is then the whole frame or datagram: behind InfiniBand's own link
        // layer, and where it dissects nothing behind the IP header (family 10 of BSD loopback, a
        // first fragment).
        ("Payload", "Data") if !packet["LRH"].is_null() || is_hidden(packet) => Some(""),
        ("Payload", "Data") if is_rd(packet) => Some(""),
        _ => None,
    }
}

/// Returns our value of a field in tshark's form.
fn as_theirs(their_name: &str, mine: &Value) -> Value {
    let digits = mine.as_str().unwrap_or_default();
    match their_name {
        // tshark counts bytes, not words.
        "ip.hdr_len" => Value::from(mine.as_u64().unwrap() * 4),
        // tshark shows a number in the byte order of the capturing host, in which the family is the
        // smaller value.
        "null.family" => {
            let family = u32::try_from(mine.as_u64().unwrap()).unwrap();
            Value::from(family.min(family.swap_bytes()))
        }
        // tshark shows the IPv4 address inside the GID.
        "infiniband.cm.req.prim_localgid_ipv4" | "infiniband.cm.req.prim_remotegid_ipv4" => {
            let gid: std::net::Ipv6Addr = digits.parse().unwrap();
            let [.., a, b, c, d] = gid.octets();
            Value::from(std::net::Ipv4Addr::new(a, b, c, d).to_string())
        }
        // The first six of the eight bytes are the address.
        "sll.src.eth" => Value::from(&digits[..12]),
        "sll.unused" => Value::from(&digits[12..]),
        // tshark shows a number, the least significant byte first.
        "erf.ts" => {
            let bytes: Vec<_> = digits.as_bytes().chunks(2).rev().collect();
            Value::from(format!("0x{}", String::from_utf8(bytes.concat()).unwrap()))
        }
        _ => mine.clone(),
    }
}

/// Returns tshark's value of a field in our form. `mine` is our value.
fn as_ours(their_name: &str, their: &str, mine: &Value, packet: &Value) -> String {
    // Bytes, with or without separators.
    let is_bytes = mine.is_string() && !their.starts_with("0x") && !their.contains('.');
    let digits = if is_bytes && their_name.starts_with("sll.") {
        their.replace(':', "")
    } else {
        their.to_owned()
    };
    match their_name {
        // tshark counts the pad as data.
        "data.data" => {
            let pad = packet["BTH"]["Pad"].as_u64().unwrap();
            let pad = usize::try_from(pad).unwrap() * 2;
            digits[..digits.len() - pad].to_owned()
        }
        // A GID as bytes.
        "infiniband.cm.req.alt_localgid" | "infiniband.cm.req.alt_remotegid" => {
            let bytes = unhex(&digits);
            std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_string()
        }
        _ => digits,
    }
}

/// Normalizes a value: numbers in decimal, text in lower case.
fn normal(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    number.map_or(text, |n: u64| n.to_string())
}

/// Returns tshark's row for each frame.
fn tshark(test: &str, path: &Path) -> Option<Vec<Row>> {
    let mut names: Vec<_> = FIELDS.iter().map(|f| f.2).collect();
    names.extend(SERVICE_TAG.map(|(_, theirs)| theirs));
    names.push("frame.time_epoch");
    names.sort_unstable();
    names.dedup();
    let out = Command::new("tshark")
        .arg("-r")
        .arg(path)
        // tshark takes the payload of a SEND for NFS if it looks like it, and dissects by the
        // source port if that is smaller than 4791.
        .args(["-n", "--disable-heuristic", "rpcrdma_infiniband", "--disable-protocol", "tftp"])
        // The port of VXLAN on Linux.
        .args(["-d", "udp.port==8472,vxlan"])
        .args(["-T", "fields"])
        .args(["-E", "separator=|", "-E", "aggregator=;", "-E", "occurrence=a"])
        .args(names.iter().flat_map(|name| ["-e", name]))
        .output();
    let Ok(out) = out else {
        skipped(test, "tshark is not installed");
        return None;
    };
    let text = String::from_utf8(out.stdout).unwrap();
    let row = |line: &str| {
        let values = line.split('|').map(str::to_owned);
        names.iter().map(|name| (*name).to_owned()).zip(values).collect()
    };
    Some(text.lines().map(row).collect())
}

/// Returns the packets of each frame from `rxe decode --json`.
fn decoded(path: &Path) -> BTreeMap<u64, Vec<Value>> {
    let out = run(&["decode", "--json", "-v", path.to_str().unwrap()]);
    assert!(out.status.success(), "{out:?}");
    let mut packets = BTreeMap::<_, Vec<_>>::new();
    for line in out.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let packet: Value = serde_json::from_slice(line).unwrap();
        packets.entry(packet["frame"].as_u64().unwrap()).or_default().push(packet);
    }
    packets
}

/// A frame to dissect with both programs.
struct Sample {
    name: String,
    link: u16,
    bytes: Vec<u8>,
    /// For a frame of several packets: the indices of the frames that have each packet alone, in
    /// the same order.
    parts: Vec<usize>,
}

/// Returns all captures, one frame of each opcode behind other link layers, and frames of several
/// packets.
fn all_frames(test: &str) -> Vec<Sample> {
    let alone = single_packets(test);
    let several = joined(&alone);
    assert!(several.len() >= 20, "{} frames of several packets", several.len());
    let parts = Vec::new;
    let mut all: Vec<_> = alone
        .into_iter()
        .map(|(name, link, bytes)| Sample { name, link, bytes, parts: parts() })
        .collect();
    all.extend(several);
    all
}

/// Returns frames of two or three packets each, as a host captures them before the kernel splits
/// them (GSO). They are joined from successive frames of kernel captures.
fn joined(alone: &[(String, u16, Vec<u8>)]) -> Vec<Sample> {
    const MOST: usize = 3;
    const BTH: usize = 14 + 20 + 8;
    let mut made = Vec::new();
    let mut from = 0;
    while let Some((name, link, first)) = alone.get(from) {
        let is_ours = name.starts_with("pcaps/kernel-")
            && *link == ETHERNET
            && first[12..15] == [0x08, 0x00, 0x45]
            && usize::from(u16::from_be_bytes([first[16], first[17]])) == first.len() - 14;
        // Require equal size, addresses, ports and queue pairs.
        let alike = |(_, link, other): &&(String, u16, Vec<u8>)| {
            *link == ETHERNET
                && other.len() == first.len()
                && other[..14] == first[..14]
                && other[26..BTH - 4] == first[26..BTH - 4]
                && other[BTH + 4..BTH + 8] == first[BTH + 4..BTH + 8]
        };
        let count = 1 + alone[from + 1..].iter().take(MOST - 1).take_while(alike).count();
        if is_ours && count > 1 {
            let parts: Vec<_> = (from..from + count).collect();
            let mut bytes = first.clone();
            bytes.extend(parts[1..].iter().flat_map(|part| &alone[*part].2[BTH..]));
            for (at, before) in [(16, 14), (38, 14 + 20)] {
                let len = u16::try_from(bytes.len() - before).unwrap();
                bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
            }
            made.push(Sample { name: format!("{name} joined"), link: *link, bytes, parts });
        }
        from += count;
    }
    made
}

/// Returns the name, the link type and the bytes of each frame with one packet.
fn single_packets(test: &str) -> Vec<(String, u16, Vec<u8>)> {
    let mut all = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = pcaps(&root.join("pcaps"));
    let others = match std::env::var_os("RXE_CAPTURES") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => root.join("../shared/captures"),
    };
    files.extend(pcaps(&others));
    files.sort();
    for path in files {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        for (nth, frame) in frames_of(&path).into_iter().enumerate() {
            all.push((format!("{name} {}", nth + 1), ETHERNET, frame));
        }
    }
    match fs::read_to_string(others.join("vectors.tsv")) {
        Ok(text) => {
            for row in text.lines().filter(|line| !line.starts_with('#')) {
                let columns: Vec<_> = row.split('\t').collect();
                all.push((columns[1].into(), ETHERNET, unhex(columns[5])));
            }
        }
        Err(e) => skipped(test, format_args!("captures of other devices: {e}")),
    }
    assert!(all.len() > 2000, "{} frames", all.len());
    all.extend(filled(&all));
    let mut opcodes = HashSet::new();
    let plain: Vec<_> = all.clone();
    for (name, _, frame) in plain {
        // The first frame of each opcode and IP version without a VLAN tag.
        let at = match frame[12..14] {
            [0x08, 0x00] if frame[23] == 17 => 14 + 20 + 8,
            [0x86, 0xdd] => 14 + 40 + 8,
            _ => continue,
        };
        if opcodes.insert((at, frame[at])) {
            all.extend(rewrapped(&name, &frame, at));
        }
    }
    // A WRITE of a kernel with each version of IP, in each encapsulation.
    for capture in ["write.pcap", "write_ipv6.pcap"] {
        let frames = frames_of(&root.join("pcaps/kernel-6.1").join(capture));
        let frame = frames.into_iter().find(|frame| frame.len() > 200).expect("a WRITE");
        for wrapped in encapsulations::all(&frame) {
            all.push((format!("{capture} in {}", wrapped.name), wrapped.link, wrapped.bytes));
        }
    }
    all
}

const ETHERNET: u16 = 1;

/// Returns one communication manager message of each kind with other bytes behind its header. So
/// fields which are 0 in captures have values, and a REQ does not belong to RDMA CM.
fn filled(all: &[(String, u16, Vec<u8>)]) -> Vec<(String, u16, Vec<u8>)> {
    const MAD: usize = 14 + 20 + 8 + 12 + 8;
    let mut seen = HashSet::new();
    let mut more = Vec::new();
    for (name, link, frame) in all {
        // Require IPv4 without options, UD to QP 1, and the communication manager's class.
        let is_it = frame.len() > MAD + 256
            && frame[12..15] == [0x08, 0x00, 0x45]
            && frame[42] == 100
            && frame[MAD + 1] == 7;
        if !is_it || !seen.insert(frame[MAD + 17]) {
            continue;
        }
        if frame[MAD + 17] == 0x10 {
            // The RDMA CM addresses become IPv6 addresses.
            let mut frame = frame.clone();
            let private = MAD + 24 + 140;
            frame[private + 1] = 0x60;
            frame[private + 4..private + 36].copy_from_slice(&(0x20..0x40).collect::<Vec<_>>());
            more.push((format!("{name} with IPv6 addresses"), *link, frame));
        }
        for step in [0x35_u8, 0x8b] {
            let mut frame = frame.clone();
            let mut byte = step;
            for other in &mut frame[MAD + 24..MAD + 256] {
                byte = byte.wrapping_mul(5).wrapping_add(step);
                *other = byte;
            }
            more.push((format!("{name} filled with {step:#x}"), *link, frame));
        }
    }
    assert!(seen.len() >= 6, "kinds of messages: {seen:?}");
    more
}

/// Returns the same packet behind other link layers. `bth` is the offset of its BTH.
fn rewrapped(name: &str, frame: &[u8], bth: usize) -> Vec<(String, u16, Vec<u8>)> {
    let (addresses, ethertype, ip) = (&frame[..12], &frame[12..14], &frame[14..]);
    let transport = &frame[bth..];
    let len = u16::try_from(transport.len()).unwrap();
    let grh = [
        &[0x65, 0x51, 0x23, 0x45][..],
        &len.to_be_bytes(),
        &[0x1b, 0x3f],
        &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 3, 4, 0xff, 0xfe, 5, 6, 7],
        &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 8, 9, 4, 0xff, 0xfe, 5, 6, 0xa],
    ]
    .concat();
    let lrh = |lnh: u8, bytes: usize| {
        let words = u16::try_from((8 + bytes) / 4).unwrap().to_be_bytes();
        // Set reserved bits as well.
        [0x30, 0x54 | lnh, 0x12, 0x34, 0xa8 | words[0], words[1], 0x56, 0x78]
    };
    let global = [&lrh(3, 40 + transport.len())[..], &grh, transport, &[0xab, 0xcd]].concat();
    let local = [&lrh(2, transport.len())[..], transport, &[0xab, 0xcd]].concat();
    let erf = |kind: u8, extension: &[u8], frame: &[u8]| {
        let len = u16::try_from(16 + extension.len() + frame.len()).unwrap().to_be_bytes();
        let more = if extension.is_empty() { 0 } else { 0x80 };
        let wire = u16::try_from(frame.len()).unwrap().to_be_bytes();
        let head = [kind | more, 0x04, len[0], len[1], 0, 5, wire[0], wire[1]];
        [&[0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44][..], &head, extension, frame].concat()
    };
    let cooked = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let cooked2 = [0, 0, 0, 0, 0, 7, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let family: &[u8] = if ethertype == [8, 0] { &[2, 0, 0, 0] } else { &[10, 0, 0, 0] };
    let big_family: &[u8] = if ethertype == [8, 0] { &[0, 0, 0, 2] } else { &[0, 0, 0, 24] };
    let tag: &[u8] = &[0x81, 0x00, 0x70, 0x05];
    let list: [(&str, u16, Vec<u8>); 15] = [
        ("VLAN", 1, [addresses, tag, ethertype, ip].concat()),
        ("QinQ", 1, [addresses, &[0x88, 0xa8, 0x30, 0x63], tag, ethertype, ip].concat()),
        ("Linux cooked", 113, [&cooked[..], ethertype, ip].concat()),
        ("Linux cooked VLAN", 113, [&cooked[..], tag, ethertype, ip].concat()),
        ("Linux cooked v2", 276, [ethertype, &cooked2[..], ip].concat()),
        ("raw IP", 101, ip.to_vec()),
        ("raw IPv4 or IPv6", if ethertype == [8, 0] { 228 } else { 229 }, ip.to_vec()),
        ("null", 0, [family, ip].concat()),
        ("loop", 108, [big_family, ip].concat()),
        ("RoCEv1", 1, [addresses, &[0x89, 0x15], &grh, transport].concat()),
        ("RoCEv1 VLAN", 1, [addresses, tag, &[0x89, 0x15], &grh, transport].concat()),
        ("InfiniBand", 247, global.clone()),
        ("InfiniBand, local", 247, local.clone()),
        ("ERF InfiniBand", 197, erf(21, &[], &global)),
        ("ERF Ethernet", 197, erf(2, &[3, 0, 0, 0, 0, 0, 0, 1], &[&[0, 0], frame].concat())),
    ];
    let mut list = Vec::from(list);
    if ethertype == [0x86, 0xdd] {
        let head = |next: u8, more: usize| {
            let len = u16::try_from(ip.len() - 40 + more).unwrap().to_be_bytes();
            [&ip[..4], &len, &[next], &ip[7..40]].concat()
        };
        let opcode = frame[bth];
        // A hop-by-hop option that is a pad; a datagram in one fragment, and the first of several.
        let options = [17, 0, 1, 4, 0, 0, 0, 0];
        let fragment = |m: u8| [17, 0x5a, 0, 4 | m, 0xde, 0xad, m, opcode];
        for (link, next, extension) in [
            ("IPv6 with options", 0, options),
            ("IPv6 in one fragment", 44, fragment(0)),
            ("IPv6, first fragment", 44, fragment(1)),
        ] {
            let bytes = [addresses, ethertype, &head(next, 8), &extension, &ip[40..]].concat();
            list.push((link, 1, bytes));
        }
    }
    list.into_iter()
        .map(|(link, number, bytes)| (format!("{name} as {link}"), number, bytes))
        .collect()
}

fn pcaps(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pcaps(&path));
        } else if is_capture(&path) {
            found.push(path);
        }
    }
    found
}

/// Returns whether the file is a capture by its name, compressed or not.
fn is_capture(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    let name = name.strip_suffix(".gz").or(name.strip_suffix(".zst")).unwrap_or(name);
    [".pcap", ".pcapng"].iter().any(|end| name.ends_with(end))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

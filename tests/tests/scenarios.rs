//! Tests of the scenarios in `pcaps/scenarios`: each produces the capture next to it, byte for
//! byte, and the analyst finds in the capture what the scenario announces and nothing else.
//! `RXE_SCENARIOS=write` rewrites the captures.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rxe_core::engine::ResponderError;
use rxe_core::types::AccessError;
use rxe_core::wire::{DropReason, Opcode};
use rxe_lab::capture::{LinkType, Reader, Start};
use rxe_lab::check::{Checker, Kind};
use rxe_lab::frame::{self, Content, Icrc};
use rxe_lab::scenario::{Bounds, Generated, generate};
use rxe_tests::captures::{pcap_frames, read, read_bytes, rows_of, unhex};
use rxe_tests::scenario::frames;

/// Returns the names and descriptions, in the order of the names.
fn scenarios() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/scenarios");
    let mut files: Vec<_> = fs::read_dir(root).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == "toml"));
    files.sort();
    assert!(files.len() >= 60, "{}", files.len());
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect()
}

#[track_caller]
fn generated(file: &Path, text: &str) -> Generated {
    generate(text, Bounds::default()).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Returns the analyst's findings in a capture, and the opcodes in it.
fn seen(file: &[u8]) -> (BTreeSet<Kind>, BTreeSet<u8>) {
    let mut checker = Checker::default();
    let mut reader = Reader::new(file).unwrap();
    let (mut start, mut opcodes) = (Start::default(), BTreeSet::new());
    while let Some(record) = reader.next().unwrap() {
        assert!(record.at.is_some());
        let since = start.since(&record);
        let frame = frame::decode(&record);
        checker.add(record.number, 0, since, &frame);
        let Content::Rdma(packets) = &frame.content else { continue };
        let whole = packets.iter().filter(|p| p.wrong.is_none() && p.icrc == Icrc::Right);
        opcodes.extend(whole.map(|packet| packet.bth.opcode.0));
    }
    (checker.finish().findings.iter().map(|finding| finding.kind).collect(), opcodes)
}

#[test]
fn each_scenario_gives_the_capture_beside_it() {
    let write = std::env::var_os("RXE_SCENARIOS").is_some_and(|how| how == "write");
    for (file, text) in scenarios() {
        let made = generated(&file, &text).to_pcap();
        let kept = file.with_extension("pcap");
        if write {
            fs::write(&kept, &made).unwrap();
        }
        assert!(fs::read(&kept).unwrap() == made, "{}: other bytes", kept.display());
    }
}

#[test]
fn the_analyst_finds_what_each_scenario_announces_and_nothing_else() {
    for (file, text) in scenarios() {
        let generated = generated(&file, &text);
        let announced: BTreeSet<_> = generated.findings.iter().copied().collect();
        let (found, _) = seen(&generated.to_pcap());
        assert_eq!(found, announced, "{}", file.display());
    }
}

#[test]
fn there_is_a_scenario_for_every_opcode_and_for_every_finding() {
    let (mut kinds, mut opcodes) = (BTreeSet::new(), BTreeSet::new());
    for (file, text) in scenarios() {
        let (found, in_it) = seen(&generated(&file, &text).to_pcap());
        kinds.extend(found);
        opcodes.extend(in_it);
    }
    let without: Vec<_> = Opcode::all().filter(|info| !opcodes.contains(&info.opcode.0)).collect();
    let without: Vec<_> = without.iter().map(|info| info.name).collect();
    assert_eq!(without, [""; 0], "opcodes without a scenario");
    // `rxe gen` writes whole frames.
    kinds.insert(Kind::CutFrames);
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "findings without a scenario: {missing:?}");
}

/// Returns the texts of all errors for which a responder may refuse a request.
fn refusals() -> BTreeSet<String> {
    let memory = AccessError::UnknownKey;
    let mut all = vec![ResponderError::SequenceGap];
    // Each error names the next, so that a new one cannot be forgotten.
    while let Some(next) = match all[all.len() - 1] {
        ResponderError::SequenceGap => Some(ResponderError::ReceiverNotReady),
        ResponderError::ReceiverNotReady => Some(ResponderError::OpcodeOutOfSequence),
        ResponderError::OpcodeOutOfSequence => Some(ResponderError::OperationNotEnabled),
        ResponderError::OperationNotEnabled => Some(ResponderError::TooManyReads),
        ResponderError::TooManyReads => Some(ResponderError::BadLength),
        ResponderError::BadLength => Some(ResponderError::MessageTooLong),
        ResponderError::MessageTooLong => Some(ResponderError::MisalignedAtomic),
        ResponderError::MisalignedAtomic => Some(ResponderError::InvalidateRefused),
        ResponderError::InvalidateRefused => Some(ResponderError::UnknownXrcSrq),
        ResponderError::UnknownXrcSrq => Some(ResponderError::RemoteAccess(memory)),
        ResponderError::RemoteAccess(_) => Some(ResponderError::BadReceiveBuffer(memory)),
        ResponderError::BadReceiveBuffer(_) => None,
    } {
        all.push(next);
    }
    all.iter().map(|fault| kind_of(&format!("NAK: {fault}"))).collect()
}

/// Returns the text of an error without the detail of an access.
fn kind_of(what: &str) -> String {
    const DETAILED: [&str; 2] =
        ["NAK: rkey refused", "NAK: the posted receive buffer is not valid"];
    DETAILED.into_iter().find(|kind| what.starts_with(kind)).unwrap_or(what).to_owned()
}

/// Reasons to drop a packet that no scenario shows.
const NOT_SHOWN: [DropReason; 3] = [
    // The packet belongs to another protocol.
    DropReason::NotIp,
    // This needs a host with two addresses, and hosts of scenarios have one.
    DropReason::WrongDestination,
    // This needs parts of one READ that are requested again at the same moment, which no requester
    // does, or a thousand management datagrams that no process reads.
    DropReason::NoRoom,
];

#[test]
fn there_is_a_scenario_for_every_refusal_and_for_every_reason_to_drop() {
    let mut unaccepted = BTreeSet::new();
    for (file, text) in scenarios() {
        let all = generated(&file, &text).unaccepted;
        unaccepted.extend(all.into_keys().map(|(_, what)| kind_of(&what)));
    }
    let missing: Vec<_> = refusals().difference(&unaccepted).cloned().collect();
    assert!(missing.is_empty(), "refusals without a scenario: {missing:?}");
    let is_shown =
        |reason: &DropReason| unaccepted.contains(&format!("dropped: {}", reason.name()));
    let missing: Vec<_> = DropReason::ALL.into_iter().filter(|reason| !is_shown(reason)).collect();
    assert_eq!(missing, NOT_SHOWN, "reasons to drop a packet without a scenario");
}

#[test]
fn every_kind_of_fault_of_packets_is_in_a_scenario() {
    let all: String = scenarios().into_iter().map(|(_, text)| text).collect();
    let lines: Vec<_> = all.lines().filter(|line| line.starts_with("faults = ")).collect();
    for part in ["drop", "dup", "reorder", "delay", "±", "corrupt", "ecn", "burst", "after", "%"] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part} is in no scenario");
    }
}

/// The scenarios with the headers of third-party captures, and the source of these: a file, or the
/// rows of `vectors.tsv` whose source begins with this text. The last value states whether
/// addresses are compared.
const CAPTURED: [(&str, &str, bool); 8] = [
    ("connectx_read_cas", "mlx5-read-cas.pcap", true),
    ("huawei_send_imm", "oferby", true),
    ("connectx_vlan", "enjoy-digital__liteeth__test_rocev2-vlan", false),
    ("connectx_uc_cnp", "secdev", false),
    ("connectx_vf_ack_cnp", "Enizaksoy", false),
    ("connectx5_ack", "wantonsolutions__multi-tor", true),
    ("linux_rxe_send", "enjoy-digital__liteeth__test_rocev2-rxe", false),
    ("linux_rxe_read", "FlashBarryAllen", true),
];

/// Returns the fields of a frame that are compared, as text, or `None` for frames of other
/// protocols.
fn facts(bytes: &[u8], addresses: bool) -> Option<Vec<String>> {
    const NOT_COMPARED: [&str; 6] =
        ["Destination", "Source", "LocalCAGUID", "HeaderChecksum", "Data", "ICRC"];
    // The private data of RDMA CM begins with addresses too. IBTA A11.
    const ADDRESSES: [&str; 3] = ["Address", "PortGID", "PrivateData"];
    let frame = frame::decode_bytes(LinkType(1), bytes, bytes.len());
    let Content::Rdma(packets) = &frame.content else { return None };
    let [packet] = &packets[..] else { return None };
    let mut facts = vec![format!("{} bytes of payload", packet.payload_len)];
    for layer in frame.layers.iter().chain(&packet.layers) {
        for (field, value) in layer.fields(bytes) {
            let is_address = ADDRESSES.iter().any(|end| field.name.ends_with(end));
            if NOT_COMPARED.contains(&field.name) || !addresses && is_address {
                continue;
            }
            facts.push(format!("{}.{} {value:?}", layer.header.name, field.name));
        }
    }
    Some(facts)
}

#[test]
fn scenarios_of_hardware_have_the_headers_that_were_captured() {
    let test = "scenarios_of_hardware_have_the_headers_that_were_captured";
    for (name, source, addresses) in CAPTURED {
        let captured: Vec<Vec<u8>> = if source.ends_with(".pcap") {
            let Some(file) = read_bytes(test, source) else { return };
            pcap_frames(&file).into_iter().map(<[u8]>::to_vec).collect()
        } else {
            let Some(text) = read(test, "vectors.tsv") else { return };
            let rows = rows_of(&text).filter(|row| row[0].starts_with(source));
            rows.map(|row| unhex(row[5])).collect()
        };
        let facts = |frames: Vec<Vec<u8>>| -> Vec<_> {
            frames.iter().filter_map(|bytes| facts(bytes, addresses)).collect()
        };
        let (ours, theirs) = (facts(frames(name)), facts(captured));
        assert!(!ours.is_empty(), "{name}");
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn the_first_line_of_each_scenario_says_what_it_is() {
    for (file, text) in scenarios() {
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("# ") && first.len() > 20, "{}: {first}", file.display());
    }
}

//! `rxe decode --json` and tshark agree on every field that both know: in the captures of the project,
//! in those of other people's devices, and in the same frames behind other link layers.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod decode_util;
use decode_util::{Pcapng, frames_of, run};

/// Header, field, and the name in tshark.
const FIELDS: &[(&str, &str, &str)] = &[
    ("Ethernet", "Destination", "eth.dst"),
    ("Ethernet", "Source", "eth.src"),
    ("Ethernet", "EtherType", "eth.type"),
    ("VLAN", "PCP", "vlan.priority"),
    ("VLAN", "DEI", "vlan.dei"),
    ("VLAN", "VID", "vlan.id"),
    ("VLAN", "EtherType", "vlan.etype"),
    ("LinuxCooked", "PacketType", "sll.pkttype"),
    ("LinuxCooked", "ARPHRD", "sll.hatype"),
    ("LinuxCooked", "EtherType", "sll.etype"),
    ("LinuxCooked2", "InterfaceIndex", "sll.ifindex"),
    ("IPv4", "Version", "ip.version"),
    ("IPv4", "DSCP", "ip.dsfield.dscp"),
    ("IPv4", "ECN", "ip.dsfield.ecn"),
    ("IPv4", "TotalLength", "ip.len"),
    ("IPv4", "Identification", "ip.id"),
    ("IPv4", "FragmentOffset", "ip.frag_offset"),
    ("IPv4", "TimeToLive", "ip.ttl"),
    ("IPv4", "Protocol", "ip.proto"),
    ("IPv4", "HeaderChecksum", "ip.checksum"),
    ("IPv4", "SourceAddress", "ip.src"),
    ("IPv4", "DestinationAddress", "ip.dst"),
    ("IPv6", "Version", "ipv6.version"),
    ("IPv6", "DSCP", "ipv6.tclass.dscp"),
    ("IPv6", "ECN", "ipv6.tclass.ecn"),
    ("IPv6", "FlowLabel", "ipv6.flow"),
    ("IPv6", "PayloadLength", "ipv6.plen"),
    ("IPv6", "NextHeader", "ipv6.nxt"),
    ("IPv6", "HopLimit", "ipv6.hlim"),
    ("IPv6", "SourceAddress", "ipv6.src"),
    ("IPv6", "DestinationAddress", "ipv6.dst"),
    ("UDP", "SourcePort", "udp.srcport"),
    ("UDP", "DestinationPort", "udp.dstport"),
    ("UDP", "Length", "udp.length"),
    ("UDP", "Checksum", "udp.checksum"),
    ("LRH", "VL", "infiniband.lrh.vl"),
    ("LRH", "LVer", "infiniband.lrh.lver"),
    ("LRH", "SL", "infiniband.lrh.sl"),
    ("LRH", "LNH", "infiniband.lrh.lnh"),
    ("LRH", "DLID", "infiniband.lrh.dlid"),
    ("LRH", "PktLen", "infiniband.lrh.pktlen"),
    ("LRH", "SLID", "infiniband.lrh.slid"),
    ("GRH", "IPVer", "infiniband.grh.ipver"),
    ("GRH", "TClass", "infiniband.grh.tclass"),
    ("GRH", "FlowLabel", "infiniband.grh.flowlabel"),
    ("GRH", "PayLen", "infiniband.grh.paylen"),
    ("GRH", "NxtHdr", "infiniband.grh.nxthdr"),
    ("GRH", "HopLmt", "infiniband.grh.hoplmt"),
    ("GRH", "SGID", "infiniband.grh.sgid"),
    ("GRH", "DGID", "infiniband.grh.dgid"),
    ("BTH", "OpCode", "infiniband.bth.opcode"),
    ("BTH", "SE", "infiniband.bth.se"),
    ("BTH", "M", "infiniband.bth.m"),
    ("BTH", "Pad", "infiniband.bth.padcnt"),
    ("BTH", "TVer", "infiniband.bth.tver"),
    ("BTH", "P_Key", "infiniband.bth.p_key"),
    ("BTH", "DestQP", "infiniband.bth.destqp"),
    ("BTH", "A", "infiniband.bth.a"),
    ("BTH", "Resv7", "infiniband.bth.reserved7"),
    ("BTH", "PSN", "infiniband.bth.psn"),
    ("DETH", "Q_Key", "infiniband.deth.q_key"),
    ("DETH", "SrcQP", "infiniband.deth.srcqp"),
    ("RETH", "VA", "infiniband.reth.va"),
    ("RETH", "R_Key", "infiniband.reth.r_key"),
    ("RETH", "DMALen", "infiniband.reth.dmalen"),
    ("AtomicETH", "VA", "infiniband.reth.va"),
    ("AtomicETH", "R_Key", "infiniband.reth.r_key"),
    ("AtomicETH", "SwapDt", "infiniband.atomiceth.swapdt"),
    ("AtomicETH", "CmpDt", "infiniband.atomiceth.cmpdt"),
    ("AETH", "Syndrome", "infiniband.aeth.syndrome"),
    ("AETH", "MSN", "infiniband.aeth.msn"),
    ("AtomicAckETH", "OrigRemDt", "infiniband.atomicacketh.origremdt"),
    ("ImmDt", "ImmDt", "infiniband.immdt"),
    ("IETH", "R_Key", "infiniband.ieth"),
    ("ICRC", "ICRC", "infiniband.invariant.crc"),
    ("MAD", "BaseVersion", "infiniband.mad.baseversion"),
    ("MAD", "MgmtClass", "infiniband.mad.mgmtclass"),
    ("MAD", "ClassVersion", "infiniband.mad.classversion"),
    ("MAD", "Method", "infiniband.mad.method"),
    ("MAD", "Status", "infiniband.mad.status"),
    ("MAD", "ClassSpecific", "infiniband.mad.classspecific"),
    ("MAD", "TransactionID", "infiniband.mad.transactionid"),
    ("MAD", "AttributeID", "infiniband.mad.attributeid"),
    ("MAD", "AttributeModifier", "infiniband.mad.attributemodifier"),
    ("REQ", "LocalCommunicationID", "infiniband.cm.req"),
    ("REQ", "ServiceID", "infiniband.cm.req.serviceid"),
    ("REQ", "LocalCAGUID", "infiniband.cm.req.localcaguid"),
    ("REQ", "LocalQ_Key", "infiniband.cm.req.localqkey"),
    ("REQ", "LocalQPN", "infiniband.cm.req.localqpn"),
    ("REQ", "ResponderResources", "infiniband.cm.req.responderres"),
    ("REQ", "LocalEECN", "infiniband.cm.req.localeecn"),
    ("REQ", "InitiatorDepth", "infiniband.cm.req.initdepth"),
    ("REQ", "RemoteEECN", "infiniband.cm.req.remoteeecn"),
    ("REQ", "RemoteCMResponseTimeout", "infiniband.cm.req.remoteresptout"),
    ("REQ", "TransportServiceType", "infiniband.cm.req.transpsvctype"),
    ("REQ", "EndToEndFlowControl", "infiniband.cm.req.e2eflowctrl"),
    ("REQ", "StartingPSN", "infiniband.cm.req.startpsn"),
    ("REQ", "LocalCMResponseTimeout", "infiniband.cm.req.localresptout"),
    ("REQ", "RetryCount", "infiniband.cm.req.retrcount"),
    ("REQ", "PartitionKey", "infiniband.cm.req.pkey"),
    ("REQ", "PathPacketPayloadMTU", "infiniband.cm.req.pppmtu"),
    ("REQ", "RDCExists", "infiniband.cm.req.rdcexist"),
    ("REQ", "RNRRetryCount", "infiniband.cm.req.rnrretrcount"),
    ("REQ", "MaxCMRetries", "infiniband.cm.req.maxcmretr"),
    ("REQ", "SRQ", "infiniband.cm.req.srq"),
    ("REQ", "ExtendedTransportType", "infiniband.cm.req.ext_transport"),
    ("REQ", "PrimaryLocalPortLID", "infiniband.cm.req.prim_locallid"),
    ("REQ", "PrimaryRemotePortLID", "infiniband.cm.req.prim_remotelid"),
    ("REQ", "PrimaryLocalPortGID", "infiniband.cm.req.prim_localgid"),
    ("REQ", "PrimaryRemotePortGID", "infiniband.cm.req.prim_remotegid"),
    ("REQ", "PrimaryFlowLabel", "infiniband.cm.req.prim_flowlabel"),
    ("REQ", "PrimaryPacketRate", "infiniband.cm.req.prim_pktrate"),
    ("REQ", "PrimaryTrafficClass", "infiniband.cm.req.prim_tfcclass"),
    ("REQ", "PrimaryHopLimit", "infiniband.cm.req.prim_hoplim"),
    ("REQ", "PrimarySL", "infiniband.cm.req.prim_sl"),
    ("REQ", "PrimarySubnetLocal", "infiniband.cm.req.prim_subnetlocal"),
    ("REQ", "PrimaryLocalACKTimeout", "infiniband.cm.req.prim_localacktout"),
    ("REQ", "AlternateLocalPortLID", "infiniband.cm.req.alt_locallid"),
    ("REQ", "AlternateHopLimit", "infiniband.cm.req.alt_hoplim"),
    ("REP", "LocalCommunicationID", "infiniband.cm.rep"),
    ("REP", "RemoteCommunicationID", "infiniband.cm.rep.remotecommid"),
    ("REP", "LocalQ_Key", "infiniband.cm.rep.localqkey"),
    ("REP", "LocalQPN", "infiniband.cm.rep.localqpn"),
    ("REP", "LocalEEContextNumber", "infiniband.cm.rep.localeecn"),
    ("REP", "StartingPSN", "infiniband.cm.rep.startpsn"),
    ("REP", "ResponderResources", "infiniband.cm.rep.respres"),
    ("REP", "InitiatorDepth", "infiniband.cm.rep.initdepth"),
    ("REP", "TargetACKDelay", "infiniband.cm.rep.tgtackdelay"),
    ("REP", "FailoverAccepted", "infiniband.cm.rep.failoveracc"),
    ("REP", "EndToEndFlowControl", "infiniband.cm.rep.e2eflowctrl"),
    ("REP", "RNRRetryCount", "infiniband.cm.rep.rnrretrcount"),
    ("REP", "SRQ", "infiniband.cm.rep.srq"),
    ("REP", "LocalCAGUID", "infiniband.cm.rep.localcaguid"),
    ("RTU", "LocalCommunicationID", "infiniband.cm.rtu.localcommid"),
    ("RTU", "RemoteCommunicationID", "infiniband.cm.rtu.remotecommid"),
    ("REJ", "LocalCommunicationID", "infiniband.cm.rej.localcommid"),
    ("REJ", "RemoteCommunicationID", "infiniband.cm.rej.remotecommid"),
    ("REJ", "MessageREJected", "infiniband.cm.rej.msgrej"),
    ("REJ", "RejectInfoLength", "infiniband.cm.rej.rejinfolen"),
    ("REJ", "Reason", "infiniband.cm.rej.reason"),
    ("DREQ", "LocalCommunicationID", "infiniband.cm.dreq.localcommid"),
    ("DREQ", "RemoteCommunicationID", "infiniband.cm.dreq.remotecommid"),
    ("DREQ", "RemoteQPN", "infiniband.cm.req.remoteqpneecn"),
    ("DREP", "LocalCommunicationID", "infiniband.cm.drsp.localcommid"),
    ("DREP", "RemoteCommunicationID", "infiniband.cm.drsp.remotecommid"),
];

/// Numbers that tshark prints in hexadecimal without 0x.
const IN_BARE_HEX: [&str; 2] = ["infiniband.immdt", "infiniband.ieth"];

#[test]
fn every_field_that_both_know_is_the_same() {
    let test = "every_field_that_both_know_is_the_same";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.pcapng");
    let frames = all_frames(test);
    let mut file = Pcapng::new();
    for (nth, (_, link, bytes)) in frames.iter().enumerate() {
        file.packet(*link, nth as u64 * 1_000_000_007, bytes, bytes.len());
    }
    fs::write(&path, file.bytes).unwrap();
    let Some(theirs) = tshark(test, &path) else { return };
    let ours = decoded(&path);
    let (mut compared, mut wrong) = (HashSet::new(), Vec::new());
    for (nth, (name, _, _)) in frames.iter().enumerate() {
        let row = &theirs[nth];
        let Some(packet) = ours.get(&(nth as u64 + 1)) else {
            let opcode = &row["infiniband.bth.opcode"];
            if !opcode.is_empty() {
                wrong.push(format!("{name}: only tshark finds a packet"));
            }
            continue;
        };
        if packet["time"] != row["frame.time_epoch"] {
            wrong.push(format!("{name}: time {} {}", packet["time"], row["frame.time_epoch"]));
        }
        for (header, field, their_name) in FIELDS {
            // A second header of a kind is the second occurrence of its fields.
            for (occurrence, suffix) in [(0, ""), (1, "2")] {
                let mine = &packet[format!("{header}{suffix}")][field];
                // It has other names for a service tag, and counts the tag behind it as the first.
                let service = header == &"VLAN" && packet["Ethernet"]["EtherType"] == 0x88a8;
                let (their_name, occurrence) = match occurrence {
                    0 if service => match service_tag(field) {
                        Some(name) => (name, 0),
                        None => continue,
                    },
                    1 if service => (*their_name, 0),
                    _ => (*their_name, occurrence),
                };
                let their = row[their_name].split(';').nth(occurrence).unwrap_or_default();
                let bare = IN_BARE_HEX.contains(&their_name) && !their.is_empty();
                let their = if bare { format!("0x{their}") } else { their.to_owned() };
                if mine.is_null() || their.is_empty() {
                    continue;
                }
                if let Some(why) = tshark_is_wrong(header, field, packet) {
                    compared.insert(why);
                    continue;
                }
                compared.insert(their_name);
                if normal(mine) != normal(&Value::from(their.as_str())) {
                    wrong.push(format!("{name}: {header}.{field} is {mine}, tshark: {their}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(60)].join("\n")
    );
    let missed = FIELDS.iter().map(|f| f.2).filter(|name| !compared.contains(name));
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "fields that no frame has: {missed:?}");
}

/// tshark's name of a field of a service tag.
fn service_tag(field: &str) -> Option<&'static str> {
    SERVICE_TAG.into_iter().find(|(ours, _)| *ours == field).map(|(_, theirs)| theirs)
}

const SERVICE_TAG: [(&str, &str); 3] =
    [("PCP", "ieee8021ad.priority"), ("DEI", "ieee8021ad.dei"), ("VID", "ieee8021ad.id")];

/// Why tshark's value of a field is not compared.
fn tshark_is_wrong(header: &str, field: &str, _packet: &Value) -> Option<&'static str> {
    match (header, field) {
        // Of the 32 bits of flow label (20), reserved (6) and rate (6), it takes the first 12 for the
        // one and the last 8 but 2 for the other. IBTA 12.6.5, table 106.
        ("REQ", "PrimaryFlowLabel") => Some("infiniband.cm.req.prim_flowlabel"),
        ("REQ", "PrimaryPacketRate") => Some("infiniband.cm.req.prim_pktrate"),
        _ => None,
    }
}

/// A value in one form: numbers in decimal, text in lower case.
fn normal(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_lowercase);
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    number.map_or(text, |n: u64| n.to_string())
}

/// What tshark says of each frame: a map from its names of fields to values, several with `;` between.
fn tshark(test: &str, path: &Path) -> Option<Vec<BTreeMap<String, String>>> {
    let mut names: Vec<_> = FIELDS.iter().map(|f| f.2).collect();
    names.extend(SERVICE_TAG.map(|(_, theirs)| theirs));
    names.push("frame.time_epoch");
    names.sort_unstable();
    names.dedup();
    let out = Command::new("tshark")
        .arg("-r")
        .arg(path)
        // The payload of a SEND is taken for a protocol of NFS if it looks like it.
        .args(["-n", "--disable-heuristic", "rpcrdma_infiniband", "-T", "fields"])
        .args(["-E", "separator=|", "-E", "aggregator=;", "-E", "occurrence=a"])
        .args(names.iter().flat_map(|name| ["-e", name]))
        .output();
    let Ok(out) = out else {
        xtask::skipped(test, "tshark is not installed");
        return None;
    };
    let text = String::from_utf8(out.stdout).unwrap();
    let row = |line: &str| {
        let values = line.split('|').map(str::to_owned);
        names.iter().map(|name| (*name).to_owned()).zip(values).collect()
    };
    Some(text.lines().map(row).collect())
}

/// What `rxe decode --json` says, by frame.
fn decoded(path: &Path) -> BTreeMap<u64, Value> {
    let out = run(&["decode", "--json", path.to_str().unwrap()]);
    assert!(out.status.success(), "{out:?}");
    let lines = out.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let objects = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    objects.map(|object| (object["frame"].as_u64().unwrap(), object)).collect()
}

/// Name, link type and bytes of each frame: all captures, and one frame of each opcode behind other link
/// layers.
fn all_frames(test: &str) -> Vec<(String, u16, Vec<u8>)> {
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
        Err(e) => xtask::skipped(test, &format!("captures of other devices: {e}")),
    }
    assert!(all.len() > 500, "{} frames", all.len());
    let mut opcodes = HashSet::new();
    let plain: Vec<_> = all.clone();
    for (name, _, frame) in plain {
        // The first frame of each opcode and IP version that is no VLAN's.
        let at = match frame[12..14] {
            [0x08, 0x00] if frame[23] == 17 => 14 + 20 + 8,
            [0x86, 0xdd] => 14 + 40 + 8,
            _ => continue,
        };
        if opcodes.insert((at, frame[at])) {
            all.extend(rewrapped(&name, &frame, at));
        }
    }
    all
}

const ETHERNET: u16 = 1;

/// The same packet behind other link layers. Its BTH is at `bth`.
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
        [0x30, 0x50 | lnh, 0x12, 0x34, words[0], words[1], 0x56, 0x78]
    };
    let global = [&lrh(3, 40 + transport.len())[..], &grh, transport, &[0xab, 0xcd]].concat();
    let local = [&lrh(2, transport.len())[..], transport, &[0xab, 0xcd]].concat();
    let erf = |kind: u8, extension: &[u8], frame: &[u8]| {
        let len = u16::try_from(16 + extension.len() + frame.len()).unwrap().to_be_bytes();
        let more = if extension.is_empty() { 0 } else { 0x80 };
        let wire = u16::try_from(frame.len()).unwrap().to_be_bytes();
        let head = [kind | more, 0x04, len[0], len[1], 0, 0, wire[0], wire[1]];
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
        } else if path.extension().is_some_and(|ext| ext == "pcap" || ext == "pcapng") {
            found.push(path);
        }
    }
    found
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

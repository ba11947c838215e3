use std::time::Duration;

use super::*;
use crate::capture::LinkType;
use crate::frame::{Content, Icrc, decode_bytes};
use crate::header::{self, Value};

/// Returns a scenario with two hosts, a connection, and these steps.
fn with(steps: &str) -> String {
    format!(
        "steps = [ {steps} ]\n\
         [hosts.a]\naddress = \"10.0.0.1\"\n[hosts.b]\naddress = \"10.0.0.2\"\nfaults = \"drop 1 after 99\"\n\
         [qps.a]\nhost = \"a\"\npeer = \"b\"\n[qps.b]\nhost = \"b\"\npeer = \"a\"\n"
    )
}

#[track_caller]
fn made(text: &str) -> Generated {
    generate(text, Bounds::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn wrong(text: &str) -> (usize, usize, String) {
    let error = generate(text, Bounds::default()).unwrap_err();
    (error.line, error.column, error.text)
}

#[test]
fn fields_are_written_where_they_are_read() {
    let headers = [&header::BTH, &header::RETH, &header::AETH, &header::FETH, &header::IPV6];
    for header in headers {
        for field in header.fields.iter().filter(|field| field.width <= 64) {
            for number in [u64::MAX, 0x5a5a_5a5a_5a5a_5a5a, 1] {
                for background in [0, 0xff] {
                    let mut bytes = vec![background; header.len];
                    let number = number & u64::MAX >> (64 - field.width);
                    field::put(field, &mut bytes, number);
                    if let Some(Value::Number(read, _)) = field.value(&bytes) {
                        assert_eq!(read, number, "{}.{}", header.name, field.name);
                    }
                    field::put(field, &mut bytes, u64::from(background) * 0x0101_0101_0101_0101);
                    assert!(bytes.iter().all(|b| *b == background), "{}: others", field.name);
                }
            }
        }
    }
}

#[test]
fn a_packet_has_the_fields_that_are_given_and_a_right_icrc() {
    let text = with(
        "{ packet = { qp = \"a\", bytes = 5, count = 2, after = \"1us\", \
           IPv4 = { Identification = 7, TimeToLive = 3, ECN = 3 }, UDP = { SourcePort = 99 }, \
           VLAN = { VID = 5, EtherType = 0x0800 }, \
           RETH = { VA = \"0xffffffffffffffff\" }, \
           BTH = { OpCode = \"rc-write-only\", A = true, PSN = { start = 0xffffff, step = 1 } } } }",
    );
    let frames = made(&text).frames;
    // At 10 Gbit/s, sending the first frame takes 68 ns.
    assert_eq!(frames[1].at - frames[0].at, Duration::from_nanos(1068));
    let psns = [0xff_ffff, 0];
    for (frame, psn) in frames.iter().zip(psns) {
        let decoded = decode_bytes(crate::capture::LinkType(1), &frame.bytes, frame.bytes.len());
        let Content::Rdma(packets) = &decoded.content else { panic!("{decoded:?}") };
        let packet = &packets[0];
        assert_eq!((packet.icrc, packet.wrong), (Icrc::Right, None));
        assert_eq!((packet.bth.psn.value(), packet.bth.pad, packet.bth.ack_req), (psn, 3, true));
        assert_eq!((packet.ext.reth.unwrap().va, packet.ext.reth.unwrap().dma_len), (u64::MAX, 5));
        assert!(decoded.congestion_experienced);
    }
}

#[test]
fn a_message_of_the_communication_manager_has_the_fields_that_are_given() {
    let text = with(
        "{ packet = { from = \"a\", to = \"b\", BTH = { OpCode = \"UD_SEND_ONLY\" }, \
           MAD = { TransactionID = 5 }, REJ = { Reason = 28, PrivateData = \"0102\" } } }",
    );
    let frame = &made(&text).frames[0];
    let decoded = decode_bytes(LinkType::ETHERNET, &frame.bytes, frame.bytes.len());
    let Content::Rdma(packets) = &decoded.content else { panic!("{decoded:?}") };
    let packet = &packets[0];
    let deth = packet.ext.deth.unwrap();
    assert_eq!((packet.icrc, packet.wrong, packet.payload_len), (Icrc::Right, None, 256));
    assert_eq!((packet.bth.dest_qp.value(), deth.src_qp.value()), (1, 1));
    assert_eq!(deth.qkey.value(), 0x8001_0000);
    let [.., mad, rej, _] = &packet.layers[..] else { panic!("{packet:?}") };
    let value = |layer: &header::Layer, name: &str| {
        let found = layer.fields(&frame.bytes).find(|(field, _)| field.name == name);
        found.unwrap_or_else(|| panic!("{}.{name}", layer.header.name)).1
    };
    assert_eq!((mad.header.name, rej.header.name), ("MAD", "REJ"));
    for (name, number, width) in [
        ("BaseVersion", 1, 8),
        ("MgmtClass", 7, 8),
        ("ClassVersion", 2, 8),
        ("Method", 3, 8),
        ("TransactionID", 5, 64),
        ("AttributeID", 0x12, 16),
    ] {
        assert_eq!(value(mad, name), Value::Number(number, width), "{name}");
    }
    assert_eq!(value(rej, "Reason"), Value::Number(28, 16));
    let Value::Bytes(private) = value(rej, "PrivateData") else { panic!("{rej:?}") };
    assert_eq!((&private[..3], private.len()), (&[1, 2, 0][..], 148));
}

/// Returns the headers of a frame's packet, with their fields as text.
fn headers(frame: &GeneratedFrame) -> Vec<(&'static str, Vec<(&'static str, String)>)> {
    let decoded = decode_bytes(LinkType::ETHERNET, &frame.bytes, frame.bytes.len());
    let Content::Rdma(packets) = &decoded.content else { panic!("{decoded:?}") };
    let fields = |layer: &header::Layer| {
        layer
            .fields(&frame.bytes)
            .map(|(field, value)| (field.name, format!("{value:?}")))
            .collect()
    };
    packets[0].layers.iter().map(|layer| (layer.header.name, fields(layer))).collect()
}

#[test]
fn a_request_for_a_port_has_the_addresses_of_rdma_cm() {
    let made_with = |fields: &str| {
        let step = format!(
            "{{ packet = {{ from = \"a\", to = \"b\", BTH = {{ OpCode = \"UD_SEND_ONLY\" }}, {fields} }} }}"
        );
        headers(&made(&with(&step)).frames[0])
    };
    let addresses = "IP_CM = { SourcePort = 43840, SourceAddress = \"10.0.0.1\", \
                     DestinationAddress = \"10.0.0.2\", PrivateData = \"abcd\" }";
    let by_name = made_with(&format!("REQ = {{ ServiceID = 0x1061c06 }}, {addresses}"));
    let as_bytes = made_with(
        "REQ = { ServiceID = 0x1061c06, PrivateData = \"0040ab40 000000000000000000000000 0a000001 \
         000000000000000000000000 0a000002 abcd\" }",
    );
    assert_eq!(by_name, as_bytes);
    let names: Vec<_> = by_name.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["BTH", "DETH", "MAD", "REQ", "IP_CM_Service", "IP_CM", "ICRC"]);
    let shown = format!("{:?}", &by_name[3..6]);
    for (part, times) in [
        ("(\"DestinationPort\", \"Number(7174, 16)\")", 1),
        ("(\"SourcePort\", \"Number(43840, 16)\")", 1),
        ("(\"SourceAddress\", \"Ipv4(10.0.0.1)\")", 1),
        ("(\"DestinationAddress\", \"Ipv4(10.0.0.2)\")", 1),
        ("(\"PrivateData\", \"Bytes([171, 205, 0", 1),
    ] {
        assert_eq!(shown.matches(part).count(), times, "{part}: {shown}");
    }
    // The addresses are IPv6, and the message is SIDR_REQ.
    let six = made_with(
        "SIDR_REQ = { ServiceID = 0x1110001 }, IP_CM = { SourceAddress = \"fd00::1\", \
         DestinationAddress = \"fd00::2\" }",
    );
    let shown = format!("{:?}", six.iter().find(|(name, _)| *name == "IP_CM").unwrap());
    assert!(shown.contains("(\"IPVersion\", \"Number(6, 4)\")"), "{shown}");
    assert!(shown.contains("(\"DestinationAddress\", \"Ipv6(fd00::2)\")"), "{shown}");
    // Another service ID or another version of the annex leaves only private data.
    for other in ["ServiceID = 0x1070001", "ServiceID = 0x1061c06, PrivateData = \"1040\""] {
        let headers = made_with(&format!("REQ = {{ {other} }}"));
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["BTH", "DETH", "MAD", "REQ", "ICRC"], "{other}");
    }
}

#[test]
fn random_bytes_follow_from_the_seed() {
    let text = |seed| {
        let step = "{ packet = { qp = \"a\", bytes = 64, pattern = \"random\", \
                     BTH = { OpCode = 4 } } }";
        format!("seed = {seed}\n{}", with(step))
    };
    assert_eq!(made(&text(1)), made(&text(1)));
    assert_ne!(made(&text(1)).frames, made(&text(2)).frames);
}

#[test]
fn repetitions_and_waits_take_their_time() {
    let step = "{ repeat = { times = 3, steps = [ \
                 { send = { qp = \"a\", bytes = 4 } }, { wait = \"1ms\" } ] } }";
    let text = with(&format!("{{ receive = {{ qp = \"b\", bytes = 4, count = 3 }} }}, {step}"));
    let generated = made(&text);
    assert_eq!(generated.frames.len(), 6, "three requests, three acknowledgements");
    let took = generated.frames[4].at - generated.frames[0].at;
    assert_eq!(took, Duration::from_millis(2));
    let ended: Vec<_> =
        generated.completions.iter().map(|((qp, how), n)| (&**qp, *how, *n)).collect();
    assert_eq!(ended, [("a", "success", 3), ("b", "success", 3)]);
    let comments: Vec<_> = generated.frames.iter().map(|frame| frame.comments.join(";")).collect();
    assert_eq!(
        comments,
        ["b: receive complete: success", "a: request complete: success"].repeat(3)
    );
}

#[test]
fn each_completion_has_the_name_of_its_queue_pair() {
    let steps = "{ receive = { qp = \"b\", bytes = 4, count = 2 } }, \
                 { receive = { qp = \"shared\", bytes = 4 } }, \
                 { receive = { qp = \"to\", bytes = 44 } }, \
                 { send = { qp = \"a\", bytes = 4, count = 2 } }, \
                 { send = { qp = \"initiator\", bytes = 4 } }, \
                 { send = { qp = \"from\", bytes = 4, to = \"to\" } }";
    let pair = |name: &str, host: &str, peer: &str, service: &str| {
        format!("[qps.{name}]\nhost = \"{host}\"\npeer = \"{peer}\"\nservice = \"{service}\"\n")
    };
    let text = with(steps)
        + &pair("initiator", "a", "shared", "xrc_send")
        + &pair("shared", "b", "initiator", "xrc_recv")
        + &pair("from", "a", "to", "ud")
        + &pair("to", "b", "from", "ud");
    let ended: Vec<_> = (made(&text).completions.into_iter())
        .map(|((pair, status), count)| format!("{pair}: {count} {status}"))
        .collect();
    let expected = ["a: 2", "b: 2", "from: 1", "initiator: 1", "shared: 1", "to: 1"]
        .map(|it| format!("{it} success"));
    assert_eq!(ended, expected);
}

#[test]
fn a_failure_stands_at_the_packet_that_tells_it() {
    let generated = made(&with("{ write = { qp = \"a\", bytes = 4, rkey = 9 } }"));
    let comments: Vec<_> = generated.frames.iter().map(|frame| frame.comments.join(";")).collect();
    assert_eq!(comments, ["", "a: completed with an error: remote access error"]);
    let file = generated.to_pcapng().unwrap();
    let mut reader = crate::capture::Reader::new(std::io::Cursor::new(file)).unwrap();
    let mut read = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        read.push((record.bytes.to_vec(), record.comments.join(";")));
    }
    let frames = generated.frames.iter().map(|frame| frame.bytes.clone());
    assert_eq!(read, frames.zip(comments).collect::<Vec<_>>());
}

/// The seconds of a frame's time in a pcap file have 32 bits.
#[test]
fn a_scenario_ends_before_the_times_of_captures_do() {
    let text = |start: u32| {
        let step = "{ packet = { qp = \"a\", BTH = { OpCode = 4 } } }";
        format!("start = {start}\n{}", with(&format!("{step}, {{ wait = \"2s\" }}, {step}")))
    };
    assert_eq!(made(&text(u32::MAX - 3)).frames.last().unwrap().at.as_secs(), 0xffff_fffe);
    let (line, _, said) = wrong(&text(u32::MAX - 1));
    assert_eq!(line, 2, "{said}");
    assert!(said.ends_with("let the scenario `start` earlier"), "{said}");
}

#[test]
fn mistakes_are_said_with_line_and_column() {
    for (step, column, said) in [
        ("{ sned = { qp = \"a\" } }", 13, "unknown variant `sned`"),
        ("{ send = { qp = \"c\" } }", 27, "there is no [qps.c]"),
        ("{ send = { qp = \"a\", size = 3 } }", 32, "unknown field `size`"),
        ("{ read = { qp = \"a\", imm = 3 } }", 38, "this operation has no `imm`"),
        ("{ wait = \"5 days\" }", 20, "\"5 days\" is no time"),
        ("{ packet = { qp = \"a\" } }", 29, "this packet has no opcode"),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 4, PNS = 1 } } }",
            54,
            "BTH has no field `PNS`",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 4, PSN = 0x1000000 } } }",
            60,
            "PSN has 24 bits",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = \"RC_SENT\" } } }",
            51,
            "no opcode has the name",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 4 }, AETH = { MSN = 1 } } }",
            63,
            "RC_SEND_ONLY has no AETH",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 100 }, REQ = {}, RTU = {} } }",
            74,
            "a management datagram has one message",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 100 }, bytes = 4, RTU = {} } }",
            66,
            "leave out `bytes`",
        ),
        ("{ packet = { BTH = { OpCode = 4 } } }", 11, "where is this packet from and to?"),
        (
            "{ packet = { qp = \"a\", pad = 70000, BTH = { OpCode = 4 } } }",
            40,
            "a pad has at most 65000",
        ),
        (
            "{ packet = { qp = \"a\", bytes = 65000, pad = 99, BTH = { OpCode = 4 } } }",
            11,
            "the packet has 65111 bytes from BTH to pad: at most 65100",
        ),
        (
            "{ packet = { qp = \"a\", BTH = { OpCode = 4 }, ICRC = \"bad\" } }",
            63,
            "ICRC is \"right\"",
        ),
        ("{ packet = { qp = \"a\", BTH = { OpCode = 4 }, data = \"123\" } }", 63, "pairs of hex"),
        ("{ send = { qp = \"a\", bytes = 3000000000 } }", 11, "it cannot be posted"),
        ("{ send = { qp = \"a\" }, read = { qp = \"a\" } }", 11, "a step has one name: write"),
        ("{}", 11, "a step has one name: write"),
        (
            "{ send = { qp = \"a\", count = 2000 } }",
            11,
            "the send queue is full: it has room for 1024 requests, so let some complete in between: { wait = \"\" }",
        ),
        (
            "{ receive = { qp = \"b\", bytes = 9, count = 2000 } }",
            11,
            "the receive queue is full: it has room for 1024 requests",
        ),
    ] {
        let (line, at, text) = wrong(&with(step));
        assert!(text.contains(said), "{step}: {text}");
        assert_eq!((line, at), (1, column), "{step}: {text}");
    }
    let fault = with("").replace("drop 1 after 99", "drop dead");
    let (line, column, text) = wrong(&fault);
    assert_eq!((line, column), (6, 16));
    assert!(text.starts_with("`dead`: neither an amount"), "{text}");
    let finding = format!("findings = [\"nothing\"]\n{}", with(""));
    let (line, column, text) = wrong("");
    assert_eq!((line, column), (1, 1), "{text}");
    assert!(text.contains("steps"), "{text}");
    let (line, column, text) = wrong(&finding);
    assert_eq!((line, column), (1, 13), "{text}");
    assert_eq!(wrong("seed = 1\nsteps = [ }").0, 2);
}

#[test]
fn bounds_are_kept() {
    let endless = "{ packet = { qp = \"a\", count = 4000000000, BTH = { OpCode = 4 } } }";
    let many = "{ repeat = { times = 4000000000, steps = [ { wait = \"0s\" } ] } }";
    let bounds = Bounds { frames: 1000, ..Bounds::default() };
    for (step, said) in [(endless, "more than 1000 frames"), (many, "too many steps")] {
        let error = generate(&with(step), bounds).unwrap_err();
        assert!(error.text.contains(said), "{error}");
    }
    let memory = with("").replace("faults", "memory = 999999999\nfaults");
    assert!(wrong(&memory).2.contains("too much memory"));
}

#[test]
fn a_frame_that_no_device_takes_reaches_no_engine() {
    let packet = |header: &str| {
        let bth = "BTH = { OpCode = \"RC_SEND_ONLY\", PSN = \"+0\", A = 1 }";
        with(&format!("{{ packet = {{ qp = \"a\", bytes = 4, {header}, {bth} }} }}"))
    };
    for (header, reason) in [
        ("UDP = { Length = 9 }", "bad_ip_header"),
        ("UDP = { DestinationPort = 4790 }", "not_roce"),
        ("IPv4 = { Flags = 1 }", "fragment"),
        ("Ethernet = { EtherType = 0x0806 }", "not_ip"),
    ] {
        let made = made(&packet(header));
        assert_eq!(made.frames.len(), 1, "{header}");
        let dropped = ("host b".to_owned(), format!("dropped: {reason}"));
        assert_eq!(made.unaccepted, [(dropped, 1)].into(), "{header}");
    }
}

#[test]
fn a_packet_to_a_group_comes_to_all_others() {
    let packet = "{ packet = { qp = \"a\", bytes = 4, IPv4 = { DestinationAddress = \"239.1.1.1\" }, \
                  BTH = { OpCode = \"UD_SEND_ONLY\", DestQP = 0xffffff } } }";
    let made = made(&(with(packet) + "[hosts.c]\naddress = \"10.0.0.3\"\n"));
    let dropped = |host: &str| ((format!("host {host}"), "dropped: no_multicast".to_owned()), 1);
    assert_eq!(made.unaccepted, [dropped("b"), dropped("c")].into());
}

#[test]
fn hosts_that_cannot_reach_each_other_are_refused_by_their_addresses() {
    let text = with("{ wait = \"1us\" }");
    let said =
        "no packet can go from 10.0.0.1 to fd00::2: give both hosts IPv4 or both IPv6 addresses";
    let other = text.replace("10.0.0.2", "fd00::2");
    assert_eq!(wrong(&other), (9, 8, said.into()));
    let datagrams = with("{ send = { qp = \"c\", bytes = 4, to = \"d\" } }")
        + "[hosts.c]\naddress = \"fd00::2\"\n[qps.c]\nhost = \"a\"\nservice = \"ud\"\n\
           [qps.d]\nhost = \"c\"\nservice = \"ud\"\n";
    assert_eq!(wrong(&datagrams), (1, 48, said.into()));
    let none = text.replace("10.0.0.2", "0.0.0.0");
    assert_eq!(wrong(&none), (5, 11, "0.0.0.0 is not the address of a host".into()));
}

#[test]
fn too_little_memory_is_a_warning_at_the_step() {
    let warnings = |step: &str, memory: &str| {
        let text = with(step).replace("faults", &format!("memory = {memory}\nfaults"));
        let made = made(&text);
        assert_eq!(made.warnings, generate(&text, Bounds::default()).unwrap().warnings);
        made.warnings.into_iter().map(|it| (it.line, it.column, it.text)).collect::<Vec<_>>()
    };
    let said = |column, host: &str, memory, length, offset: u64, needed| {
        let text = format!(
            "[hosts.{host}] has {memory} bytes of memory, and this step accesses {length} bytes at \
             offset {offset}, which fails: write `memory = {needed}` there if it should not"
        );
        [(1, column, text)]
    };
    let write = "{ write = { qp = \"a\", bytes = 100, remote_offset = 8, count = 3 } }";
    assert_eq!(warnings(write, "107"), said(11, "b", 107, 100, 8, 108));
    assert_eq!(warnings(write, "108"), []);
    let read = "{ repeat = { times = 2, steps = [ { read = { qp = \"a\", bytes = 9 } } ] } }";
    assert_eq!(warnings(read, "8"), said(45, "b", 8, 9, 0, 9));
    let atomic = "{ fetch_add = { qp = \"a\" } }";
    assert_eq!(warnings(atomic, "7"), said(11, "b", 7, 8, 0, 8));
    let flush = "{ flush = { qp = \"a\", bytes = 9 } }";
    assert_eq!(warnings(flush, "8"), said(11, "b", 8, 9, 0, 9));
    let receive = "{ receive = { qp = \"b\", bytes = 9, offset = 1 } }";
    assert_eq!(warnings(receive, "9"), said(11, "b", 9, 9, 1, 10));
    let own = "{ send = { qp = \"b\", bytes = 9 } }";
    assert_eq!(warnings(own, "8"), said(11, "b", 8, 9, 0, 9));
    for on_purpose in [
        "{ write = { qp = \"a\", bytes = 9, va = 1 } }",
        "{ write = { qp = \"a\", bytes = 9, rkey = 1 } }",
        "{ receive = { qp = \"b\", bytes = 9, lkey = 1 } }",
        "{ send = { qp = \"a\", bytes = 9 } }",
        "{ write = { qp = \"a\" } }",
    ] {
        assert_eq!(warnings(on_purpose, "8"), [], "{on_purpose}");
    }
}

#[test]
fn two_hosts_of_one_address_are_refused_at_the_second() {
    for again in ["10.0.0.1", "::ffff:10.0.0.1"] {
        let text = with("{ wait = \"1us\" }").replace("\"10.0.0.2\"", &format!("\"{again}\""));
        let said = "[hosts.a] has the address 10.0.0.1 too: give each host its own";
        assert_eq!(wrong(&text), (5, 11, said.into()), "{again}");
    }
}

#[test]
fn a_number_is_shown_as_it_is_written() {
    for (text, said) in [
        (
            "seed = 1e300",
            "`1e300` does not fit here: write a whole number from 0 to 18446744073709551615",
        ),
        (
            "start = 0x1_0000_0000 # 2^32",
            "`0x1_0000_0000` does not fit here: write a whole number from 0 to 4294967295",
        ),
        (
            "seed = -1",
            "`-1` does not fit here: write a whole number from 0 to 18446744073709551615",
        ),
        ("limit = 1.5e300", "invalid type: floating point `1.5e300`, expected a string"),
    ] {
        let (line, column, found) = wrong(text);
        assert_eq!((line, column), (1, text.find("= ").unwrap() + 3), "{text}");
        assert_eq!(found, said, "{text}");
    }
}

/// Two frames have the same bytes, so the faults of one must not be written to the other.
#[test]
fn faults_stand_at_the_frame_that_they_hit_in_their_order() {
    let step = "{ packet = { qp = \"a\", count = 3, BTH = { OpCode = \"RC_SEND_ONLY\", PSN = 5 } } }, \
                { wait = \"1ms\" }, { packet = { qp = \"a\", BTH = { OpCode = \"RC_SEND_ONLY\", PSN = 5 } } }";
    for (faults, hit) in [
        ("in: drop 1", [&["lost"][..], &[], &[], &[]]),
        ("in: drop 1 after 3", [&[], &[], &[], &["lost"]]),
        ("in: dup 1 after 2; in: corrupt 1 after 2", [&[], &[], &["duplicated", "damaged"], &[]]),
        ("in: delay 1ms 1", [&[]; 4]),
    ] {
        let text = with(step)
            .replace("faults = \"drop 1 after 99", &format!("engine = false\nfaults = \"{faults}"));
        let made = generate(&text, Bounds::default()).unwrap();
        let found: Vec<_> = made.frames.iter().map(|frame| &frame.faults[..]).collect();
        assert_eq!(found, hit, "{faults}");
    }
}

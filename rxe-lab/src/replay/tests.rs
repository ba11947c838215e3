use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{NetHeader, Packet, UDP_PORT, icrc};

use super::*;
use crate::answer::{FirstPsns, Said, Seen};
use crate::capture::LinkType;
use crate::frame::decode_bytes;
use crate::scenario::{Bounds, generate};

/// Returns a scenario with a connection of `a` and `b`, and these steps.
fn with(steps: &str, b: &str) -> String {
    format!(
        "steps = [ {steps} ]\n[hosts.a]\naddress = \"10.0.0.1\"\n[hosts.b]\naddress = \"10.0.0.2\"\n{b}\n\
         [qps.a]\nhost = \"a\"\npeer = \"b\"\nmtu = 256\n[qps.b]\nhost = \"b\"\npeer = \"a\"\nmtu = 256\n"
    )
}

fn recorded(steps: &str, b: &str) -> (Recording, Vec<Responder>) {
    generate(&with(steps, b), Bounds::default()).unwrap().recording()
}

/// Plans a replay to `b`: as of a scenario if `known`, as of a capture otherwise.
fn plan(steps: &str, b: &str, known: bool) -> Plan {
    let (recording, responders) = recorded(steps, b);
    let responders = if known { responders } else { Vec::new() };
    let conversation = recording.choose(Some(0x12), &responders).unwrap();
    let responder = responders.iter().find(|it| it.qpn == 0x12);
    Plan::new(conversation, &Wanted { responder, count: 1000, region: 65536 }).unwrap()
}

const TARGET: Target = Target {
    qpn: Qpn::from_wire(0x77),
    own_qpn: Qpn::from_wire(0x88),
    first_psn: Psn::new(0xff_ffff),
    addr: 0x7000_0000,
    rkey: 0x1234,
};

fn net() -> NetHeader {
    let [own, peer] = ["10.9.0.1", "10.9.0.2"].map(|ip| ip.parse().unwrap());
    NetHeader::outgoing(own, peer, UDP_PORT)
}

fn rendered(plan: &Plan) -> Vec<Vec<u8>> {
    let sends = plan.steps.iter().filter_map(|step| match step {
        Step::Send(packet) => Some(packet.render(&net(), &TARGET)),
        _ => None,
    });
    sends.collect()
}

/// Plays a plan with the answers that `answer` makes of the recorded ones. Returns the differences.
fn play(plan: &Plan, mut answer: impl FnMut(usize, &Seen) -> Vec<Seen>) -> Vec<String> {
    let mut comparison = Comparison::new(plan);
    let mut count = 0;
    for step in &plan.steps {
        match step {
            Step::Receive(_) => {}
            Step::Send(packet) => comparison.sent(packet),
            Step::Answer(expected) => {
                answer(count, &expected.seen).into_iter().for_each(|seen| comparison.came(seen));
                count += 1;
                comparison.expect(expected);
                while comparison.is_waiting() {
                    comparison.give_up();
                }
            }
        }
    }
    comparison.finish();
    let mut found = Vec::new();
    while let Some(Difference { request, recorded, came, .. }) = comparison.difference() {
        let words = |it: Option<(u64, String)>| it.map_or("nothing".into(), |(_, words)| words);
        let came = came.unwrap_or("nothing".into());
        found.push(format!("{}: {} / {came}", words(request), words(recorded)));
    }
    found
}

/// Answers as recorded.
fn same(_: usize, seen: &Seen) -> Vec<Seen> {
    vec![seen.clone()]
}

const MIX: &str = "{ receive = { qp = \"b\", bytes = 4096 } }, { send = { qp = \"a\", bytes = 300 } }, \
     { wait = \"\" }, { write = { qp = \"a\", bytes = 8, remote_offset = 72 } }, \
     { read = { qp = \"a\", bytes = 520, remote_offset = 64 } }, { wait = \"\" }, \
     { fetch_add = { qp = \"a\", add = 5, remote_offset = 128 } }, { wait = \"\" }";

#[test]
fn a_packet_is_written_for_the_peer_and_has_a_right_icrc() {
    for known in [true, false] {
        let plan = plan(MIX, "", known);
        let all = rendered(&plan);
        for bytes in &all {
            assert_eq!(icrc::check(&net(), bytes), Ok(()));
        }
        let packets: Vec<_> = all.iter().map(|bytes| Packet::parse(bytes).unwrap()).collect();
        let psns: Vec<_> = packets.iter().map(|packet| packet.psn().value()).collect();
        // The READ takes three PSNs.
        assert_eq!(psns, [0xff_ffff, 0, 1, 2, 5]);
        assert!(packets.iter().all(|packet| packet.dest_qp() == TARGET.qpn));
        let (write, read) = (packets[2].reth().unwrap(), packets[3].reth().unwrap());
        assert_eq!((write.rkey.value(), read.rkey.value()), (0x1234, 0x1234));
        assert_eq!(write.va - read.va, 8, "they keep their distance");
        assert!(read.va >= TARGET.addr && read.va + 520 <= TARGET.addr + 65536);
        assert_eq!((read.va - TARGET.addr) % 64, 0, "and their alignment");
        assert_eq!((plan.received, plan.packets, plan.path_mtu), (1, 5, 256));
    }
}

#[test]
fn what_is_wrong_on_purpose_stays_wrong() {
    let packet = |more: &str| {
        let step = format!("{{ packet = {{ qp = \"a\", bytes = 8, {more} }} }}");
        rendered(&plan(&step, "", true)).remove(0)
    };
    let bytes = packet("ICRC = \"wrong\", BTH = { OpCode = \"RC_SEND_ONLY\" }");
    assert!(icrc::check(&net(), &bytes).is_err());
    let bytes = packet("pad = 2, BTH = { OpCode = \"RC_SEND_ONLY\" }");
    assert!(icrc::check(&net(), &bytes).is_ok() && Packet::parse(&bytes).is_err());
    let bytes = packet("BTH = { OpCode = \"RC_SEND_ONLY\", PSN = \"+7\", Resv7 = 5, P_Key = 1 }");
    assert_eq!((bytes[8] & 0x7f, &bytes[2..4], bytes[11]), (5, &[0, 1][..], 6));
    let write = "RETH = { R_Key = 0x999 }, BTH = { OpCode = \"RC_WRITE_ONLY\" }";
    let reth = Packet::parse(&packet(write)).unwrap().reth().unwrap();
    assert!(reth.rkey.value() != 0x1234, "a wrong key is another one than the peer's");
}

#[test]
fn addresses_outside_the_region_stay_outside() {
    let write = |offset: &str| {
        let step = format!("{{ write = {{ qp = \"a\", bytes = 16, remote_offset = {offset} }} }}");
        let bytes = rendered(&plan(&step, "memory = 4096", true)).remove(0);
        Packet::parse(&bytes).unwrap().reth().unwrap().va - TARGET.addr
    };
    assert_eq!((write("64"), write("4090")), (0, 65536 - 6));
    // A capture does not state the length of the region. A request refused for its access rights or
    // bounds is sent out of bounds if another request uses its key, and with a wrong key otherwise.
    let steps = "{ write = { qp = \"a\", bytes = 16, remote_offset = 64 } }, { wait = \"\" }, \
                 { write = { qp = \"a\", bytes = 16, remote_offset = 4090 } }";
    let all = rendered(&plan(steps, "memory = 4096", false));
    let reth = |i: usize| Packet::parse(&all[i]).unwrap().reth().unwrap();
    assert_eq!((reth(0).va, reth(1).rkey), (TARGET.addr, reth(0).rkey));
    assert!(reth(1).va >= TARGET.addr + 65536);
    let alone = "{ write = { qp = \"a\", bytes = 16, remote_offset = 4090 } }";
    let all = rendered(&plan(alone, "memory = 4096", false));
    assert!(Packet::parse(&all[0]).unwrap().reth().unwrap().rkey.value() != 0x1234);
}

#[test]
fn a_region_that_is_too_small_is_said() {
    let steps = "{ write = { qp = \"a\", bytes = 300 } }";
    let (recording, _) = recorded(steps, "");
    let conversation = recording.choose(None, &[]).unwrap();
    let wanted = Wanted { responder: None, count: 1000, region: 256 };
    let error = Plan::new(conversation, &wanted).unwrap_err();
    assert_eq!(error, TooLarge { frame: 1, needed: 320, has: 256 });
}

#[test]
fn packets_beyond_the_count_are_left_out_and_said() {
    let (recording, _) = recorded(MIX, "");
    let conversation = recording.choose(Some(0x12), &[]).unwrap();
    let plan = |count| {
        let wanted = Wanted { responder: None, count, region: 65536 };
        Plan::new(conversation.clone(), &wanted).unwrap()
    };
    let all = plan(1000).packets;
    let one = plan(1);
    assert_eq!(one.packets, 1);
    let left = all - 1;
    let said = format!("--count leaves out {left} of the recording's {all} packets.");
    assert!(one.notes.contains(&said), "{:?}", one.notes);
}

#[test]
fn answers_as_recorded_do_not_differ_and_others_do() {
    let plan = plan(MIX, "", false);
    assert_eq!(play(&plan, same), [""; 0]);
    let changed = |at: usize, change: fn(&mut Seen)| {
        play(&plan, |i, seen| {
            let mut seen = seen.clone();
            if i == at {
                change(&mut seen);
            }
            vec![seen]
        })
    };
    let nothing = play(&plan, |i, seen| if i == 0 { Vec::new() } else { same(i, seen) });
    assert_eq!(nothing, ["SEND LAST +1, 44 B: ACK +1 / nothing"]);
    let twice = play(&plan, |i, seen| vec![seen.clone(); if i == 0 { 2 } else { 1 }]);
    assert_eq!(twice, ["SEND LAST +1, 44 B: nothing / ACK +1 again"]);
    let nak = Said::Nak(rxe_core::wire::NakCode::RemoteAccessError, 1);
    let refused = play(&plan, |i, seen| {
        vec![Seen { said: if i == 0 { nak.clone() } else { seen.said.clone() }, ..seen.clone() }]
    });
    assert_eq!(refused[0], "SEND LAST +1, 44 B: ACK +1 / NAK remote access error +1");
    let data = changed(2, |seen| seen.payload[3] ^= 1);
    assert!(data[0].contains("whose byte 3 is 0x42, not 0x43"), "{data:?}");
    let value = changed(5, |seen| seen.said = Said::Atomic(6, 9));
    assert!(value[0].ends_with("/ ATOMIC ACKNOWLEDGE +6, value 0x9"), "{value:?}");
    let counted = changed(1, |seen| seen.ext.aeth.as_mut().unwrap().msn += 1);
    assert_eq!(counted, ["WRITE ONLY +2, 8 B: ACK +2 / ACK +2, MSN 3, not 2"]);
}

#[test]
fn acknowledgements_may_be_joined_or_come_one_by_one() {
    let steps = "{ receive = { qp = \"b\", bytes = 4096, count = 3 } }, \
                 { packet = { qp = \"a\", bytes = 8, count = 3, \
                   BTH = { OpCode = \"RC_SEND_ONLY\", PSN = \"+0\", A = 1 } } }";
    let plan = plan(steps, "", true);
    assert_eq!((plan.packets, plan.answers), (3, 3));
    let only =
        |wanted: usize| move |i, seen: &Seen| if i == wanted { same(i, seen) } else { vec![] };
    let ack = |psn, seen: &Seen| {
        let mut seen = Seen { said: Said::Ack(psn), ..seen.clone() };
        seen.ext.aeth.as_mut().unwrap().msn = psn.unsigned_abs() + 1;
        seen
    };
    let joined = play(&plan, |i, seen| if i == 0 { vec![ack(2, seen)] } else { vec![] });
    assert_eq!(joined, [""; 0]);
    let early = play(&plan, |i, seen| match i {
        0 => (0..=2).map(|psn| ack(psn, seen)).collect(),
        _ => vec![],
    });
    assert_eq!(early, [""; 0]);
    assert_eq!(play(&plan, only(0)).len(), 2, "two are missing");
    let beyond = play(&plan, |_, seen| vec![Seen { said: Said::Ack(7), ..seen.clone() }]);
    assert_eq!(beyond[0], "nothing: nothing / ACK +7");
}

#[test]
fn receives_and_losses_are_those_of_the_recording() {
    let rnr = "{ send = { qp = \"a\", bytes = 100 } }, { wait = \"200us\" }, \
               { receive = { qp = \"b\", bytes = 4096 } }, { wait = \"\" }";
    for known in [true, false] {
        let plan = plan(rnr, "", known);
        let order: String = (plan.steps.iter())
            .map(|step| match step {
                Step::Receive(_) => 'r',
                Step::Send(_) => 's',
                Step::Answer(_) => 'a',
            })
            .collect();
        assert_eq!(order, "sarsa", "no receive for the first");
        assert_eq!(play(&plan, same), [""; 0]);
    }
    let short = "{ receive = { qp = \"b\", bytes = 299 } }, { send = { qp = \"a\", bytes = 300 } }";
    let plan = plan(short, "", false);
    let Some(Step::Receive(receive)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(receive.len, 299, "as long as it may be");
}

#[test]
fn a_message_that_another_follows_takes_its_receive_no_further() {
    let packet = |opcode, psn, bytes| {
        format!(
            "{{ packet = {{ qp = \"a\", bytes = {bytes}, BTH = {{ OpCode = \"{opcode}\", PSN = {psn} }} }} }}, "
        )
    };
    // The first message never ends. The third has the PSN with which the first would continue.
    let steps = packet("UC_SEND_FIRST", 0, 256)
        + &packet("UC_SEND_ONLY", 7, 8)
        + &packet("UC_SEND_ONLY", 1, 12);
    let plan = plan(&steps, "", false);
    let receives = plan.steps.iter().filter_map(|step| match step {
        Step::Receive(receive) => Some(receive.len),
        _ => None,
    });
    assert_eq!(receives.collect::<Vec<_>>(), [256, 8, 12]);
}

#[test]
fn several_queue_pairs_are_listed() {
    let steps = "{ receive = { qp = \"a\", bytes = 8 } }, { receive = { qp = \"b\", bytes = 8 } }, \
                 { send = { qp = \"a\", bytes = 8 } }, { send = { qp = \"b\", bytes = 8 } }";
    let (recording, responders) = recorded(steps, "");
    let Err(NoConversation::Several(all)) = recording.choose(None, &responders) else { panic!() };
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(all, ["10.0.0.1 > 10.0.0.2 0x000012", "10.0.0.2 > 10.0.0.1 0x000011"]);
    let (recording, _) = recorded(steps, "");
    assert!(matches!(recording.choose(Some(5), &[]), Err(NoConversation::NoSuchQp(_))));
    let (recording, _) = recorded("{ receive = { qp = \"a\", bytes = 8 } }", "");
    assert!(matches!(recording.choose(None, &[]), Err(NoConversation::None)));
}

#[test]
fn a_recording_that_lies_is_survived() {
    // A READ that states a length of 4 GiB, at the last address.
    let steps = "{ packet = { qp = \"a\", RETH = { VA = \"0xffffffffffffffff\", DMALen = 0xffffffff }, \
                 BTH = { OpCode = \"RC_READ_REQUEST\", A = 1 } } }";
    let plan = plan(steps, "engine = false", false);
    let first = &rendered(&plan)[0];
    assert!(Packet::parse(first).unwrap().reth().unwrap().rkey.value() != 0x1234);
    // Sent 300 times, the READ takes more PSNs than 32 bits can count.
    let read = "{ packet = { qp = \"a\", count = 300, BTH = { OpCode = \"RC_READ_REQUEST\", PSN = 5 }, \
                RETH = { VA = \"0xffffffffffffffff\", DMALen = 0xffffffff } } }";
    assert_eq!(play(&self::plan(read, "engine = false", false), same), [""; 0]);
    let psns = FirstPsns { requests: Psn::ZERO, answers: TARGET.first_psn };
    assert!(Seen::read(&net(), &first[..9], &psns).is_err());
    let mut comparison = Comparison::new(&plan);
    comparison.malformed("a packet of 9 B is malformed".into());
    assert!(comparison.difference().is_some());
}

/// Returns a recording in which `snaplen` bytes of each frame were captured.
fn snapped(steps: &str, snaplen: usize) -> Recording {
    let made = generate(&with(steps, ""), Bounds::default()).unwrap();
    let mut recording = Recording::default();
    for (number, it) in (1..).zip(&made.frames) {
        let captured = &it.bytes[..snaplen.min(it.bytes.len())];
        let frame = decode_bytes(LinkType::ETHERNET, captured, it.bytes.len());
        recording.add(number, 0, it.at, &frame);
    }
    recording
}

fn snapped_plan(steps: &str, snaplen: usize) -> Plan {
    let conversation = snapped(steps, snaplen).choose(Some(0x12), &[]).unwrap();
    assert_eq!(conversation.cut(1000), None);
    let wanted = Wanted { responder: None, count: 1000, region: 65536 };
    Plan::new(conversation, &wanted).unwrap()
}

/// Of 96 bytes per frame, 42 are payload after a BTH, and 38 after an AETH.
#[test]
fn payload_that_was_not_captured_counts_for_sizes_and_is_not_compared() {
    let (whole, cut) = (plan(MIX, "", false), snapped_plan(MIX, 96));
    let note = "Payload beyond 38 to 42 B was not captured (4 packets): zeros are sent for it, and it is \
                not compared.";
    assert_eq!(cut.notes, [note]);
    assert_eq!(
        (cut.path_mtu, cut.packets, cut.answers, cut.received),
        (whole.path_mtu, whole.packets, whole.answers, whole.received)
    );
    let (all, zeros) = (rendered(&whole), rendered(&cut));
    assert_eq!(zeros[0].len(), all[0].len());
    assert_eq!(zeros[0][12..54], all[0][12..54], "what was captured is sent");
    assert!(zeros[0][54..268].iter().all(|byte| *byte == 0), "{:?}", zeros[0]);
    let answers: Vec<_> = (whole.steps.iter())
        .filter_map(|step| match step {
            Step::Answer(expected) => Some(expected.seen.clone()),
            _ => None,
        })
        .collect();
    // The peer answers with its whole data.
    let changed = |at: Option<usize>| {
        play(&cut, |i, _| {
            let mut seen = answers[i].clone();
            if i == 2
                && let Some(at) = at
            {
                seen.payload[at] ^= 1;
            }
            vec![seen]
        })
    };
    assert_eq!(changed(None), [""; 0]);
    assert_eq!(changed(Some(38)), [""; 0]);
    assert!(changed(Some(37))[0].contains("whose byte 37 is"), "{:?}", changed(Some(37)));
}

#[test]
fn a_write_that_was_captured_in_part_has_zeros_in_the_peers_memory() {
    let steps = "{ write = { qp = \"a\", bytes = 200, remote_offset = 64 } }, { wait = \"\" }, \
                 { read = { qp = \"a\", bytes = 64, remote_offset = 128 } }, { wait = \"\" }";
    let plan = snapped_plan(steps, 96);
    // 26 bytes were captured after the RETH.
    let [(0, bytes)] = &plan.after[..] else { panic!("{:?}", plan.after) };
    assert_eq!(bytes.len(), 26);
    let read = plan.steps.iter().find_map(|step| match step {
        Step::Answer(it) if matches!(it.seen.said, Said::Read(..)) => Some(&it.seen),
        _ => None,
    });
    let read = read.unwrap();
    assert!(matches!(read.said, Said::Read(_, 1, 64)), "{:?}", read.said);
    assert_eq!(read.payload, [0; 38], "what the peer has now, not what was recorded");
}

#[test]
fn a_frame_that_was_cut_too_much_is_named() {
    // The RETH of the WRITE in frame 4 ends at byte 70, the AtomicETH in frame 10 at byte 82, AETHs
    // at byte 58.
    let conversation = |snaplen| snapped(MIX, snaplen).choose(Some(0x12), &[]);
    let cut = |snaplen, count| conversation(snaplen).unwrap().cut(count);
    assert_eq!((cut(70, 1000), cut(69, 1000)), (Some(Cut::Headers(10)), Some(Cut::Headers(4))));
    assert_eq!(cut(69, 2), None, "it is not sent");
    assert_eq!(cut(57, 1000), Some(Cut::Headers(3)), "an answer");
    assert!(matches!(conversation(53), Err(NoConversation::Cut(1))));
    let packet = |opcode: &str, psn, bytes| {
        format!(
            "{{ packet = {{ qp = \"a\", bytes = {bytes}, BTH = {{ OpCode = \"{opcode}\", PSN = {psn} }} }} }}, "
        )
    };
    let several =
        |steps: &str, snaplen| snapped(steps, snaplen).choose(Some(0x12), &[]).unwrap().cut(1000);
    // Two packets of 512 bytes: no path MTU is as long as both together.
    let joined = packet("RC_SEND_FIRST", 0, 1040);
    assert_eq!(several(&joined, 96), Some(Cut::Several(1)));
    // Behind a packet that may be several, PSNs are missing that no other frame has.
    let steps = packet("RC_SEND_ONLY", 0, 1000) + &packet("RC_SEND_ONLY", 3, 8);
    assert_eq!(several(&steps, 96), Some(Cut::Several(1)));
    assert_eq!(several(&(steps.clone() + &packet("RC_SEND_ONLY", 1, 8)), 96), None);
    assert_eq!(several(&steps, 2000), None);
}

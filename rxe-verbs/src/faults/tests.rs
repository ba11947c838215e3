use std::net::IpAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rxe_core::queue::Status;
use rxe_core::types::Qpn;
use rxe_core::wire::{OpKind, Opcode};
use rxe_net::{
    Direction, FaultAction, FaultAmount, FaultTally, OpcodeFilter, PacketFilter, PsnFilter,
    QpFilter,
};

use super::*;
use crate::event::AsyncKind;

fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
}

fn rules(text: &str) -> Vec<FaultRule> {
    plan(text).rules
}

fn rule(text: &str) -> FaultRule {
    let [rule] = &rules(text)[..] else { panic!("{text}: not one rule") };
    rule.clone()
}

#[test]
fn faults_are_read() {
    let share = FaultAmount::Share;
    let micros = Duration::from_micros;
    let delay = |base, jitter| FaultAction::Delay { base: micros(base), jitter: micros(jitter) };
    for (text, action, amount) in [
        ("drop 1%", FaultAction::Drop, share(10_000)),
        ("drop", FaultAction::Drop, FaultAmount::ALL),
        ("drop 0", FaultAction::Drop, share(0)),
        ("  dup   0.1% ;", FaultAction::Duplicate, share(1_000)),
        ("reorder 3", FaultAction::Reorder { by: 1 }, FaultAmount::First(3)),
        ("reorder 2.5% by 4", FaultAction::Reorder { by: 4 }, share(25_000)),
        ("corrupt 0.0001%", FaultAction::Corrupt, share(1)),
        ("ecn 100%", FaultAction::MarkEcn, FaultAmount::ALL),
        ("delay 50us", delay(50, 0), FaultAmount::ALL),
        ("delay 50us±10us 5%", delay(50, 10), share(50_000)),
        ("delay 1.5ms+-10us", delay(1500, 10), FaultAmount::ALL),
        ("delay 50µs±10 7", delay(50, 10), FaultAmount::First(7)),
    ] {
        assert_eq!(rule(text), FaultRule::new(action, amount), "{text}");
    }
    assert_eq!(rule("in: drop").direction, Some(Direction::Inbound));
    assert_eq!(rule("out:drop").direction, Some(Direction::Outbound));
}

#[test]
fn faults_at_the_verbs_are_read() {
    let completion = |status| VerbsFault::Completion { status, request: 100 };
    let errno = |call| VerbsFault::Errno { errno: libc::ENOMEM, function: "ibv_reg_mr", call };
    let event = |kind, seconds| VerbsFault::Async { kind, after: Duration::from_secs(seconds) };
    let slow = |micros| VerbsFault::SlowCq { by: Duration::from_micros(micros) };
    for (text, fault) in [
        ("wc=RETRY_EXC@msg 100", completion(Status::RetryExceeded)),
        ("wc=IBV_WC_RNR_RETRY_EXC_ERR@msg 100", completion(Status::RnrRetryExceeded)),
        ("errno=ENOMEM@ibv_reg_mr#3", errno(Some(3))),
        ("errno=ENOMEM@ibv_reg_mr", errno(None)),
        ("async=port_down@2s", event(AsyncKind::PortErr, 2)),
        ("async=IBV_EVENT_GID_CHANGE@0s", event(AsyncKind::GidChange, 0)),
        ("slow cq", slow(1000)),
        ("slow cq 20us", slow(20)),
    ] {
        assert_eq!(plan(text), FaultPlan { rules: Vec::new(), verbs: vec![fault] }, "{text}");
    }
    assert_eq!(plan("drop 1%; slow cq; after 5").rules[0].after, 5);
}

#[test]
fn conditions_are_read() {
    let read = rule(
        "drop 1% only qp=0x11,17,#2 opcode=rc-send-only,ack psn=+3,100..200,+0..+9 \
                     dst=10.0.0.1,fd00::1 after 1000 burst 5",
    );
    let qpn = |qpn| QpFilter::Number(Qpn::from_wire(qpn));
    let psn = |relative, first, last| PsnFilter { relative, first, last };
    let only = PacketFilter {
        qps: vec![qpn(17), qpn(17), QpFilter::Nth(2)],
        opcodes: vec![
            OpcodeFilter::Is(Opcode::RC_SEND_ONLY),
            OpcodeFilter::Kind(OpKind::Acknowledge),
        ],
        psns: vec![psn(true, 3, 3), psn(false, 100, 200), psn(true, 0, 9)],
        destinations: ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).into(),
    };
    assert_eq!((read.only, read.after, read.burst), (only, 1000, 5));
}

#[test]
fn conditions_alone_hold_for_the_faults_that_have_no_such_condition() {
    let read = rules(
        "after 7; drop 1% after 2; dup 3; only opcode=ack dst=::1; burst 4; \
                      out: ecn 1% only opcode=send qp=#1",
    );
    let shown = [
        "drop 1% only opcode=ack dst=::1 after 2 burst 4",
        "dup 3 only opcode=ack dst=::1 after 7",
        "out: ecn 1% only qp=#1 opcode=send dst=::1 after 7 burst 4",
    ];
    assert_eq!(FaultPlan { rules: read, verbs: Vec::new() }.to_string(), shown.join("; "));
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_is_allowed() {
    for (text, column, word, says) in [
        ("", 1, "", "no fault is named: write drop, dup, reorder, delay, corrupt, ecn, wc="),
        (" ; ;", 1, "", "no fault is named"),
        ("after 5", 1, "after", "a condition of packets, but no fault of packets"),
        ("slow cq; after 5", 10, "after", "a condition of packets, but no fault of packets"),
        ("wc=RETRY_EXC", 1, "wc=RETRY_EXC", "write wc=STATUS@msg N, as in wc=RETRY_EXC@msg 100"),
        ("wc=SUCCESS@msg 1", 4, "SUCCESS", "not a status: write one of LOC_LEN, LOC_QP_OP"),
        ("wc=RETRY_EXC@call 1", 14, "call", "write wc=STATUS@msg N"),
        ("wc=RETRY_EXC@msg", 17, "", "the number of a request is missing"),
        ("wc=RETRY_EXC@msg 0", 18, "0", "write a whole number from 1"),
        ("wc=RETRY_EXC@msg 1 after 5", 20, "after", "has no conditions"),
        ("in: wc=RETRY_EXC@msg 1", 5, "wc=RETRY_EXC@msg", "has a direction: write drop, dup,"),
        ("errno=ENOMEM", 1, "errno=ENOMEM", "write errno=NAME@FUNCTION#N"),
        ("errno=12@ibv_reg_mr", 7, "12", "not an errno: write one of EPERM"),
        ("errno=ENOMEM@f#1", 14, "f", "not a function that can fail: write one of ibv_"),
        ("errno=ENOMEM@ibv_reg_mr#x", 25, "x", "not a count"),
        ("async=PORT_ERR", 1, "async=PORT_ERR", "write async=EVENT@TIME"),
        ("async=QP_FATAL@2s", 7, "QP_FATAL", "not an event of a device"),
        ("async=port_down@2", 17, "2", "not a time"),
        ("async=port_down@2000000s", 17, "2000000s", "longer than 86400 seconds"),
        ("slow", 5, "", "cq (slow cq) is missing"),
        ("slow down", 6, "down", "write slow cq"),
        ("slow cq 1", 9, "1", "not a time"),
        ("drop 1%; xyz 2%", 10, "xyz", "not a fault: write drop, dup,"),
        ("in:", 4, "", "a fault is missing"),
        ("in: only qp=1", 5, "only", "not a fault"),
        ("in:dorp", 4, "dorp", "not a fault"),
        ("drop 1.5", 6, "1.5", "not a count: write a whole number from 1"),
        ("drop -1", 6, "-1", "not a count"),
        ("drop -1%", 6, "-1%", "not an amount: write a percentage"),
        ("drop 1.00001%", 6, "1.00001%", "up to four decimals"),
        ("drop 101%", 6, "101%", "more than 100 %"),
        ("drop 1% 2%", 9, "2%", "not a condition: write only, after or burst; `;` ends a fault"),
        ("drop 1% after", 14, "", "a number of packets is missing"),
        ("drop 1% after ; dup", 14, "", "a number of packets is missing"),
        ("drop after 1 after 2", 14, "after", "said twice"),
        ("drop; after 1; after 2", 16, "after", "said twice"),
        ("drop 3 burst 2", 8, "burst", "write a percentage"),
        ("drop burst 2000000", 12, "2000000", "from 1 to 1000000"),
        (
            "drop 99999999999999999999",
            6,
            "99999999999999999999",
            "a whole number from 1 to 1000000000000",
        ),
        ("delay", 6, "", "a time such as 50us is missing"),
        ("delay 50", 7, "50", "not a time: write a number and ns, us, ms or s"),
        ("delay us", 7, "us", "not a time"),
        ("delay 0.5ns", 7, "0.5ns", "not a time"),
        ("delay 11s", 7, "11s", "longer than 10 seconds"),
        ("delay 50us±60us", 12, "60us", "longer than the delay itself"),
        ("delay 50us±x", 12, "x", "not a time"),
        ("reorder by", 11, "", "a number of packets is missing"),
        ("drop only", 10, "", "a condition (qp=, opcode=, psn= or dst=) is missing"),
        ("drop only qp", 11, "qp", "write qp=, opcode=, psn= or dst="),
        ("drop only qp=x", 14, "x", "write its number (0x11 or 17), or #1"),
        ("drop only qp=0x1000000", 14, "0x1000000", "not a queue pair"),
        ("drop only qp=1,#0", 16, "#0", "not a queue pair"),
        ("drop only qp=1 qp=2", 16, "qp", "said twice"),
        ("drop only opcode=SEND_ONLY", 18, "SEND_ONLY", "or a whole name such as RC_SEND_ONLY"),
        ("drop only psn=9..5", 15, "9..5", "ends before it begins"),
        ("drop only psn=16777216", 15, "16777216", "not a PSN"),
        ("drop only dst=host", 15, "host", "not an address"),
        ("drop only size=5", 11, "size=5", "not a condition of only"),
        (
            "ecn ±5",
            5,
            "±5",
            "neither an amount nor a condition: write an amount (1% or 3), or only",
        ),
        ("drop %", 6, "%", "neither an amount nor a condition"),
        ("drop by 3", 6, "by", "not a condition"),
        ("drop 99999999999999999999999%", 6, "99999999999999999999999%", "more than 100 %"),
        ("delay 99999999999999999999999s", 7, "99999999999999999999999s", "longer than 10 seconds"),
    ] {
        let error = text.parse::<FaultPlan>().expect_err(text);
        assert_eq!((error.column(), error.word()), (column, word), "{text}: {error}");
        assert!(error.to_string().contains(says), "{text}: {error}");
        assert!(!error.to_string().contains('\n'));
    }
    let many = "drop;".repeat(33);
    let error = many.parse::<FaultPlan>().unwrap_err();
    assert_eq!(error.to_string(), "column 161: `drop`: more than 32 faults");
}

#[test]
fn a_misspelt_word_and_one_of_another_case_are_recognized() {
    for (text, meant) in [
        ("dorp 1%", "drop"),
        ("drop 1%; dorp 2%", "drop"),
        ("Drop", "drop"),
        ("ECN 5%", "ecn"),
        ("duplicate 1%", "dup"),
        ("in: dorp", "drop"),
        ("In: drop", "in:"),
        ("WC=RETRY_EXC@msg 1", "wc="),
        ("errno =EIO@ibv_reg_mr", "errno="),
        ("Slow cq", "slow cq"),
        ("Only qp=1", "only"),
        ("drop onyl qp=1", "only"),
        ("drop 1% afetr 3", "after"),
        ("drop only QP=1", "qp="),
        ("drop only opcod=send", "opcode="),
        ("drop only opcode=raed", "read"),
        ("drop only opcode=SEND_ONLY", "send"),
        ("wc=retry_exc@msg 1", "RETRY_EXC"),
        ("wc=ibv_wc_retry_exc_err@msg 1", "IBV_WC_RETRY_EXC_ERR"),
        ("errno=enomem@ibv_reg_mr", "ENOMEM"),
        ("errno=EIO@reg_mr", "ibv_reg_mr"),
        ("async=port_err@1s", "PORT_ERR"),
        ("drop only opcodes=send,ack", "opcode="),
    ] {
        let error = text.parse::<FaultPlan>().unwrap_err().to_string();
        let said = format!(": did you mean `{meant}`? Otherwise write ");
        assert!(error.contains(&said), "{text}: {error}");
    }
    for text in ["lose 1%", "drop only size=5", "drop only opcode=xyz"] {
        let error = text.parse::<FaultPlan>().unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{text}: {error}");
    }
}

#[test]
fn a_comma_in_place_of_a_semicolon_is_recognized() {
    for (text, column) in [
        ("drop 1%, dup 2%", 8),
        ("drop 1% , dup 2%", 9),
        ("drop 1%,dup 2%", 8),
        ("drop, dup", 5),
        ("drop,dup", 5),
        ("drop 1% burst 3, dup", 16),
        ("delay 50us±10us, dup", 16),
        ("drop only dst=10.0.0.1, dup", 23),
        ("slow cq, drop", 8),
        ("slow cq 5ms, drop", 12),
        ("wc=RETRY_EXC@msg 3, drop", 19),
        ("errno=ENOMEM@ibv_reg_mr#2, drop", 26),
        ("async=port_down@2s, drop", 19),
        (", drop", 1),
    ] {
        let error = text.parse::<FaultPlan>().expect_err(text);
        assert_eq!((error.column(), error.word()), (column, ","), "{text}: {error}");
        assert!(error.to_string().contains("`,`: faults are separated by `;`"), "{error}");
    }
    // A decimal comma and a wrong value of a list do not separate faults.
    for text in ["drop 0,1%", "drop only qp=1,x"] {
        let error = text.parse::<FaultPlan>().unwrap_err().to_string();
        assert!(!error.contains("separated"), "{text}: {error}");
    }
}

#[test]
fn a_report_says_what_each_rule_did() {
    let tally = |hit, seen| FaultTally { seen, hit };
    let line = |text: &str| show::tally((&rule(text), [tally(1, 2), tally(3, 4)]));
    assert_eq!(line("drop 1%"), "drop 1% hit 3 of 4 packets sent, 1 of 2 packets received");
    assert_eq!(line("in: dup 3"), "in: dup 3 hit 1 of 2 packets received");
    assert_eq!(line("out: dup 3"), "out: dup 3 hit 3 of 4 packets sent");
}

fn amounts() -> impl Strategy<Value = FaultAmount> {
    prop_oneof![
        (0..=FaultAmount::MILLION).prop_map(FaultAmount::Share),
        (1..=1_000_000_000_000u64).prop_map(FaultAmount::First),
    ]
}

fn actions() -> impl Strategy<Value = FaultAction> {
    let delays = (0..=10_000_000_000u64, 0..=100u64, 0..4u32).prop_map(|(base, part, round)| {
        let unit = 1000u64.pow(round);
        let base = base / unit * unit;
        let jitter = base / 100 * part;
        let [base, jitter] = [base, jitter].map(Duration::from_nanos);
        FaultAction::Delay { base, jitter }
    });
    prop_oneof![
        Just(FaultAction::Drop),
        Just(FaultAction::Duplicate),
        (1..=1_000_000u32).prop_map(|by| FaultAction::Reorder { by }),
        delays,
        Just(FaultAction::Corrupt),
        Just(FaultAction::MarkEcn),
    ]
}

fn filters() -> impl Strategy<Value = PacketFilter> {
    let qps = prop_oneof![
        (0..1u32 << 24).prop_map(|qpn| QpFilter::Number(Qpn::from_wire(qpn))),
        (1..=u32::MAX).prop_map(QpFilter::Nth),
    ];
    let named: Vec<_> = Opcode::all().map(|info| OpcodeFilter::Is(info.opcode)).collect();
    let kinds = rxe_net::fault_language::KINDS.map(|(_, kind)| OpcodeFilter::Kind(kind));
    let opcodes = prop::sample::select([named, kinds.into()].concat());
    let psns = (any::<bool>(), 0..1u32 << 24, 0..1u32 << 24)
        .prop_map(|(relative, a, b)| PsnFilter { relative, first: a.min(b), last: a.max(b) });
    (vec(qps, 0..3), vec(opcodes, 0..3), vec(psns, 0..3), vec(any::<IpAddr>(), 0..3)).prop_map(
        |(qps, opcodes, psns, destinations)| PacketFilter { qps, opcodes, psns, destinations },
    )
}

fn verbs_faults() -> impl Strategy<Value = VerbsFault> {
    let counts = || 1..=1_000_000_000_000u64;
    let statuses = prop::sample::select(values::STATUSES.map(|(_, status)| status).to_vec());
    let errnos = prop::sample::select(values::ERRNOS.map(|(_, errno)| errno).to_vec());
    let events = prop::sample::select(values::EVENTS.map(|(_, kind)| kind).to_vec());
    let functions = prop::sample::select(VerbsFault::FUNCTIONS.to_vec());
    prop_oneof![
        (statuses, counts())
            .prop_map(|(status, request)| VerbsFault::Completion { status, request }),
        (errnos, functions, option::of(counts()))
            .prop_map(|(errno, function, call)| VerbsFault::Errno { errno, function, call }),
        (events, 0..86_400_000u64)
            .prop_map(|(kind, ms)| VerbsFault::Async { kind, after: Duration::from_millis(ms) }),
        (0..=10_000_000_000u64)
            .prop_map(|nanos| VerbsFault::SlowCq { by: Duration::from_nanos(nanos) }),
    ]
}

fn all_rules() -> impl Strategy<Value = FaultRule> {
    let directions =
        option::of(prop::sample::select(vec![Direction::Inbound, Direction::Outbound]));
    let after = 0..=1_000_000_000_000u64;
    (actions(), amounts(), directions, filters(), after, 1..=1_000_000u32).prop_map(
        |(action, amount, direction, only, after, burst)| {
            let burst = if let FaultAmount::Share(_) = amount { burst } else { 1 };
            FaultRule { action, amount, direction, only, after, burst }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(
        rules in vec(all_rules(), 1..5),
        verbs in vec(verbs_faults(), 0..3),
    ) {
        let plan = FaultPlan { rules, verbs };
        prop_assert_eq!(plan.to_string().parse(), Ok(plan));
    }

    #[test]
    fn any_text_is_read_or_refused_at_a_place_in_it(text in "[a-z0-9=;:,.#%±+ -]{0,60}|.{0,30}") {
        match text.parse::<FaultPlan>() {
            Ok(plan) => prop_assert_eq!(plan.to_string().parse(), Ok(plan)),
            Err(error) => {
                let place: String = text.chars().skip(error.column() - 1).collect();
                prop_assert!(place.starts_with(error.word()), "{}", error);
            }
        }
    }
}

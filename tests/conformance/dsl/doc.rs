//! Prints the catalogue as a document, from the data that the tests use.

use std::fmt::Write;

use rxe_core::mem::Access;
use rxe_core::qp::{QpState, QpType};
use rxe_core::queue::Status;
use rxe_core::types::Mtu;
use rxe_core::wire::{NakCode, Position};

use super::case::{Answer, Async, Case, Done, Given, Piece, Step, rc};
use super::world::{ALL, LOCAL_ONLY};
use crate::calls::Call;

const OPENING: &str = "\
# Malformed-packet catalogue

[中文](../../zh/project/conformance.md)

Made by `UPDATE_DOCS=1 cargo test -p rxe-tests --test conformance`; the same data is what the test runs.

Each case is an engine with one queue pair in a named state, a script of packets with chosen values, and all that may come of it: what the queue pair answers, completes and drops, the state it is in, and which bytes of memory have changed. What a row does not name must not happen, and a queue pair that is not in the error state must carry out a good request afterwards, at the PSN that follows. Each runs on eight roads and must end in the same way on each: with the whole IP header in sight; as a UDP socket shows it; through the rings of shared memory, where the peer puts its packets in whole, and where it puts the payload apart from the headers; over UDP sockets, without segmentation by the system; over packet sockets; over AF_XDP sockets; and between two endpoints of layer 2. (A few cases no socket can send.)

- PSNs count from the first one: `+0` is the PSN that the responder expects (of an answer to the queue pair: the first that it has sent). Addresses count from the region's start.
- *Rule* names the IBTA specification's compliance statement where its number is certain, else the section of volume 1 (A10 to A19 are its annexes).
- *Kernel* says how Linux's rxe deviates, from reading its sources (6.x), not from trying each case. Empty: no deviation is known. [The report](../reference/conformance-report.md) has what was tried from outside.
- Where the specification leaves room, the note says why this was chosen.

";

const CALLS: &str = "
## Calls of verbs

Where the specification and the providers of rdma-core differ, or the specification leaves room. `tests/c/abi.c` makes these calls.

| Call | Specification | Providers | Here |
| --- | --- | --- | --- |
";

/// Returns all areas and the calls as markdown.
pub(crate) fn markdown(areas: &[(&str, Vec<Case>)], calls: &[Call]) -> String {
    let mut out = String::from(OPENING);
    let total: usize = areas.iter().map(|(_, cases)| cases.len()).sum();
    let deviations = areas.iter().flat_map(|(_, c)| c).filter(|c| c.kernel.is_some()).count();
    let _ = writeln!(out, "{total} cases; kernel `rdma_rxe` is known to deviate in {deviations}.");
    let header = "| Case | Rule | Given | Script | Outcome | Kernel |";
    for (area, cases) in areas {
        let _ = writeln!(out, "\n## {}\n\n{header}", area);
        out.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for case in cases {
            let script: Vec<_> = case.script.iter().map(step).collect();
            let mut outcome = outcome(case);
            if let Some(note) = case.note {
                let _ = write!(outcome, "<br>*{}*", note);
            }
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {outcome} | {} |",
                case.name,
                case.rule,
                given(&case.given),
                script.join("<br>"),
                case.kernel.unwrap_or_default()
            );
        }
    }
    out.push_str(CALLS);
    for Call { call, specification, providers, here } in calls {
        let _ = writeln!(out, "| {call} | {specification} | {providers} | {here} |");
    }
    out
}

fn given(given: &Given) -> String {
    let service = match given.service {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::XrcSend => "XRC initiator",
        QpType::XrcRecv => "XRC target",
        _ => "UD",
    };
    let mut parts = vec![format!("{service} in {}", given.state.name())];
    let usual = rc();
    if given.access != usual.access {
        let flags: Vec<_> = given.access.iter_names().map(|(name, _)| name).collect();
        let flags = if given.access == Access::empty() { "none".into() } else { flags.join(" ") };
        parts.push(format!("access {flags}"));
    }
    if given.mtu != Mtu::M1024 {
        parts.push(format!("MTU {}", given.mtu));
    }
    for (what, value, usual) in [
        ("max_dest_rd_atomic", given.max_dest_rd_atomic, usual.max_dest_rd_atomic),
        ("max_rd_atomic", given.max_rd_atomic, usual.max_rd_atomic),
        ("retry_cnt", given.retry_cnt, usual.retry_cnt),
        ("rnr_retry", given.rnr_retry, usual.rnr_retry),
    ] {
        if value != usual {
            parts.push(format!("{what} {value}"));
        }
    }
    if given.v6 {
        parts.push("IPv6".into());
    }
    if let Some(srq) = given.srq {
        let limit = if srq.limit > 0 { format!(", limit {}", srq.limit) } else { String::new() };
        let pd = if srq.other_pd { " of another PD" } else { "" };
        parts.push(format!("SRQ{pd}{limit}"));
    }
    if given.qkey != usual.qkey {
        parts.push(format!("Q_Key 0x{:08x}", given.qkey));
    }
    if let Some(group) = given.group {
        parts.push(format!("attached to {group}"));
    }
    if given.cq_depth != usual.cq_depth {
        parts.push(format!("a CQ of {}", given.cq_depth));
    }
    for (id, len) in &given.receives {
        parts.push(format!("receive {id} of {len} B"));
    }
    parts.join(", ")
}

fn step(step: &Step) -> String {
    match step {
        Step::Packet(packet) => packet.to_string(),
        Step::Burst(packets) => {
            let packets: Vec<_> = packets.iter().map(ToString::to_string).collect();
            format!("at once: {}", counted(packets).join("; "))
        }
        Step::Flood(times, packet) => format!("{times} times: {packet}"),
        Step::Post { id, list, what, .. } => format!("posts {what} {id} of {}", pieces(list)),
        Step::Scatter { id, list } => format!("posts receive {id} of {}", pieces(list)),
        Step::Receive { id, len } => format!("posts receive {id} of {len} B"),
        Step::ReceiveInto { id, len, what, .. } => {
            format!("posts receive {id} of {len} B into {what}")
        }
        Step::Wait(time) => format!("{time:?} pass"),
        Step::Deregister(_, what) => format!("deregisters {what}"),
        Step::Modify(state) => format!("to {}", state.name()),
        Step::Destroy => "destroys the QP".into(),
    }
}

/// Returns the lengths of a list's elements. Elements that may not be used are marked.
fn pieces(list: &[Piece]) -> String {
    let lens: Vec<_> = list
        .iter()
        .map(|piece| match piece.key {
            ALL => piece.len.to_string(),
            key if key == LOCAL_ONLY => format!("{} (local region)", piece.len),
            _ => format!("{} (bad key)", piece.len),
        })
        .collect();
    format!("{} B", lens.join(" + "))
}

fn outcome(case: &Case) -> String {
    let expect = &case.expect;
    let mut parts = counted(expect.answers.iter().map(answer).collect());
    if parts.is_empty() && !matches!(case.given.service, QpType::Uc | QpType::Ud) {
        parts.push("no answer".into());
    }
    parts.extend(expect.drops.iter().map(|(reason, times)| match times {
        1 => format!("dropped: `{}`", reason.name()),
        _ => format!("dropped: `{}` ×{times}", reason.name()),
    }));
    parts.extend(expect.completions.iter().map(completion));
    if let Some(requests) = &expect.requests {
        let requests = requests.iter().map(|(opcode, psn)| format!("{opcode} {psn:+}"));
        parts.push(format!("sends {}", counted(requests.collect()).join(", ")));
    }
    parts.extend(counted(expect.retries.iter().map(|cause| format!("retry: {cause:?}")).collect()));
    parts.extend(expect.events.iter().map(|event| {
        String::from(match event {
            Async::Established => "event: communication established",
            Async::SrqLimit => "event: SRQ limit reached",
            Async::LastWqe => "event: last WQE reached",
            Async::CqOverflow => "event: CQ error",
        })
    }));
    for (offset, bytes) in &expect.wrote {
        parts.push(format!("{} B written at +0x{offset:x}", bytes.len()));
    }
    match expect.state {
        Some(QpState::Err) => parts.push("**QP in ERR**".into()),
        Some(state) => parts.push(format!("QP in {}", state.name())),
        None => {}
    }
    parts.join("<br>")
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Ack(psn) => format!("ACK {psn:+}"),
        Answer::Nak(code, psn) => {
            let code = match code {
                NakCode::PsnSequenceError => "PSN sequence error",
                NakCode::InvalidRequest => "invalid request",
                NakCode::RemoteAccessError => "remote access error",
                NakCode::RemoteOperationalError => "remote operational error",
                NakCode::InvalidRdRequest => "invalid RD request",
            };
            format!("**NAK {code}** {psn:+}")
        }
        Answer::Rnr(psn) => format!("**RNR NAK** {psn:+}"),
        Answer::Read(position, psn, len) => {
            let position = match position {
                Position::First => "FIRST",
                Position::Middle => "MIDDLE",
                Position::Last => "LAST",
                Position::Only => "ONLY",
            };
            format!("READ RESPONSE {position} {psn:+}, {len} B")
        }
        Answer::Atomic(psn, value) => format!("ATOMIC ACKNOWLEDGE {psn:+}, value 0x{value:x}"),
        Answer::Cnp => "CNP".into(),
        Answer::Other(opcode, psn) => format!("{opcode} {psn:+}"),
    }
}

fn completion(done: &Done) -> String {
    let len = done.len.map(|len| format!(", {len} B")).unwrap_or_default();
    match done.status {
        Status::Success => format!("{} completes{len}", done.id),
        status => format!("{} completes: {status}", done.id),
    }
}

/// Merges equal neighbouring lines into one with a count.
fn counted(lines: Vec<String>) -> Vec<String> {
    let mut out: Vec<(String, usize)> = Vec::new();
    for line in lines {
        match out.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => out.push((line, 1)),
        }
    }
    let with_count = |(line, times)| if times > 1 { format!("{line} ×{times}") } else { line };
    out.into_iter().map(with_count).collect()
}

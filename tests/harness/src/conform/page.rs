//! The page `docs/en/reference/conformance-report.md`. Its content does not depend on when or where
//! it was written.

use std::fmt::Write;

use super::{Case, Over, Run};
use crate::pages::{END, begin};

/// The known reasons for deviations: the peer (the beginning of its name), the cases, and the
/// reason according to the sources of the peer.
const WHY: &[(&str, &[&str], &str)] = &[
    (
        "Linux 5.10 over IPv4",
        &[
            "fetch_add",
            "compare_swap",
            "duplicate_fetch_add",
            "duplicate_compare_swap",
            "duplicate_older_atomic",
        ],
        "Answers to atomics over IPv4 do not leave this kernel.",
    ),
    (
        "Linux 5.10",
        &["length_no_multiple_of_4"],
        "It does not check; the length then contradicts the RETH, which ends the queue pair.",
    ),
    ("Linux 5.10", &["msn"], "It counts only messages that complete a receive."),
    (
        "Linux",
        &["duplicate_read_from_middle"],
        "The data are right, but begin with MIDDLE, as if the first answer went on.",
    ),
    ("Linux", &["psn_before_connection"], "The PSN is 0xffffff, which the peer never had."),
    ("Linux", &["reserved_opcode"], "It takes the packet for a response."),
    (
        "Linux",
        &["payload_beyond_mtu", "short_first", "empty_last"],
        "Its check of lengths compares the opcode with bits of another field, and misses SENDs.",
    ),
    ("Linux", &["read_of_more_than_2_gib"], "Only the region's bounds count."),
    (
        "Linux",
        &["receive_too_small", "receive_under_wrong_lkey", "srq_receive_too_small"],
        "It takes the receive for malformed.",
    ),
    (
        "Linux",
        &["invalidate_unknown_key", "invalidate_region", "invalidate_type_1"],
        "It acknowledges the SEND and ends its own side alone.",
    ),
    (
        "Linux",
        &["window_write_before_it", "window_write_beyond_it"],
        "Only the region's bounds count, not those of the window.",
    ),
    (
        "Linux",
        &["completion_names_invalidated_key"],
        "The flag in its completion is the kernel's own, which libibverbs takes for another.",
    ),
    (
        "Linux",
        &["invalidate_window_not_bound"],
        "It takes a window that was never bound for one that is, and has no queue pair for it.",
    ),
    (
        "Linux",
        &["bind_window_of_type_2_again", "bind_without_right", "bind_beyond_region"],
        "The bind that fails is flushed like what is behind it.",
    ),
    (
        "Linux",
        &[
            "flush",
            "flush_of_region",
            "flush_behind_write",
            "duplicate_flush",
            "flush_behind_gap",
            "flush_without_placement",
            "flush_with_reserved_placement",
            "flush_with_reserved_selectivity",
            "flush_to_persistence_without_right",
            "qp_without_flush",
            "region_without_flush",
            "flush_under_unknown_key",
            "flush_of_region_under_unknown_key",
            "flush_beyond_region",
        ],
        "It drops a FLUSH with the right ICRC: its own takes everything from the BTH on in twice.",
    ),
    ("Linux", &["silence_after_rnr_nak"], "The packet after the refused one gets a NAK as well."),
    (
        "Linux",
        &["length_no_multiple_of_4"],
        "It does not check; the length then contradicts the RETH.",
    ),
    (
        "Linux",
        &["uc_message_without_middle"],
        "The message that follows the broken one is dropped with it.",
    ),
    (
        "Linux",
        &["ghost_ack", "ghost_nak"],
        "It completes every request before that PSN, acknowledged or not.",
    ),
    (
        "Linux",
        &["short_read_data", "read_data_of_wrong_opcode"],
        "It leaves the request incomplete.",
    ),
    (
        "Linux",
        &["cm_short"],
        "It does not look at the length: bytes that were not sent count as zeros.",
    ),
    (
        "Linux",
        &["cm_long"],
        "Its queue pair 1 goes into the error state and stays there: nobody can connect any more until the \
         device is made anew.",
    ),
    (
        "rxe",
        &["retry_exhausted"],
        "There are three tries, as the attributes say, and they take as long; within each, the \
         oldest packet is sent again earlier ([decision 038](../project/decisions/038-round-trip-timeout.md)).",
    ),
];

/// The reason for each case in which Linux 5.10 sends no NAK.
const NO_NAK: &str = "This kernel sends no NAK for a fault of a request that takes no receive.";

/// Returns the reason why these peers deviated in this way.
fn why(names: &[&str], case: &str, found: &str) -> Option<&'static str> {
    let is = |who: &str| names.iter().all(|name| name.starts_with(who));
    let known = WHY.iter().find(|(who, cases, _)| is(who) && cases.contains(&case));
    let no_nak = is("Linux 5.10") && found.starts_with("NAK") && found.contains("nothing came");
    known.map(|(_, _, why)| *why).or(no_nak.then_some(NO_NAK))
}

/// Returns the page.
pub fn page(runs: &[Run]) -> String {
    let mut out = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "\n{}\n\n| peer | over | version | conforms | deviates | not testable |\n\
         | --- | --- | --- | --- | --- | --- |",
        begin("conform (peers)")
    );
    for run in runs {
        let count = |verdict: &str| run.cases.iter().filter(|c| c.verdict == verdict).count();
        let [conforms, deviates, untested] = ["conforms", "deviates", "not testable"].map(count);
        let Run { name, over, version, .. } = run;
        let over = over.name();
        let _ =
            writeln!(out, "| {name} | {over} | {version} | {conforms} | {deviates} | {untested} |");
    }
    let _ = writeln!(out, "{END}\n\n## Deviations");
    deviations(&mut out, runs);
    not_testable(&mut out, runs);
    table(&mut out, runs);
    out
}

/// Returns the cases in which a run deviates from the page.
pub fn differences(page: &str, run: &Run) -> Vec<String> {
    let header = page.lines().find(|line| line.starts_with("| case |")).unwrap_or_default();
    let column = header.split(" | ").position(|name| name.trim_end_matches(" |") == run.name);
    let said = |case: &Case| {
        let start = format!("| {} |", case.name);
        let line = page.lines().find(|line| line.starts_with(&start))?;
        line.split(" | ").nth(column?).map(|cell| said_over(cell.trim_end_matches(" |"), run.over))
    };
    let differs = |case: &Case| {
        let (said, found) = (said(case).unwrap_or_default(), &case.verdict);
        let why = case.found.as_deref().unwrap_or_default();
        (said != *found)
            .then(|| format!("{}: \"{said}\" on the page, now {found}: {why}", case.name))
    };
    run.cases.iter().filter_map(differs).collect()
}

/// Returns the verdict in a cell of the table over this protocol.
fn said_over(cell: &str, over: Over) -> String {
    let cell = cell.replace('*', "");
    match (cell.split_once(OVER_V6), over) {
        (Some((_, v6)), Over::V6) => v6.trim_end_matches(')').to_owned(),
        (Some((v4, _)), Over::V4) => v4.to_owned(),
        (None, _) => cell,
    }
}

/// The separator in a cell with two verdicts.
const OVER_V6: &str = " (IPv6: ";

/// Returns the runs of each peer.
fn peers(runs: &[Run]) -> impl Iterator<Item = &[Run]> {
    runs.chunk_by(|a, b| a.name == b.name)
}

/// Returns a result with a peer, and the name of the peer. If the results over the protocols
/// differ, there is one for each protocol, with its name.
fn found_with<T: PartialEq>(peer: &[Run], found: impl Fn(&Run) -> T) -> Vec<(String, T)> {
    let all: Vec<_> = peer.iter().map(found).collect();
    let alike = all.windows(2).all(|pair| pair[0] == pair[1]);
    let name = |run: &Run| match alike {
        true => run.name.clone(),
        false => format!("{} over {}", run.name, run.over.name()),
    };
    let named = peer.iter().map(name).zip(all);
    named.take(if alike { 1 } else { peer.len() }).collect()
}

/// Writes each case in which a peer deviates, with the behaviour of that peer.
fn deviations(out: &mut String, runs: &[Run]) {
    let Some(first) = runs.first() else { return };
    for case in &first.cases {
        let deviation = |run: &Run| {
            let case = find(run, case).filter(|case| case.verdict == "deviates")?;
            case.found.clone()
        };
        let found = peers(runs).flat_map(|peer| found_with(peer, deviation));
        let found: Vec<_> = found.filter_map(|(name, found)| Some((name, found?))).collect();
        if found.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n**{}** [{}]: {}.", case.name, case.rule, case.sends);
        let _ = writeln!(out, "Allowed: {}.\n", case.allows);
        for all in grouped(&found) {
            let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            let text = all.first().map_or("", |(_, text)| text.as_str());
            let _ = write!(out, "- {}: {text}.", names.join(", "));
            if let Some(why) = why(&names, &case.name, text) {
                let _ = write!(out, " {why}");
            }
            out.push('\n');
        }
    }
}

/// Writes the cases that are not testable with some peer, by reason.
fn not_testable(out: &mut String, runs: &[Run]) {
    let mut all: Vec<(String, String)> = Vec::new();
    for peer in peers(runs) {
        for (name, reasons) in found_with(peer, reasons) {
            all.extend(reasons.into_iter().map(|reason| (name.clone(), reason)));
        }
    }
    if all.is_empty() {
        return;
    }
    out.push_str("\n## Not testable\n\n");
    for same in grouped(&all) {
        let names: Vec<_> = same.iter().map(|(name, _)| name.as_str()).collect();
        let text = same.first().map_or("", |(_, text)| text.as_str());
        let _ = writeln!(out, "- {}: {text}.", names.join(", "));
    }
}

/// Returns the reasons why cases of a run are not testable, with the cases. For example:
/// `ibv_alloc_mw: Operation not supported: window_type_1`.
fn reasons(run: &Run) -> Vec<String> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for case in run.cases.iter().filter(|case| case.verdict == "not testable") {
        let why = case.found.as_deref().unwrap_or_default();
        match all.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(&case.name),
            None => all.push((why, vec![&case.name])),
        }
    }
    all.into_iter().map(|(why, names)| format!("{why}: {}", names.join(", "))).collect()
}

/// Groups the peers with equal behaviour, in the order of the first of each group.
fn grouped(found: &[(String, String)]) -> Vec<Vec<&(String, String)>> {
    let mut all: Vec<Vec<&(String, String)>> = Vec::new();
    for one in found {
        match all.iter_mut().find(|same| same.first().is_some_and(|first| first.1 == one.1)) {
            Some(same) => same.push(one),
            None => all.push(vec![one]),
        }
    }
    all
}

fn table(out: &mut String, runs: &[Run]) {
    let Some(first) = runs.first() else { return };
    let _ = writeln!(out, "\n## All cases\n\n{}", begin("conform (cases)"));
    let peers: Vec<_> = peers(runs).collect();
    let names: Vec<_> = peers.iter().map(|peer| peer[0].name.as_str()).collect();
    for group in first.cases.chunk_by(|a, b| a.group == b.group) {
        let name = group.first().map_or("", |case| case.group.as_str());
        let _ = writeln!(out, "\n### {name}\n\n| case | rule | {} |", names.join(" | "));
        let _ = writeln!(out, "| --- | --- |{}", " --- |".repeat(peers.len()));
        for case in group {
            let verdicts: Vec<_> = peers.iter().map(|peer| cell(peer, case)).collect();
            let _ = writeln!(out, "| {} | {} | {} |", case.name, case.rule, verdicts.join(" | "));
        }
    }
    let _ = writeln!(out, "{END}");
}

/// Returns the result of a case with a peer: one verdict, or one for each protocol.
fn cell(peer: &[Run], case: &Case) -> String {
    let verdict = |run: &Run| match find(run, case).map(|c| c.verdict.as_str()) {
        Some("conforms") => "conforms",
        Some("deviates") => "**deviates**",
        Some(_) => "not testable",
        None => "–",
    };
    match *peer.iter().map(verdict).collect::<Vec<_>>() {
        [v4, v6] if v4 != v6 => format!("{v4}{OVER_V6}{v6})"),
        [verdict, ..] => verdict.into(),
        [] => String::new(),
    }
}

fn find<'a>(run: &'a Run, case: &Case) -> Option<&'a Case> {
    run.cases.iter().find(|c| c.name == case.name)
}

const HEAD: &str = "# Conformance report

[中文](../../zh/reference/conformance-report.md)

Made by `cargo xtask conform`, which plays every case of [`rxe conform`](commands/conform.md) with each peer: the device `rxe0` of stock Debian kernels in QEMU, and this engine under `rxe run`. The peer program is the same everywhere. `rxe conform --list` says what each case sends, and what it allows.

[The malformed-packet catalogue](../project/conformance.md) is the catalogue that the engine is tested with from inside, in virtual time; this page has what can be seen from outside.

Each case is played over IPv4 and over IPv6. Where the verdicts differ, the table has both. A kernel that panics in a case is booted again for the next one.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, verdicts: [(&str, Option<&str>); 2]) -> Run {
        let case = |(i, (verdict, found)): (usize, (&str, Option<&str>))| Case {
            group: "psn".into(),
            name: format!("case_{i}"),
            rule: "9.7.1".into(),
            sends: "a packet".into(),
            allows: "an answer".into(),
            verdict: verdict.into(),
            found: found.map(str::to_owned),
        };
        let cases = verdicts.into_iter().enumerate().map(case).collect();
        Run { name: name.into(), over: Over::V4, version: "1".into(), cases }
    }

    #[test]
    fn what_differs_over_ipv6_is_shown_beside_the_other() {
        let (good, bad) = (("conforms", None), ("deviates", Some("the kernel panics")));
        let other = Run { over: Over::V6, ..run("Linux 1", [bad, bad]) };
        let page = page(&[run("Linux 1", [good, bad]), other.clone(), run("rxe", [good; 2])]);
        assert!(page.contains("| Linux 1 | IPv4 | 1 | 1 | 1 | 0 |"), "{page}");
        assert!(page.contains("| Linux 1 | IPv6 | 1 | 0 | 2 | 0 |"), "{page}");
        assert!(
            page.contains("| case_0 | 9.7.1 | conforms (IPv6: **deviates**) | conforms |"),
            "{page}"
        );
        assert!(page.contains("| case_1 | 9.7.1 | **deviates** | conforms |"), "{page}");
        assert!(page.contains("- Linux 1 over IPv6: the kernel panics."), "{page}");
        assert!(page.contains("- Linux 1: the kernel panics."), "{page}");
        assert_eq!(differences(&page, &other), [""; 0]);
        assert_eq!(differences(&page, &run("Linux 1", [good, bad])), [""; 0]);
        assert_eq!(differences(&page, &run("Linux 1", [bad, bad])).len(), 1);
        let better = Run { over: Over::V6, ..run("Linux 1", [good, bad]) };
        assert_eq!(differences(&page, &better).len(), 1);
    }

    #[test]
    fn peers_that_deviate_alike_are_named_together() {
        let good = ("conforms", None);
        let bad = ("deviates", Some("nothing came"));
        let page = page(&[
            run("Linux 1", [good, bad]),
            run("Linux 2", [good, bad]),
            run("rxe", [good; 2]),
        ]);
        assert!(page.contains("| Linux 1 | IPv4 | 1 | 1 | 1 | 0 |"), "{page}");
        assert!(page.contains("- Linux 1, Linux 2: nothing came."), "{page}");
        assert!(
            page.contains("| case_1 | 9.7.1 | **deviates** | **deviates** | conforms |"),
            "{page}"
        );
        assert!(!page.contains("**case_0**"), "{page}");
        let other = run("Linux 2", [bad, bad]);
        assert_eq!(differences(&page, &run("Linux 2", [good, bad])), [""; 0]);
        let found = "case_0: \"conforms\" on the page, now deviates: nothing came";
        assert_eq!(differences(&page, &other), [found]);
    }
}

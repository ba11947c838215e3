//! Captures that begin in the middle of a conversation. The findings of the analyst are compared with
//! the faults that the generator has injected. An open finding says that it has other possible causes.

use std::collections::{BTreeMap, BTreeSet};

use rxe_lab::check::{Confidence, Kind};

use super::conversation::{Conversation, Plan, converse};
use super::{check, expected, single};

/// The numbers of frames that are missing at the beginning of a capture.
const BEGINS: [usize; 5] = [1, 2, 3, 5, 8];

/// At most one finding in this many may be false.
const FALSE_IN: usize = 1000;

/// The lengths of the header of a pcap file and of the header of a record.
const HEADERS: (usize, usize) = (24, 16);

/// Returns a capture without its first frames; `None` if none is left.
fn begin_at(file: &[u8], frames: usize) -> Option<Vec<u8>> {
    let (head, mut rest) = file.split_at_checked(HEADERS.0)?;
    for _ in 0..frames {
        let len = rest.get(8..12)?.first_chunk()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap();
        rest = rest.get(HEADERS.1 + len..)?;
    }
    (!rest.is_empty()).then(|| [head, rest].concat())
}

/// Returns the kinds of findings that a capture at this end may have.
fn may(run: &Conversation, plan: &Plan, tap: usize) -> BTreeSet<Kind> {
    let faults = plan.faults.into_iter().zip(run.victims);
    faults.flat_map(|(fault, victim)| expected(fault, tap, run, victim)).flatten().collect()
}

/// Packets before the capture are unknown, and nothing is concluded from their absence. If the cause
/// of a finding is not in the capture, the finding may be possible only.
#[test]
fn of_a_capture_that_begins_late_nothing_is_invented() {
    let (mut captures, mut findings) = (0, 0);
    let mut kinds: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for plan in single() {
        let run = converse(&plan);
        for (tap, file) in run.taps.iter().enumerate() {
            let may = may(&run, &plan, tap);
            let late = BEGINS.into_iter().filter_map(|begin| Some((begin, begin_at(file, begin)?)));
            for (begin, late) in late {
                captures += 1;
                for it in check(&late).findings {
                    findings += 1;
                    let is_open = it.confidence == Confidence::Possible
                        || matches!(it.kind, Kind::NotCaptured | Kind::Unexplained);
                    let is_wrong = !is_open && !may.contains(&it.kind);
                    let row = kinds.entry(it.kind.name()).or_default();
                    row[0] += 1;
                    row[1] += usize::from(is_open);
                    row[2] += usize::from(is_wrong);
                    if is_wrong {
                        wrong.push(format!("{plan:?} tap {tap}, from {begin}: {it:?}"));
                    }
                }
            }
        }
    }
    println!("{captures} captures that begin late, {findings} findings, {} false", wrong.len());
    println!("{:<26} {:>7} {:>7} {:>7}", "kind", "all", "open", "false");
    for (kind, [all, open, wrong]) in kinds {
        println!("{kind:<26} {all:>7} {open:>7} {wrong:>7}");
    }
    let few: Vec<_> = wrong.iter().take(12).collect();
    assert!(findings > 1000, "{findings}");
    assert!(wrong.len() * FALSE_IN <= findings, "{} of {findings}: {few:#?}", wrong.len());
}

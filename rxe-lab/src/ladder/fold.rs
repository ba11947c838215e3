//! Folds repetitions: equal sequences of rows that follow each other.

use super::label::{Label, Part};
use super::{Kind, Row};

/// The longest sequence, in rows, that is recognised as a unit of repetition.
const MAX_PERIOD: usize = 4;
/// The fewest repetitions that are folded.
const MIN_TIMES: usize = 6;

/// Folds rows that repeat.
pub(super) fn repetitions(rows: Vec<Row>) -> Vec<Row> {
    let mut folded = Vec::new();
    let mut at = 0;
    while at < rows.len() {
        let best = (1..=MAX_PERIOD)
            .map(|period| (times(&rows[at..], period), period))
            .filter(|(times, _)| *times >= MIN_TIMES)
            .max_by_key(|(times, period)| (times * period, MAX_PERIOD - period));
        match best {
            Some((times, period)) => {
                folded.push(repeated(&rows[at..at + times * period], period, times));
                at += times * period;
            }
            None => {
                folded.push(rows[at].clone());
                at += 1;
            }
        }
    }
    folded
}

/// Returns how often the first `period` rows occur in succession.
fn times(rows: &[Row], period: usize) -> usize {
    let Some(pattern) = rows.get(..period) else { return 0 };
    if !pattern.iter().all(|row| matches!(row.kind, Kind::Request | Kind::Response)) {
        return 0;
    }
    let same = |chunk: &&[Row]| {
        chunk.len() == period && chunk.iter().zip(pattern).all(|(a, b)| is_alike(a, b))
    };
    rows.chunks(period).take_while(same).count()
}

/// Returns whether two rows differ only in lengths and PSNs.
fn is_alike(a: &Row, b: &Row) -> bool {
    match (&a.label, &b.label) {
        (
            Label::Packets { qp, kind, mark: None, .. },
            Label::Packets { qp: other_qp, kind: other_kind, mark: None, .. },
        ) => (a.to_right, a.kind, qp, kind) == (b.to_right, b.kind, other_qp, other_kind),
        _ => false,
    }
}

/// Creates one row for `times` repetitions of `period` rows.
fn repeated(rows: &[Row], period: usize, times: usize) -> Row {
    let (first, last) = (&rows[0], &rows[rows.len() - 1]);
    let packets = rows.iter().map(|row| row.packets).sum();
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    let one_way = rows[..period].iter().all(|row| row.to_right == first.to_right);
    let parts = (0..period).filter_map(|nth| part(rows, period, nth)).collect();
    Row {
        at: first.at,
        until: last.until,
        frames: (first.frames.0, last.frames.1),
        packets,
        bytes,
        to_right: first.to_right.filter(|_| one_way),
        kind: first.kind,
        label: Label::Repeated(parts),
        times: times as u64,
    }
}

/// Returns the opcodes of the `nth` row of each repetition, and the range of their PSNs.
fn part(rows: &[Row], period: usize, nth: usize) -> Option<Part> {
    let all: Vec<_> = rows.iter().skip(nth).step_by(period).collect();
    match (&all.first()?.label, &all.last()?.label) {
        (
            Label::Packets { first, last, psns: (from, _), .. },
            Label::Packets { psns: (_, to), .. },
        ) => Some(Part { opcodes: (*first, *last), psns: (*from, *to) }),
        _ => None,
    }
}

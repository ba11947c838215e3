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
    let repeats =
        |row: &Row| matches!(row.kind, Kind::Request | Kind::Response | Kind::Again | Kind::Nak);
    if !pattern.iter().all(repeats) {
        return 0;
    }
    let same = |chunk: &&[Row]| {
        chunk.len() == period && chunk.iter().zip(pattern).all(|(a, b)| is_alike(a, b))
    };
    rows.chunks(period).take_while(same).count()
}

/// Returns whether two rows differ only in lengths and PSNs.
/// Rows of packets that are refused or sent again must have the same PSNs and words too.
fn is_alike(a: &Row, b: &Row) -> bool {
    let (
        Label::Packets { qp, kind, mark, psns, words, .. },
        Label::Packets {
            qp: other_qp,
            kind: other_kind,
            mark: other_mark,
            psns: other_psns,
            words: other_words,
            ..
        },
    ) = (&a.label, &b.label)
    else {
        return false;
    };
    (a.to_right, a.kind, qp, kind, mark) == (b.to_right, b.kind, other_qp, other_kind, other_mark)
        && (!is_trouble(a) || (psns, words) == (other_psns, other_words))
        && (mark.is_none() || is_trouble(a))
}

/// Returns whether packets of this row are refused or sent again.
fn is_trouble(row: &Row) -> bool {
    matches!(row.kind, Kind::Again | Kind::Nak)
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
    let (row, last) = (all.first()?, all.last()?);
    match (&row.label, &last.label) {
        (
            Label::Packets { opcodes, psns: (from, _), words, mark, .. },
            Label::Packets { opcodes: last, psns: (_, to), .. },
        ) => {
            let mark = mark.map(|mark| mark.to_string());
            let words =
                Some(words.clone()).filter(|words| row.kind == Kind::Nak && !words.is_empty());
            let trouble: Vec<_> = words.into_iter().chain(mark).collect();
            let trouble = if is_trouble(row) { trouble.join(", ") } else { String::new() };
            Some(Part { opcodes: opcodes.to(*last), psns: (*from, *to), trouble })
        }
        _ => None,
    }
}

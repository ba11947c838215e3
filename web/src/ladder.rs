//! Parts of a sequence diagram.

use rxe_lab::ladder::{Ladder, Row};
use serde::Serialize;

/// The most rows in one answer.
const MAX_ROWS: usize = 1000;

/// The rows of a part of a diagram.
#[derive(Debug, Serialize)]
pub(crate) struct Part {
    total: usize,
    rows: Vec<Rung>,
}

/// A row of a diagram.
#[derive(Debug, Serialize)]
struct Rung {
    label: String,
    seconds: f64,
    first: u64,
    packets: u64,
    /// `None` for repetitions in both directions.
    to_right: Option<bool>,
    kind: &'static str,
}

/// Returns the rows of a diagram from `from` on.
pub(crate) fn part(ladder: &Ladder, from: usize, count: usize) -> Part {
    let rows = ladder.rows.iter().skip(from).take(count.min(MAX_ROWS));
    Part { total: ladder.rows.len(), rows: rows.map(Rung::of).collect() }
}

impl Rung {
    fn of(row: &Row) -> Self {
        Self {
            label: row.label(),
            seconds: row.at.as_secs_f64(),
            first: row.frames.0,
            packets: row.packets,
            to_right: row.to_right,
            kind: row.kind.name(),
        }
    }
}

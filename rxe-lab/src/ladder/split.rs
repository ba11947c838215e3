//! Splits the conversations within one address by their queue pairs.

use super::{Label, Ladder, Row};
use crate::check::Checker;

/// Returns one diagram per connection between queue pairs of one address.
/// One more diagram has the packets to queue pairs whose peer is not known. A diagram of two
/// addresses is not split.
pub(super) fn connections(ladder: Ladder, known: &Checker) -> Vec<Ladder> {
    let (left, right) = (ladder.left, ladder.right);
    if left != right {
        return vec![ladder];
    }
    let mut ladders: Vec<Ladder> = Vec::new();
    for mut row in ladder.rows {
        let to = row.dest_qp();
        let ends = to.and_then(|to| Some((known.source_qp(left, right, to)?, to)));
        let turned = ends.map(|(from, to)| (to, from));
        let at = ladders.iter().rposition(|l| l.qps == ends || l.qps == turned);
        let at = at.unwrap_or_else(|| {
            ladders.push(Ladder { left, right, qps: ends, rows: Vec::new() });
            ladders.len() - 1
        });
        let ladder = &mut ladders[at];
        row.to_right = Some(ladder.qps == ends);
        if !ladder.rows.last_mut().is_some_and(|last| last.extend(&row)) {
            ladder.rows.push(row);
        }
    }
    ladders
}

impl Row {
    /// Returns the destination queue pair of the row; `None` for a repetition.
    fn dest_qp(&self) -> Option<u32> {
        match &self.label {
            Label::Packets { qp, .. } | Label::Missing { qp, .. } | Label::Comment { qp, .. } => {
                Some(*qp)
            }
            Label::Repeated(_) => None,
        }
    }
}

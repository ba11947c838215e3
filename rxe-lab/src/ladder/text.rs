//! Draws a diagram as text: one line per row, with the label inside its arrow.

use std::fmt::Write;

use super::{Kind, Ladder, Row};

/// The characters with which a diagram is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// Box drawing and other characters of Unicode.
    Unicode,
    /// ASCII only, except in comments of the capture file.
    Ascii,
}

impl Characters {
    /// Returns a text of a diagram in these characters. In ASCII, an ellipsis gets longer; all others
    /// keep their width.
    pub(super) fn of(self, text: String) -> String {
        if self == Self::Unicode {
            return text;
        }
        let mut ascii = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '│' => ascii.push('|'),
                '─' | '–' => ascii.push('-'),
                '═' => ascii.push('='),
                '✗' | '×' => ascii.push('x'),
                '…' => ascii.push_str("..."),
                other => ascii.push(other),
            }
        }
        ascii
    }
}

/// The width in columns of the time, left of the left lifeline.
const TIME: usize = 12;
/// The least width in columns between the two lifelines.
const LEAST_LANE: usize = 30;

/// Draws a diagram that is `width` columns wide.
pub fn text(ladder: &Ladder, width: usize, characters: Characters) -> String {
    let lane = width.saturating_sub(TIME + 4).max(LEAST_LANE);
    let [left, right] = ladder.names();
    let mut out = String::new();
    let whole = lane + 2;
    let room = whole.saturating_sub(left.chars().count());
    // Writing to a string does not fail.
    let _ = match right.chars().count() < room {
        true => writeln!(out, "{:TIME$} {left}{right:>room$}", ""),
        // Two long addresses have a line each.
        false => writeln!(out, "{0:TIME$} {left}\n{0:TIME$} {right:>whole$}", ""),
    };
    for row in &ladder.rows {
        let _ = match row.kind {
            Kind::Comment => writeln!(out, "{:TIME$} {}", "", line(row, lane, characters)),
            _ => writeln!(out, "{:>TIME$.6} {}", row.at.as_secs_f64(), line(row, lane, characters)),
        };
    }
    characters.of(out)
}

fn line(row: &Row, lane: usize, characters: Characters) -> String {
    // Besides the label: the shaft, spaces, and the head of the arrow.
    let label = row.label_in(characters, lane - 6);
    let room = lane - label.chars().count();
    let rest = |n: usize, with: &str| with.repeat(n);
    match (row.to_right, row.kind) {
        (Some(true), Kind::Comment) => format!("│   {label}{}│", rest(room - 3, " ")),
        (_, Kind::Comment) => format!("│{}{label}   │", rest(room - 3, " ")),
        (Some(true), Kind::Missing) => {
            format!("│─ {label} ✗{}│", rest(room - 4, " "))
        }
        (Some(false), Kind::Missing) => {
            format!("│{}✗ {label} ─│", rest(room - 4, " "))
        }
        (Some(true), _) => format!("│─ {label} {}>│", rest(room - 4, "─")),
        (Some(false), _) => format!("│<{} {label} ─│", rest(room - 4, "─")),
        (None, _) => format!("│< {label} {}>│", rest(room - 4, "═")),
    }
}

//! Draws diagrams as SVG.

use std::fmt::{self, Write};

use super::{Kind, Ladder, Row};

const WIDTH: u32 = 1100;
const LEFT: u32 = 130;
const RIGHT: u32 = 1080;
const ROW: usize = 30;
const TOP: usize = 60;
/// The most characters of a label.
const MAX_LABEL: usize = 125;

/// Draws the diagrams one below the other.
pub fn svg(ladders: &[Ladder]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = draw(&mut out, ladders);
    out
}

fn draw(out: &mut String, ladders: &[Ladder]) -> fmt::Result {
    let heights: usize = ladders.iter().map(height).sum();
    let height_all = heights.max(TOP);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height_all}" width="{WIDTH}" height="{height_all}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">"#
    )?;
    out.push_str(STYLE);
    writeln!(out, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
    let mut top = 0;
    for ladder in ladders {
        let [left, right] = ladder.names().map(Escaped);
        let (name, first, end) = (top + 22, top + 32, top + height(ladder) - 12);
        writeln!(
            out,
            r#"<g class="ladder"><text x="{LEFT}" y="{name}" class="host">{left}</text>"#
        )?;
        writeln!(
            out,
            r#"<text x="{RIGHT}" y="{name}" class="host" text-anchor="end">{right}</text>"#
        )?;
        for x in [LEFT, RIGHT] {
            writeln!(out, r#"<line x1="{x}" y1="{first}" x2="{x}" y2="{end}" stroke="gray"/>"#)?;
        }
        for (nth, row) in ladder.rows.iter().enumerate() {
            draw_row(out, row, top + TOP + nth * ROW)?;
        }
        out.push_str("</g>\n");
        top += height(ladder);
    }
    out.push_str("</svg>\n");
    Ok(())
}

fn height(ladder: &Ladder) -> usize {
    TOP + ladder.rows.len() * ROW + 20
}

fn draw_row(out: &mut String, row: &Row, y: usize) -> fmt::Result {
    let class = row.kind.name();
    let thick = if row.packets > 1 { " run" } else { "" };
    let (at, frames) = (row.at.as_secs_f64(), row.frames);
    let (whole, label) = (Escaped(row.label()), Escaped(row.label_within(MAX_LABEL)));
    writeln!(
        out,
        r#"<g class="row {class}{thick}"><title>{whole}: frames {} to {}, {at:.6} s to {:.6} s</title>"#,
        frames.0,
        frames.1,
        row.until.as_secs_f64()
    )?;
    let middle = u32::midpoint(LEFT, RIGHT);
    if row.kind == Kind::Comment {
        let y = y - 12;
        return writeln!(
            out,
            r#"<text x="{middle}" y="{y}" text-anchor="middle" class="label">{label}</text></g>"#
        );
    }
    writeln!(
        out,
        r##"<text x="{}" y="{}" text-anchor="end" fill="#555">{at:.6}</text>"##,
        LEFT - 10,
        y + 4
    )?;
    // The arrow of a missing packet ends in the middle.
    let arrives = row.kind != Kind::Missing;
    let (from, to) = match row.to_right {
        Some(true) | None => (LEFT, if arrives { RIGHT } else { middle }),
        Some(false) => (RIGHT, if arrives { LEFT } else { middle }),
    };
    writeln!(out, r#"<line x1="{from}" y1="{y}" x2="{to}" y2="{y}"/>"#)?;
    if !arrives {
        let (a, b, c, d) = (to - 5, y - 5, to + 5, y + 5);
        writeln!(out, r#"<path d="M{a} {b}L{c} {d}M{a} {d}L{c} {b}"/>"#)?;
    } else {
        head(out, to, y, to == RIGHT)?;
        if row.to_right.is_none() {
            head(out, LEFT, y, false)?;
        }
    }
    writeln!(
        out,
        r#"<text x="{middle}" y="{}" text-anchor="middle" class="label">{label}</text></g>"#,
        y - 5
    )
}

/// Draws the head of an arrow.
fn head(out: &mut String, x: u32, y: usize, to_right: bool) -> fmt::Result {
    let back = if to_right { x - 8 } else { x + 8 };
    writeln!(out, r#"<path class="head" d="M{x} {y}L{back} {}L{back} {}Z"/>"#, y - 4, y + 4)
}

const STYLE: &str = "<style>
.host{font-weight:bold}
.row line,.row path{stroke:currentColor;fill:none}
.row .head{fill:currentColor}
.row .label{fill:currentColor}
.run line{stroke-width:3}
.request{color:#1f4e9c}.response{color:#1d7a3a}.control{color:#6a4c93}.again{color:#c05a00}
.nak,.missing,.bad{color:#c01020}
.comment{color:#555;font-style:italic}
.missing line{stroke-dasharray:6 4}
.hit .label{font-weight:bold;text-decoration:underline}
</style>
";

/// Text with the special characters of XML escaped.
struct Escaped<T>(T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

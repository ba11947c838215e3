//! Draws the screen of a terminal as SVG, in which text stays text: the file has a line for each
//! row.
//!
//! Each run of cells states its position and width, so columns stay aligned in any font of the
//! browser.

use std::fmt::Write;

use vt100::{Cell, Color, Screen};

/// The sizes of a cell, a row, the text, and the screen's margin, in pixels.
const CELL: u16 = 9;
const LINE: u16 = 20;
const TEXT: u16 = 15;
const SPACE: u16 = 14;
/// The distance of a row's baseline from its top, in pixels.
const BASE: u16 = 15;

/// The eight colours of a terminal on a light background. Bright colours are drawn alike.
const COLOURS: [&str; 8] =
    ["#24292f", "#b3242c", "#1a7f37", "#8a6100", "#0a58b8", "#8230b8", "#0f757f", "#6e7781"];

/// Cells of one row with the same look, and with no two blanks between them.
struct Run {
    column: u16,
    columns: u16,
    text: String,
    look: Look,
}

/// The look of text. Background colours are not drawn, because no command uses any.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Look {
    bold: bool,
    underline: bool,
    colour: Option<u8>,
    /// Whether the characters are two columns wide.
    wide: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        let colour = match cell.fgcolor() {
            Color::Idx(index @ 0..=15) => Some(index % 8),
            _ => None,
        };
        Self { bold: cell.bold(), underline: cell.underline(), colour, wide: cell.is_wide() }
    }

    /// Returns the SVG attributes, each preceded by a space.
    fn attributes(self) -> String {
        let mut out = String::new();
        if self.bold {
            out += r#" font-weight="bold""#;
        }
        if self.underline {
            out += r#" text-decoration="underline""#;
        }
        if let Some(colour) = self.colour {
            // Writing to a string does not fail.
            let _ = write!(out, r#" fill="{}""#, COLOURS[usize::from(colour)]);
        }
        out
    }
}

/// Draws the screen down to its last row with text.
pub(super) fn draw(screen: &Screen) -> String {
    let (rows, columns) = screen.size();
    let mut rows: Vec<_> = (0..rows.get()).map(|row| runs(screen, row)).collect();
    while rows.pop_if(|runs| runs.is_empty()).is_some() {}
    let height = u16::try_from(rows.len()).unwrap_or(u16::MAX) * LINE + 2 * SPACE;
    let width = columns.get() * CELL + 2 * SPACE;
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="{TEXT}" fill="{ink}">
<rect width="100%" height="100%" rx="6" fill="#f6f8fa" stroke="#d0d7de"/>
"##,
        ink = COLOURS[0]
    );
    for (row, runs) in (0..).zip(&rows) {
        if !runs.is_empty() {
            let spans: String = runs.iter().map(Run::span).collect();
            // Writing to a string does not fail.
            let _ = writeln!(out, r#"<text y="{}">{spans}</text>"#, SPACE + row * LINE + BASE);
        }
    }
    out + "</svg>\n"
}

fn runs(screen: &Screen, row: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // The number of blanks since the last run.
    let mut blanks = 0;
    for column in 0..screen.size().1.get() {
        let Some(cell) = screen.cell(row, column) else { break };
        if cell.is_wide_continuation() {
            continue;
        }
        let look = Look::of(cell);
        let text = cell.contents();
        if text.trim().is_empty() && !look.underline {
            blanks += 1;
            continue;
        }
        match runs.last_mut() {
            Some(run) if blanks < 2 && run.look == look => {
                run.text.push_str(&" ".repeat(blanks));
                run.text.push_str(text);
            }
            _ => runs.push(Run { column, columns: 0, text: text.to_owned(), look }),
        }
        blanks = 0;
        if let Some(run) = runs.last_mut() {
            run.columns = column + 1 + u16::from(look.wide) - run.column;
        }
    }
    runs
}

impl Run {
    fn span(&self) -> String {
        let Self { column, columns, text, look } = self;
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!(
            r#"<tspan x="{}" textLength="{}"{}>{text}</tspan>"#,
            SPACE + column * CELL,
            columns * CELL,
            look.attributes()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the drawing of these bytes in a terminal of 80 columns.
    fn drawn(bytes: &str) -> String {
        let mut parser = vt100::Parser::default();
        parser.process(bytes.as_bytes());
        draw(parser.screen())
    }

    fn rows(bytes: &str) -> Vec<String> {
        let svg = drawn(bytes);
        svg.lines().filter(|line| line.starts_with("<text")).map(str::to_owned).collect()
    }

    #[test]
    fn columns_stay_where_they_are() {
        let drawn = rows("a b   c\r\n\r\n│─>");
        assert_eq!(
            drawn,
            [
                r#"<text y="29"><tspan x="14" textLength="27">a b</tspan><tspan x="68" textLength="9">c</tspan></text>"#,
                r#"<text y="69"><tspan x="14" textLength="27">│─&gt;</tspan></text>"#,
            ]
        );
    }

    #[test]
    fn looks_and_wide_characters_are_runs_of_their_own() {
        let drawn = rows("\x1b[1mb\x1b[m \x1b[4;31mr\x1b[m 中文x");
        assert_eq!(
            drawn[0],
            concat!(
                r#"<text y="29"><tspan x="14" textLength="9" font-weight="bold">b</tspan>"#,
                r##"<tspan x="32" textLength="9" text-decoration="underline" fill="#b3242c">r</tspan>"##,
                r#"<tspan x="50" textLength="36">中文</tspan><tspan x="86" textLength="9">x</tspan></text>"#
            )
        );
    }

    #[test]
    fn a_screen_ends_with_its_last_row_of_text() {
        assert!(drawn("1\r\n2").contains(r#"width="748" height="68""#));
    }
}

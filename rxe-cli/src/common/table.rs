//! Tables of text: aligned with tabs, as scripts print them, or with spaces.

use std::fmt;

/// The distance of tab stops in columns.
const TAB: usize = 8;

/// Returns the tabs from column `from` to column `to` (a multiple of 8); at least one.
pub(crate) fn tab_to(from: usize, to: usize) -> String {
    "\t".repeat(to.saturating_sub(from).div_ceil(TAB).max(1))
}

/// A table whose columns are aligned with tabs.
pub(crate) struct TabTable<const N: usize> {
    widths: [usize; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> TabTable<N> {
    /// Creates a table whose columns have at least these widths, which are multiples of 8.
    pub(crate) fn new(widths: [usize; N]) -> Self {
        Self { widths, rows: Vec::new() }
    }

    /// Returns an upper bound of the table's width in terminal columns.
    pub(crate) fn width(&self) -> usize {
        self.widths.iter().sum()
    }

    /// Adds a row. Columns become wider if necessary.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max((cell.len() + 1).next_multiple_of(TAB));
        }
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for TabTable<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let mut cells = row.iter().zip(self.widths).peekable();
            while let Some((cell, width)) = cells.next() {
                f.write_str(cell)?;
                if cells.peek().is_some() {
                    f.write_str(&tab_to(cell.len(), width))?;
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// The alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Left-aligned, for words.
    Left,
    /// Right-aligned, for numbers.
    Right,
}

/// A table whose columns are as wide as their widest cell, two spaces apart.
pub(crate) struct Table<const N: usize> {
    aligns: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// Creates a table with these headings.
    pub(crate) fn new(columns: [(&str, Align); N]) -> Self {
        let heads = columns.map(|(name, _)| name.to_string());
        Self { aligns: columns.map(|(_, align)| align), rows: vec![heads] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |c: usize| self.rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(widths).zip(self.aligns) {
                match align {
                    Align::Left => line += &format!("{cell:<width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new([("size", Align::Right), ("what", Align::Left)]);
        table.row(["1".into(), "a".into()]);
        table.row(["65536".into(), "longer".into()]);
        assert_eq!(table.to_string(), " size  what\n    1  a\n65536  longer\n");
    }

    #[test]
    fn tabs_reach_the_column_and_are_never_none() {
        assert_eq!(tab_to(0, 8), "\t");
        assert_eq!(tab_to(7, 16), "\t\t");
        assert_eq!(tab_to(8, 16), "\t");
        assert_eq!(tab_to(40, 40), "\t");
    }
}

//! Packets as lines of text.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use rxe_lab::frame::{Address, Content, Transport};
use rxe_lab::packets::{Shown, field_text};
use rxe_lab::words;

use crate::common::terminal_width;

/// Writes packets as lines. Columns widen to fit their contents.
pub(super) struct Text {
    verbose: bool,
    /// The width of the terminal in columns, if standard output is one.
    width: Option<usize>,
    names: Names,
    /// The width of the widest address so far.
    address: usize,
    line: String,
    /// The offset in the line of the text that follows the opcode.
    words: usize,
}

/// The two addresses of a packet as text.
/// They are cached, because the next packet mostly has the same two, in either order.
#[derive(Default)]
struct Names {
    of: Option<(Address, Address)>,
    texts: [String; 2],
}

impl Names {
    fn of(&mut self, ends: Option<(Address, Address)>) -> [&str; 2] {
        let Some((src, dst)) = ends else { return ["?", "?"] };
        if self.of != ends && self.of != Some((dst, src)) {
            self.of = ends;
            for (text, address) in self.texts.iter_mut().zip([src, dst]) {
                text.clear();
                // Writing to a string does not fail.
                let _ = write!(text, "{address}");
            }
        }
        let [first, second] = &self.texts;
        if self.of == ends { [first, second] } else { [second, first] }
    }
}

/// The indentation of a line's continuation.
const INDENT: usize = 8;

impl Text {
    pub(super) fn new(verbose: bool) -> Self {
        let width = terminal_width().filter(|width| *width >= 40);
        let (names, line) = (Names::default(), String::new());
        Self { verbose, width, names, address: 0, line, words: 0 }
    }

    pub(super) fn write(&mut self, out: &mut impl Write, shown: &Shown<'_>) -> io::Result<()> {
        self.line.clear();
        self.words = 0;
        self.summarize(shown);
        match self.width {
            Some(width) => write_folded(out, &self.line, self.words, width)?,
            None => {
                self.line.push('\n');
                out.write_all(self.line.as_bytes())?;
            }
        }
        if self.verbose {
            write_fields(out, shown)?;
        }
        Ok(())
    }

    /// Builds the line of a packet. Writing to a string does not fail.
    fn summarize(&mut self, shown: &Shown<'_>) {
        let number = shown.record.number;
        let _ = match shown.packet.and_then(|packet| packet.segment) {
            Some((index, _)) => write!(self.line, "{:>6}", format!("{number}.{index}")),
            None => write!(self.line, "{number:>6}"),
        };
        let since = shown.since.saturating_add(Duration::from_nanos(500));
        let (seconds, micros) = (since.as_secs(), since.subsec_micros());
        let [src, dst] = self.names.of(shown.frame.ends);
        self.address = self.address.max(src.len()).max(dst.len());
        let blanks = |text: &str| std::iter::repeat_n(' ', self.address - text.len());
        let _ = write!(self.line, " {seconds:>3}.{micros:06} ");
        self.line.extend(blanks(src));
        let _ = write!(self.line, "{src} > {dst} ");
        self.line.extend(blanks(dst));
        match (shown.packet, &shown.frame.content) {
            (Some(packet), _) => self.packet(shown, packet),
            (None, Content::Malformed(why)) => {
                let _ = write!(self.line, "malformed: {why}");
            }
            (None, _) => {}
        }
        for comment in &shown.record.comments {
            let _ = write!(self.line, ", comment: {}", comment.replace('\n', " "));
        }
    }

    fn packet(&mut self, shown: &Shown<'_>, packet: &Transport<'_>) {
        let (qp, psn) = (packet.bth.dest_qp.value(), packet.bth.psn.value());
        let _ = write!(self.line, "0x{qp:06x} 0x{psn:06x} {}", packet.bth.opcode);
        self.words = self.line.len();
        words::describe(&mut self.line, " ", shown.frame, packet);
        if let Some(mark) = shown.mark {
            let _ = write!(self.line, ", {mark}");
        }
    }
}

/// Writes a line in pieces of at most `width` columns. Breaks go after a comma, or before the text
/// that begins at byte `words`, or else at a space.
fn write_folded(out: &mut impl Write, line: &str, words: usize, width: usize) -> io::Result<()> {
    let (mut indent, mut at) = (0, 0);
    loop {
        let rest = &line[at..];
        let room = width - indent;
        let Some((limit, _)) = rest.char_indices().nth(room) else { break };
        let fits = &rest[..limit];
        let comma = fits.rfind(", ").map(|at| at + 1).filter(|end| at + end > words);
        let before_words = words.checked_sub(at).filter(|end| (1..=limit).contains(end));
        let Some(end) =
            comma.or(before_words).or_else(|| fits.rfind(' ').filter(|end| at + end > INDENT))
        else {
            break;
        };
        writeln!(out, "{:indent$}{}", "", rest[..end].trim_end())?;
        at += end + rest[end..].len() - rest[end..].trim_start().len();
        indent = INDENT;
    }
    writeln!(out, "{:indent$}{}", "", &line[at..])
}

/// Writes every field of a packet, with its byte offset in the frame.
fn write_fields(out: &mut impl Write, shown: &Shown<'_>) -> io::Result<()> {
    let record = shown.record;
    let (captured, len) = (record.bytes.len(), record.original_len);
    if captured < len {
        writeln!(out, "        {captured} of {len} bytes captured")?;
    }
    let transport = shown.packet.map(|packet| &packet.layers).into_iter().flatten();
    for layer in shown.frame.layers.iter().chain(transport) {
        writeln!(out, "        {}", layer.header.name)?;
        for (field, value) in layer.fields(record.bytes) {
            let at = layer.at + field.byte;
            let name = field.name;
            writeln!(out, "{at:>12}  {name:<26}  {}", field_text(shown, layer, field, value))?;
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_after_commas_or_before_the_words() {
        let folded = |line: &str, width| {
            let mut out = Vec::new();
            let words = line.find(" len").unwrap_or(0);
            write_folded(&mut out, line, words, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(folded("1 SEND len 5, SE", 16), "1 SEND len 5, SE\n");
        assert_eq!(folded("1 SEND len 5, SE", 15), "1 SEND len 5,\n        SE\n");
        assert_eq!(folded("1 SEND len 5", 11), "1 SEND\n        len 5\n");
        assert_eq!(folded("1234567 8 SEND len 5", 13), "1234567 8\n        SEND\n        len 5\n");
        assert_eq!(folded("µµµµµ len µ", 9), "µµµµµ\n        len µ\n");
        assert_eq!(folded("unbreakable", 9), "unbreakable\n");
        let long = format!("1 SEND len 5{}", ", 12345678".repeat(30));
        assert!(folded(&long, 40).lines().all(|line| line.len() <= 40));
    }
}

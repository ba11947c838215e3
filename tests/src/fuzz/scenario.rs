//! A scenario: a description of packets in TOML.
//!
//! It is refused at a place within the text, or it gives packets within its bounds: the same ones each
//! time, which the reader of captures and the analyst take.

use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::Checker;
use rxe_lab::frame;
use rxe_lab::scenario::Bounds;

use crate::scenario::generate;

/// Little, so that the fuzzer tries many.
const BOUNDS: Bounds = Bounds { frames: 200, bytes: 1 << 18, memory: 1 << 18 };

/// Lets the bytes be a description.
///
/// # Panics
/// Where something is wrong.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let generated = match generate(&text, BOUNDS) {
        Ok(generated) => generated,
        Err(error) => {
            let line = text.split('\n').nth(error.line - 1).expect("a line of the text");
            assert!(error.column <= line.chars().count() + 1, "{text:?}: {error}");
            assert!(!error.text.is_empty() && !error.text.contains('\n'), "{text:?}: {error}");
            return;
        }
    };
    assert_eq!(generate(&text, BOUNDS).as_ref(), Ok(&generated), "{text:?}");
    let bytes: usize = generated.frames.iter().map(|frame| frame.bytes.len()).sum();
    assert!(generated.frames.len() <= BOUNDS.frames && bytes <= BOUNDS.bytes, "{text:?}");
    let file = generated.to_pcap();
    let mut reader = Reader::new(&file[..]).expect("a capture");
    let mut checker = Checker::default();
    let mut read = 0;
    let mut start = Start::default();
    while let Some(record) = reader.next().expect("a whole capture") {
        checker.add(record.number, 0, start.since(&record), &frame::decode(&record));
        read += 1;
    }
    assert_eq!(read, generated.frames.len());
    checker.finish();
}

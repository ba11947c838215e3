//! Fuzzes scenarios, which are descriptions of packets in TOML.
//!
//! A scenario is rejected at a position within the text, or it generates packets within its bounds.
//! It generates the same packets each time, and the capture reader and the analyser accept them.

use rxe_lab::capture::{Reader, Start};
use rxe_lab::check::Checker;
use rxe_lab::frame;
use rxe_lab::scenario::{Bounds, generate};

/// Small limits, so that the fuzzer tries many inputs.
const BOUNDS: Bounds = Bounds { frames: 200, bytes: 1 << 18, memory: 1 << 18 };

/// Generates the packets of a scenario, whose text is the bytes.
///
/// # Panics
/// If an invariant is violated.
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

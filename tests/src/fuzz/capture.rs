//! Fuzzes the readers of capture files.
//! Any bytes are read or rejected. Every frame that is read is decoded, tracked, checked and
//! described, and no header lies outside the captured bytes.

use std::fmt::Write as _;

use rxe_lab::capture::Reader;
use rxe_lab::check::Checker;
use rxe_lab::frame::{Content, Icrc, Unchecked, decode};
use rxe_lab::track::Tracker;
use rxe_lab::words;

/// Reads the bytes as a capture file.
/// Only the first frames are examined, because a compressed file may be much larger than the input.
pub fn run(data: &[u8]) {
    const MAX_FRAMES: u64 = 500;
    let Ok(mut reader) = Reader::new(data) else { return };
    let mut tracker = Tracker::default();
    let mut checker = Checker::default();
    let mut text = String::new();
    for number in 1..=MAX_FRAMES {
        let record = match reader.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(e) => {
                assert_eq!(e.frame, number);
                assert!(!e.to_string().is_empty());
                break;
            }
        };
        assert_eq!(record.number, number);
        assert!(record.original_len >= record.bytes.len());
        let frame = decode(&record);
        checker.add(number, record.interface, record.at.unwrap_or_default(), &frame);
        let mut layers = frame.layers.to_vec();
        if let Content::Rdma(packets) = &frame.content {
            assert!(!packets.is_empty());
            for packet in packets {
                tracker.observe(record.interface, &frame, packet);
                words::describe(&mut text, "", &frame, packet);
                // A first fragment and a frame that a switch truncated state the whole length.
                let is_part = Icrc::Unchecked(Unchecked::Fragment) == packet.icrc
                    || Icrc::Unchecked(Unchecked::Cut) == packet.icrc;
                let end = packet.at + packet.len;
                assert!(end <= record.original_len || is_part, "{packet:?}");
                assert!(packet.payload().len() <= packet.payload_len);
                layers.extend(packet.layers.iter());
            }
        }
        for layer in layers {
            assert!(layer.at <= record.bytes.len(), "{layer:?}");
            for (field, value) in layer.fields(record.bytes) {
                let _ = write!(text, "{} {value:?}", field.name);
            }
        }
        text.clear();
    }
    let report = checker.finish();
    assert!(report.findings.iter().all(|f| !f.frames.is_empty() && !f.text.is_empty()));
    if let Ok(more) = reader.next() {
        // After an error the reader returns no more records.
        assert!(more.is_none_or(|record| record.number == MAX_FRAMES + 1));
    }
}

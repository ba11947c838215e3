//! Helpers of the tests of `rxe decode`, which create and read captures.
#![allow(dead_code, reason = "not every test program uses all of it")]

pub(crate) mod fields;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rxe_lab::capture::Reader;

/// Runs `rxe` with these arguments and an empty standard input.
pub(crate) fn run(args: &[&str]) -> Output {
    let rxe = env!("CARGO_BIN_EXE_rxe");
    Command::new(rxe).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Returns the bytes of each frame of a capture.
pub(crate) fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut frames = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        frames.push(record.bytes.to_vec());
    }
    frames
}

/// A pcapng file under construction, with an interface per link type.
pub(crate) struct Pcapng {
    pub(crate) bytes: Vec<u8>,
    links: Vec<u16>,
}

impl Pcapng {
    pub(crate) fn new() -> Self {
        let mut file = Self { bytes: Vec::new(), links: Vec::new() };
        let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
        file.block(0x0a0d_0d0a, &section);
        file
    }

    /// Adds a frame that had `len` bytes on the wire, `nanos` after 1970.
    pub(crate) fn packet(&mut self, link: u16, nanos: u64, frame: &[u8], len: usize) {
        let interface = self.links.iter().position(|l| *l == link).unwrap_or_else(|| {
            self.links.push(link);
            let [low, high] = link.to_le_bytes();
            // The option if_tsresol says nanoseconds.
            self.block(1, &[low, high, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
            self.links.len() - 1
        });
        let words =
            [interface as u64, nanos >> 32, nanos & 0xffff_ffff, frame.len() as u64, len as u64];
        let head: Vec<_> =
            words.iter().flat_map(|word| u32::try_from(*word).unwrap().to_le_bytes()).collect();
        let pad = vec![0; frame.len().next_multiple_of(4) - frame.len()];
        self.block(6, &[&head[..], frame, &pad].concat());
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let len = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
        self.bytes.extend([&kind.to_le_bytes()[..], &len, body, &len].concat());
    }
}

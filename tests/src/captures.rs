//! Packet captures of RDMA devices that do not belong to this project.
//! They are not part of this repository. A test that needs a missing one is skipped and says so.

use std::env;
use std::path::PathBuf;

/// Reads a text file of the captures.
/// If the file does not exist, prints that `test` is skipped and returns `None`.
pub fn read(test: &str, file: &str) -> Option<String> {
    Some(String::from_utf8(read_bytes(test, file)?).expect("the vectors are text"))
}

/// Reads a file of the captures.
/// If the file does not exist, prints that `test` is skipped and returns `None`.
pub fn read_bytes(test: &str, file: &str) -> Option<Vec<u8>> {
    let path = directory().join(file);
    let bytes = std::fs::read(&path).ok();
    if bytes.is_none() {
        let why = format!("{} is not there; RXE_CAPTURES names their directory", path.display());
        rxe_test_support::skipped(test, &why);
    }
    bytes
}

/// Returns the directory of the captures: `$RXE_CAPTURES`, or `shared/captures` beside the checkout.
fn directory() -> PathBuf {
    match env::var_os("RXE_CAPTURES") {
        Some(dir) if !dir.is_empty() => dir.into(),
        _ => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/captures"),
    }
}

/// Returns the rows of a tab-separated table as columns, without lines that begin with `#`.
pub fn rows_of(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// Decodes hexadecimal digits.
///
/// # Panics
/// If `text` is not an even number of hexadecimal digits.
pub fn unhex(text: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// Returns the frames of a little-endian pcap file.
///
/// # Panics
/// If `file` is not a pcap file of Ethernet frames.
pub fn pcap_frames(file: &[u8]) -> Vec<&[u8]> {
    let word = |bytes: &[u8], at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(file, 0), word(file, 20)), (0xa1b2_c3d4, 1), "a pcap of Ethernet frames");
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (frame, after) = rest[16..].split_at(word(rest, 8) as usize);
        frames.push(frame);
        rest = after;
    }
    frames
}

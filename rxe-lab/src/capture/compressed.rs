//! Decompresses files, recognised by their first bytes.
//! The formats are gzip (RFC 1952), also with several members, and zstd (RFC 8878), also with
//! several frames.

use std::io::{self, Cursor, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

use super::source::Source;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: u32 = 0xfd2f_b528;
/// The first of the 16 magic numbers of skippable frames.
const ZSTD_SKIPPABLE: u32 = 0x184d_2a50;
/// The largest window in bytes that a zstd frame may demand. `zstd --ultra --long` stays below it.
const ZSTD_WINDOW: u64 = 128 << 20;

/// Opens a file, decompressing it if it is compressed.
pub(super) fn open<'r>(inner: Box<dyn Read + 'r>) -> io::Result<Source<'r>> {
    let mut source = Source::new(inner);
    source.fill(4)?;
    let head = source.front(4);
    if head.starts_with(&GZIP) {
        return Ok(Source::new(Box::new(MultiGzDecoder::new(source))));
    }
    if matches!(head.first_chunk(), Some(magic) if is_zstd(u32::from_le_bytes(*magic))) {
        return Ok(Source::new(Box::new(Zstd { state: State::Between(source) })));
    }
    Ok(source)
}

fn is_zstd(magic: u32) -> bool {
    magic == ZSTD || magic & !0xf == ZSTD_SKIPPABLE
}

/// Decompresses consecutive zstd frames.
struct Zstd<'r> {
    state: State<'r>,
}

enum State<'r> {
    /// Before a frame, or at the end.
    Between(Source<'r>),
    Within(Box<Decoder<'r>>),
    /// After an error: the data that were decoded before it, and the error.
    Rest(Cursor<Vec<u8>>, io::Error),
    Failed,
}

impl Read for Zstd<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Failed) {
                State::Failed => return Err(damaged("its zstd frame is damaged")),
                State::Between(source) => match next_frame(source)? {
                    Ok(decoder) => self.state = State::Within(Box::new(decoder)),
                    Err(source) => {
                        self.state = State::Between(source);
                        return Ok(0);
                    }
                },
                State::Within(mut decoder) => match decoder.read(out) {
                    Ok(0) if !out.is_empty() => self.state = State::Between(decoder.into_inner()),
                    Ok(got) => {
                        self.state = State::Within(decoder);
                        return Ok(got);
                    }
                    Err(_) => self.state = rest(*decoder)?,
                },
                State::Rest(mut rest, error) => match rest.read(out)? {
                    0 => return Err(error),
                    got => {
                        self.state = State::Rest(rest, error);
                        return Ok(got);
                    }
                },
            }
        }
    }
}

type Decoder<'r> = StreamingDecoder<Source<'r>, FrameDecoder>;

/// Returns a decoder for the next frame, or the source if there are no more frames.
fn next_frame(mut source: Source<'_>) -> io::Result<Result<Decoder<'_>, Source<'_>>> {
    loop {
        let there = source.fill(8)?;
        if there == 0 {
            return Ok(Err(source));
        }
        let word = |at: usize| {
            let bytes = source.front(8).get(at..).and_then(<[u8]>::first_chunk);
            bytes.map(|bytes| u32::from_le_bytes(*bytes))
        };
        match (word(0), word(4)) {
            (Some(magic), Some(len)) if magic & !0xf == ZSTD_SKIPPABLE => {
                source.consume(8);
                if source.skip(len.into())? > 0 {
                    return Err(damaged("it ends within a zstd frame"));
                }
            }
            (Some(ZSTD), _) => {
                let decoder = StreamingDecoder::new_with_max_window_size(source, ZSTD_WINDOW);
                return decoder.map(Ok).map_err(|e| damaged(&e.to_string()));
            }
            _ => return Err(damaged("what follows its last zstd frame is none")),
        }
    }
}

/// Returns the data that a decoder still holds after an unreadable block.
/// The decoder keeps a window for later blocks, so the frame is ended with an empty block to
/// release it.
fn rest(decoder: Decoder<'_>) -> io::Result<State<'_>> {
    /// An empty last block, then a checksum, which is not compared.
    const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
    let (mut source, mut decoder) = decoder.into_parts();
    let error = match source.fill(1)? {
        0 => io::ErrorKind::UnexpectedEof.into(),
        _ => damaged("its zstd frame is damaged"),
    };
    let ended = decoder.decode_blocks(&END[..], BlockDecodingStrategy::UptoBlocks(1));
    let rest = ended.ok().and_then(|_| decoder.collect()).unwrap_or_default();
    Ok(State::Rest(Cursor::new(rest), error))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

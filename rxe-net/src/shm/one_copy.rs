//! Long messages in one copy: the sender says where the bytes are in its memory, and the receiver has the
//! system copy them to where they belong, after its checks.
//!
//! A record then holds, in the place of a payload, ranges of the sender's memory and the tokens by which the
//! receiver sees that they held the payload to the end ([`Token`]). What cannot be read, or is not valid any
//! more, is a lost packet.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rxe_core::mem::{AccessError, Lender, Source, Span, Token, WritableSpan};
use smallvec::SmallVec;

use super::ring::{Broken, Record};
use crate::NetError;
use crate::sys::process_memory::{self, Range};

/// When messages between processes of this host are copied once, by the system, and not into memory that
/// both share and out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OneCopy {
    /// Where the system lets the receiver read the sender's memory, and copying twice is slower: that is so
    /// where the two run on processors without a common cache. It is measured while they run.
    #[default]
    Auto,
    /// Wherever the system lets the receiver read the sender's memory.
    Always,
    /// Never: neither what this process sends, nor what it receives.
    Never,
}

impl OneCopy {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// Its name, as on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

impl fmt::Display for OneCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OneCopy {
    type Err = NetError;

    fn from_str(name: &str) -> Result<Self, NetError> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| NetError::NoSuchOneCopy { name: name.to_owned() })
    }
}

/// Payloads from this length on are lent: below it, the call costs more than the copy.
pub(super) const LEND_FROM: usize = 16 << 10;
/// Bytes of payload of a train that is lent.
pub(super) const MAX_LENT: usize = 256 << 10;
/// Ranges of a payload that is lent.
const MAX_PIECES: usize = 8;
/// Tokens of a payload that is lent: that of the queue pair, and one for each region.
const MAX_TOKENS: usize = 1 + MAX_PIECES;

/// What stands in a record in the place of a payload: the numbers of ranges and of tokens, then each.
#[derive(Clone, Debug, Default)]
pub(super) struct Description {
    pieces: SmallVec<[Range; 2]>,
    tokens: SmallVec<[Token; 2]>,
}

/// Bytes of each part of a description.
const PAIR: usize = 16;

impl Description {
    /// Of a payload that may be lent; `None` if it may not.
    pub(super) fn new(payload: &Source<'_>) -> Option<Self> {
        let Source::Kept(spans, tokens) = payload else { return None };
        let fits = spans.len() <= MAX_PIECES && (1..=MAX_TOKENS).contains(&tokens.len());
        let range = |span: &Span<'_>| Range {
            addr: span.as_ptr().as_ptr().expose_provenance() as u64,
            len: span.len() as u64,
        };
        let pieces = spans.iter().map(range).collect();
        fits.then(|| Self { pieces, tokens: tokens.iter().copied().collect() })
    }

    /// Its bytes in a record.
    pub(super) fn to_bytes(&self) -> SmallVec<[u8; 5 * PAIR]> {
        let pieces = self.pieces.iter().map(|piece| [piece.addr, piece.len]);
        let tokens = self.tokens.iter().map(|token| [token.addr, token.value]);
        let count = [self.pieces.len() as u64, self.tokens.len() as u64];
        let pairs = std::iter::once(count).chain(pieces).chain(tokens);
        pairs.flatten().flat_map(u64::to_ne_bytes).collect()
    }

    /// The description that stands in a record from byte `from` on, and to whose end the record goes. Another
    /// process has written it: a copy is checked.
    pub(super) fn read(record: &Record<'_>, from: usize) -> Result<Self, Broken> {
        let mut bytes = [0; PAIR * (1 + MAX_PIECES + MAX_TOKENS)];
        let len = record.len().checked_sub(from).ok_or(Broken)?;
        let bytes = bytes.get_mut(..len).ok_or(Broken)?;
        record.read(from, bytes)?;
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let mut pair = || words.next().zip(words.next()).ok_or(Broken);
        let (pieces, tokens) = pair()?;
        let count = |count: u64, most: usize| {
            usize::try_from(count).ok().filter(|count| (1..=most).contains(count)).ok_or(Broken)
        };
        let mut read = Self::default();
        for _ in 0..count(pieces, MAX_PIECES)? {
            let (addr, len) = pair()?;
            read.pieces.push(Range { addr, len });
        }
        for _ in 0..count(tokens, MAX_TOKENS)? {
            let (addr, value) = pair()?;
            read.tokens.push(Token { addr, value });
        }
        let len = read.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len));
        let fits = len.is_some_and(|len| (1..=MAX_LENT as u64).contains(&len));
        if fits && rest.is_empty() && pair().is_err() { Ok(read) } else { Err(Broken) }
    }

    fn len(&self) -> usize {
        // MAX_LENT at most.
        self.pieces.iter().map(|piece| usize::try_from(piece.len).unwrap_or(usize::MAX)).sum()
    }
}

/// What a process has lent this one.
#[derive(Debug)]
pub(super) struct Borrowed {
    pid: u32,
    what: Description,
    outcome: Cell<Outcome>,
}

/// What became of a payload that was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nobody has asked for it.
    Unread,
    /// It was read in this time.
    Read(Duration),
    /// It is not valid any more.
    TakenBack,
    /// The system does not let this process read it.
    Refused,
}

/// The last bytes are written by this process: then whoever sees them sees all.
const TAIL: usize = 64;

impl Borrowed {
    /// Whether it has come whole.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.outcome.get(), Outcome::Read(_))
    }

    /// Reads all of it, then the tokens.
    fn copy(&self, to: &[WritableSpan<'_>]) -> Result<Outcome, AccessError> {
        let len = self.len();
        let tail = len.min(TAIL);
        // Where the last bytes belong, and what is before them.
        let mut left = len - tail;
        let mut before = SmallVec::<[WritableSpan<'_>; 4]>::new();
        let mut behind = SmallVec::<[WritableSpan<'_>; 4]>::new();
        for span in to {
            let here = left.min(span.len());
            left -= here;
            let whole = || AccessError::OutOfBounds;
            if here > 0 {
                before.push(span.first(here).ok_or_else(whole)?);
            }
            if left == 0 && here < span.len() {
                behind.push(span.at(here).ok_or_else(whole)?);
            }
        }
        if left > 0 {
            return Err(AccessError::OutOfBounds);
        }
        let tokens = &self.what.tokens;
        let mut ranges: SmallVec<[Range; 4]> = self.what.pieces.iter().copied().collect();
        ranges.extend(tokens.iter().map(word_of));
        let mut private = [0; TAIL + 8 * MAX_TOKENS];
        let private = &mut private[..tail + 8 * tokens.len()];
        let began = Instant::now();
        if process_memory::read(self.pid, &ranges, &before, private).is_err() {
            return Ok(self.why_not());
        }
        let took = began.elapsed();
        let (last, words) = private.split_at(tail);
        if !are_valid(tokens, words) {
            return Ok(Outcome::TakenBack);
        }
        Source::Bytes(last).write_to(&behind)?;
        Ok(Outcome::Read(took))
    }

    /// Why it could not be read. What was taken back may have been unmapped since, and says nothing about what
    /// else the process lends.
    #[cold]
    fn why_not(&self) -> Outcome {
        let valid = look(self.pid, &self.what.tokens);
        if valid == Some(false) { Outcome::TakenBack } else { Outcome::Refused }
    }
}

/// Where the word of a token is.
fn word_of(token: &Token) -> Range {
    Range { addr: token.addr, len: 8 }
}

/// Whether these tokens of process `pid` are valid, [`MAX_TOKENS`] at most; `None` if their words cannot be read.
fn look(pid: u32, tokens: &[Token]) -> Option<bool> {
    let ranges: SmallVec<[Range; 4]> = tokens.iter().map(word_of).collect();
    let mut words = [0; 8 * MAX_TOKENS];
    let words = &mut words[..8 * tokens.len()];
    process_memory::read(pid, &ranges, &[], words).ok()?;
    Some(are_valid(tokens, words))
}

/// Whether these words are what the tokens say.
fn are_valid(tokens: &[Token], words: &[u8]) -> bool {
    words.chunks(8).zip(tokens).all(|(word, token)| *word == token.value.to_ne_bytes())
}

impl Lender for Borrowed {
    fn len(&self) -> usize {
        self.what.len()
    }

    fn read(&self, to: &[WritableSpan<'_>]) -> Result<(), AccessError> {
        let outcome = self.copy(to)?;
        self.outcome.set(outcome);
        if self.is_read() { Ok(()) } else { Err(AccessError::OutOfBounds) }
    }
}

/// A process whose memory this one may read, and how fast.
#[derive(Debug)]
pub(super) struct Reader {
    pid: u32,
    /// Nanoseconds for [`MAX_LENT`] bytes, a running average that rises slowly: a call takes longer by chance, when
    /// this thread gets no processor; 0 before the first.
    nanos: u32,
    /// What the other process was told last.
    told: u32,
    /// Something could not be read.
    refused: bool,
}

/// What a receiver says that may read the sender's memory and has measured nothing yet.
pub(super) const MAY_READ: u32 = 1;

/// What a receiver says, as a time for [`MAX_LENT`] bytes: `None` if it may not read the sender's memory, and zero
/// if it has not measured it.
pub(super) fn time_of(reads: u32) -> Option<Duration> {
    Some(Duration::from_nanos(reads.checked_sub(MAY_READ)?.into()))
}

impl Reader {
    /// Finds out whether this process may read the memory of process `pid`, where this token is.
    pub(super) fn new(pid: u32, token: Token) -> Option<Self> {
        let is_it = look(pid, &[token])?;
        is_it.then_some(Self { pid, nanos: 0, told: MAY_READ, refused: false })
    }

    /// What was lent.
    pub(super) fn borrow(&self, what: Description) -> Borrowed {
        Borrowed { pid: self.pid, what, outcome: Cell::new(Outcome::Unread) }
    }

    /// Notes what became of something lent. Returns what the sender is to be told, if that is something new. After
    /// something that could not be read it lends no more: that was lost, and will be sent again as bytes.
    pub(super) fn note(&mut self, borrowed: &Borrowed) -> Option<u32> {
        match borrowed.outcome.get() {
            Outcome::Read(took) => {
                let len = borrowed.len().max(1) as u128;
                let nanos = took.as_nanos() * MAX_LENT as u128 / len;
                let nanos = u32::try_from(nanos).unwrap_or(u32::MAX).clamp(1, u32::MAX / 2);
                self.nanos = match self.nanos {
                    0 => nanos,
                    before if nanos < before => before - (before - nanos).div_ceil(8),
                    before => before + ((nanos - before) / 8).min(before / 16),
                };
            }
            Outcome::Refused => self.refused = true,
            Outcome::Unread | Outcome::TakenBack => return None,
        }
        let says = if self.refused { 0 } else { MAY_READ + self.nanos };
        // Each change costs the sender a cache line.
        let is_same = says != 0 && says.abs_diff(self.told) <= self.told / 8;
        (!is_same && says != self.told).then(|| {
            self.told = says;
            says
        })
    }
}

/// Which way trains go that could be lent, and when the other is tried.
#[derive(Debug)]
pub(super) struct Chooser {
    rule: OneCopy,
    lends: bool,
    /// Trains until the next look at how long a copy takes.
    until: u32,
    /// What the copies in a row that took longer than the other way would count for.
    slow: u32,
    /// Trains that are lent before the next try whether two copies have become faster.
    patience: u32,
}

/// Trains until the first is timed: so many fill the ring, whose memory is touched for the first time.
const FIRST: u32 = 144;
/// While trains are copied, one in so many is timed.
const SAMPLE: u32 = 16;
/// A copy that takes half as long again as the other way counts for [`MUCH`], since one into memory that is in no
/// cache takes longer, too; one that takes longer at all counts for 1. With [`ENOUGH`] in a row trains are lent.
const MUCH: u32 = 16;
const ENOUGH: u32 = 3 * MUCH;
/// Trains that are copied in a try: some to get the ring into the caches, then those that are timed.
const TRY: u32 = 12;
const TIMED: u32 = 4;
/// Trains that are lent between two tries: each try in vain doubles the number.
const PATIENCE: [u32; 2] = [128, 16384];
/// What a system takes for [`MAX_LENT`] bytes, as long as the receiver has not measured it.
const EXPECTED: Duration = Duration::from_micros(24);

impl Chooser {
    pub(super) fn new(rule: OneCopy) -> Self {
        let lends = rule == OneCopy::Always;
        Self { rule, lends, until: FIRST, slow: 0, patience: PATIENCE[0] }
    }

    /// Whether the next train may be lent, to a receiver that takes so long for [`MAX_LENT`] bytes. `None`: it
    /// cannot read them.
    pub(super) fn lends(&self, receiver: Option<Duration>) -> bool {
        self.lends && receiver.is_some()
    }

    /// A train was lent.
    pub(super) fn lent(&mut self) {
        if self.rule != OneCopy::Auto {
            return;
        }
        self.until = self.until.saturating_sub(1);
        if self.until == 0 {
            (self.lends, self.until, self.slow) = (false, TRY, 0);
        }
    }

    /// Whether the copy of the next train is to be timed.
    pub(super) fn times(&self, receiver: Option<Duration>) -> bool {
        let trying = self.is_trying() && self.until <= TIMED;
        self.rule == OneCopy::Auto && receiver.is_some() && (trying || self.until <= 1)
    }

    /// It is a try between trains that are lent.
    fn is_trying(&self) -> bool {
        self.patience > PATIENCE[0]
    }

    /// A train of `len` bytes was copied, and took so long if that was measured.
    pub(super) fn copied(
        &mut self,
        len: usize,
        took: Option<Duration>,
        receiver: Option<Duration>,
    ) {
        self.until = self.until.saturating_sub(1);
        if let (Some(took), Some(receiver)) = (took, receiver) {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let lent = if receiver.is_zero() { EXPECTED } else { receiver };
            let copied = nanos(took).saturating_mul(MAX_LENT as u64) / len.max(1) as u64;
            self.slow = match copied {
                _ if copied > nanos(lent).saturating_mul(3) / 2 => self.slow + MUCH,
                _ if copied > nanos(lent) => self.slow + 1,
                _ => 0,
            };
        }
        if self.until > 0 {
            return;
        }
        if self.is_trying() && self.slow < ENOUGH {
            self.patience = PATIENCE[0];
        }
        if self.slow >= ENOUGH {
            (self.lends, self.until) = (true, self.patience);
            self.patience = (self.patience * 2).min(PATIENCE[1]);
        } else {
            self.until = SAMPLE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAIN: usize = 32 << 10;

    /// Sends so many trains, which take so long to copy; how many of them are lent. `reader`: who notes how long a
    /// call takes, which is so long.
    fn lent(
        chooser: &mut Chooser,
        (reader, call): (&mut Reader, Duration),
        copy: Duration,
        trains: u32,
    ) -> u32 {
        let mut lent = 0;
        for _ in 0..trains {
            let receiver = time_of(reader.told);
            if chooser.lends(receiver) {
                lent += 1;
                chooser.lent();
                reader.note(&read(reader, call));
            } else {
                let took = chooser.times(receiver).then_some(copy);
                chooser.copied(TRAIN, took, receiver);
            }
        }
        lent
    }

    fn read(reader: &Reader, call: Duration) -> Borrowed {
        let piece = Range { addr: 0, len: TRAIN as u64 };
        let borrowed = reader.borrow(Description {
            pieces: [piece].into_iter().collect(),
            ..Description::default()
        });
        borrowed.outcome.set(Outcome::Read(call));
        borrowed
    }

    fn reader() -> Reader {
        Reader { pid: 1, nanos: 0, told: MAY_READ, refused: false }
    }

    const CALL: Duration = Duration::from_micros(4);
    const NEAR: Duration = Duration::from_micros(1);
    const FAR: Duration = Duration::from_micros(14);

    #[test]
    fn trains_are_lent_while_copies_are_slow() {
        let (mut chooser, mut reader) = (Chooser::new(OneCopy::Auto), reader());
        assert_eq!(lent(&mut chooser, (&mut reader, CALL), NEAR, 10_000), 0);
        let far = lent(&mut chooser, (&mut reader, CALL), FAR, 20_000);
        assert!(far > 19_000, "{far} of 20,000");
        // It may have been just after a try.
        lent(&mut chooser, (&mut reader, CALL), NEAR, 20_000);
        assert_eq!(lent(&mut chooser, (&mut reader, CALL), NEAR, 10_000), 0);
        // The tries are close together again.
        let far = lent(&mut chooser, (&mut reader, CALL), FAR, 400);
        assert!((200..400).contains(&far), "{far} of 400");
        for rule in [OneCopy::Never, OneCopy::Always] {
            let all = if rule == OneCopy::Always { 100 } else { 0 };
            let mut chooser = Chooser::new(rule);
            assert_eq!(lent(&mut chooser, (&mut reader, CALL), FAR, 100), all);
        }
    }

    /// A thread that gets no processor during a call measures milliseconds.
    #[test]
    fn one_call_that_took_long_by_chance_changes_nothing() {
        let (mut chooser, mut reader) = (Chooser::new(OneCopy::Auto), reader());
        lent(&mut chooser, (&mut reader, CALL), FAR, 1000);
        // Just before a try.
        while !chooser.lends || chooser.until > 1 {
            lent(&mut chooser, (&mut reader, CALL), FAR, 1);
        }
        for _ in 0..3 {
            if let Some(told) = reader.note(&read(&reader, Duration::from_millis(8))) {
                reader.told = told;
            }
        }
        let far = lent(&mut chooser, (&mut reader, CALL), FAR, 2000);
        assert!(far > 1800, "{far} of 2000");
    }

    #[test]
    fn copies_that_are_a_little_slow_for_long_are_enough() {
        let (mut chooser, mut reader) = (Chooser::new(OneCopy::Auto), reader());
        reader.note(&read(&reader, CALL));
        let little = CALL + CALL / 4;
        assert_eq!(lent(&mut chooser, (&mut reader, CALL), little, 800), 0);
        assert!(lent(&mut chooser, (&mut reader, CALL), little, 400) > 0);
    }

    #[test]
    fn who_cannot_read_is_lent_nothing() {
        let (mut chooser, mut reader) = (Chooser::new(OneCopy::Always), reader());
        let refused = read(&reader, CALL);
        refused.outcome.set(Outcome::Refused);
        assert_eq!(reader.note(&refused), Some(0));
        assert_eq!(lent(&mut chooser, (&mut reader, CALL), FAR, 100), 0);
        // What was on its way then may be read.
        assert_eq!(reader.note(&read(&reader, CALL)), None);
    }
}

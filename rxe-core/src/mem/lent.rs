//! Memory that another process reads by itself instead of being sent its bytes, and how it knows that what
//! it has read is what it was to read.
//!
//! The lender says where the bytes are, and gives tokens with them: the addresses of words of its own
//! memory, and what these hold for as long as the bytes may be read. Who reads the bytes reads the words
//! after them. If all hold what they should, the bytes were the lender's to the end. Otherwise the lender has
//! changed its mind meanwhile, or is gone, and another program may have its number: the bytes are nothing.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{AccessError, Buffer, WritableSpan};

/// A word that holds a number while something lasts.
#[derive(Debug)]
pub struct Validity(Box<AtomicU64>);

impl Validity {
    /// A word that holds nothing yet.
    pub fn new() -> Self {
        Self(Box::new(AtomicU64::new(NOTHING)))
    }

    /// Where the word is and what it holds from now on: a number that no other has, here or in another process.
    /// Several threads may ask for it at a time, but none while another ends it.
    pub fn token(&self) -> Token {
        let mut value = self.0.load(Ordering::Relaxed);
        if value == NOTHING {
            let new = RandomState::new().build_hasher().finish() | 1;
            let first = self.0.compare_exchange(NOTHING, new, Ordering::Relaxed, Ordering::Relaxed);
            value = first.map_or_else(|others| others, |_| new);
        }
        Token { addr: ptr::from_ref(&*self.0).expose_provenance() as u64, value }
    }

    /// Ends what lasts. What is done with the memory afterwards happens after this, as every other process
    /// sees it.
    pub fn end(&self) {
        self.0.store(NOTHING, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// What a word holds before and after.
const NOTHING: u64 = 0;

impl Default for Validity {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Validity {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where a [`Validity`] is and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its address in the process that has it.
    pub addr: u64,
    /// What it holds while it is valid.
    pub value: u64,
}

/// Bytes in the memory of another process.
pub trait Lender: Debug {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of them into the pieces, which have room for them. A thread that sees the last byte, with
    /// an acquire load, sees all of them.
    ///
    /// # Errors
    /// They cannot be read, are not lent any more, or there is no room. Some of the pieces may have been
    /// written.
    fn read(&self, to: &[WritableSpan<'_>]) -> Result<(), AccessError>;
}

/// Copies what is lent into memory of its own.
///
/// # Errors
/// As [`Lender::read`].
pub(crate) fn fetch(from: &dyn Lender) -> Result<Buffer, AccessError> {
    let all = Buffer::try_zeroed(from.len()).ok_or(AccessError::OutOfBounds)?;
    let whole = all.span(0, from.len() as u64).ok_or(AccessError::OutOfBounds)?;
    from.read(&[whole])?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::access::FREES;
    use super::super::{Access, Memory, PdId, RegionChange};
    use super::*;

    #[test]
    fn a_word_holds_a_number_of_its_own_until_it_ends() {
        let [one, other] = [Validity::new(), Validity::new()];
        let first = one.token();
        assert_ne!(first.value, other.token().value);
        assert_ne!(first.value, NOTHING);
        assert_eq!(one.token(), first);
        one.end();
        assert_eq!(one.0.load(Ordering::Relaxed), NOTHING);
        assert_ne!(one.token(), first);
    }

    /// Else another thread might get the memory and write to it while its new bytes still pass for the old ones.
    #[test]
    fn memory_is_taken_back_before_it_is_freed() {
        std::thread_local! {
            static WORD: Cell<*const AtomicU64> = const { Cell::new(ptr::null()) };
            static FREED: Cell<u32> = const { Cell::new(0) };
        }
        let told = || {
            // SAFETY: the region still has the word.
            let word = unsafe { &*WORD.get() };
            assert_eq!(word.load(Ordering::Relaxed), NOTHING);
            FREED.set(FREED.get() + 1);
        };
        let memory = Memory::new();
        let key =
            memory.register(PdId(1), Buffer::zeroed(8), 0, Access::empty(), || 0x900).unwrap();
        let lend = || {
            let addr = memory.guard().token(key).unwrap().addr;
            WORD.set(ptr::with_exposed_provenance(usize::try_from(addr).unwrap()));
        };
        lend();
        FREES.set(Some(told));
        let other =
            RegionChange { memory: Some((Buffer::zeroed(8), 0)), ..RegionChange::default() };
        memory.reregister(key, other).unwrap();
        lend();
        assert!(memory.deregister(key));
        FREES.set(None);
        assert_eq!(FREED.get(), 2);
    }
}

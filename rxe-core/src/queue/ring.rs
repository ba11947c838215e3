//! The bounded ring between the threads that post and the engine. As verbs require, a request
//! occupies its place until it is complete, not only until it is taken. This file contains `unsafe`
//! code.
//!
//! The ring is designed for ten thousand queue pairs with few requests each:
//! - The fields that posting and taking use are adjacent, with the first place next to them, so no
//!   pointer has to be loaded on the way.
//! - An empty ring starts again at its first place, so a queue pair with few outstanding requests
//!   uses the same few cache lines for all of them, however deep its queue is.
//! - All memory is allocated at creation, so posting never fails for lack of memory. Places that
//!   were never used are never touched, so the kernel need not provide pages for them.
//!
//! Invariants: `head`, `tail` and `released` are counters that wrap. Requests `head..tail` are in
//! the ring, request `n` in place `n - base`, modulo the number of places, which is a power of two
//! and at least `depth` (`places` and `first` together).
//! - Only the holder of `posting` changes `tail` and `base`; only the holder of `taking` changes
//!   `head`.
//! - A place is written only while it holds no request: `tail - head` is less than the number of
//!   places. It is written before `tail` passes it, and read before `head` does.
//! - `base` changes only while the ring is empty, and is read only while the ring is not empty.

use std::mem::MaybeUninit;

use crate::prefetch;
use crate::sync::{AtomicBool, AtomicU32, Cell, Mutex, Ordering};

/// A bounded queue of requests.
pub struct WorkRing<T> {
    /// All places except the first.
    places: Box<[Place<T>]>,
    depth: u32,
    head: AtomicU32,
    tail: AtomicU32,
    base: AtomicU32,
    /// The number of completed requests, whose places are free.
    released: AtomicU32,
    posting: Mutex<()>,
    taking: AtomicBool,
    first: Place<T>,
}

type Place<T> = Cell<MaybeUninit<T>>;

// SAFETY: requests move from the posting thread to the taking one, so they must be `Send`; no
// reference to a request is ever given out. All else is atomics and a lock.
unsafe impl<T: Send> Sync for WorkRing<T> {}

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The queue already holds as many outstanding requests as it was created for (`ENOMEM`).
    Full,
}

impl<T> WorkRing<T> {
    /// Creates a ring for `depth` requests (may be 0), or `None` if there is not enough memory.
    pub fn new(depth: u32) -> Option<Self> {
        let number = usize::try_from(depth.max(1)).ok()?.checked_next_power_of_two()? - 1;
        let mut places = Vec::new();
        places.try_reserve_exact(number).ok()?;
        places.resize_with(number, || Cell::new(MaybeUninit::uninit()));
        Some(Self {
            places: places.into_boxed_slice(),
            depth,
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
            base: AtomicU32::new(0),
            released: AtomicU32::new(0),
            posting: Mutex::new(()),
            taking: AtomicBool::new(false),
            first: Cell::new(MaybeUninit::uninit()),
        })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`PostError::Full`] if `depth` requests are outstanding.
    pub fn post(&self, request: T) -> Result<(), PostError> {
        let _posting = self.posting.lock();
        let tail = self.tail.load(Ordering::Relaxed);
        // The acquire load pairs with `release`: a released request has been taken, so its place is
        // no longer read.
        let outstanding = tail.wrapping_sub(self.released.load(Ordering::Acquire));
        let head = self.head.load(Ordering::Acquire);
        debug_assert!(outstanding <= self.depth, "{outstanding} of {}", self.depth);
        debug_assert!(tail.wrapping_sub(head) <= outstanding, "a released request was taken");
        if outstanding >= self.depth || tail.wrapping_sub(head) as usize > self.places.len() {
            return Err(PostError::Full);
        }
        if head == tail {
            self.base.store(tail, Ordering::Relaxed);
        }
        self.place(tail).with_mut(|place| {
            // SAFETY: this thread holds `posting`, so no other writes; `tail - head` is less than the
            // number of places, so no request is in this one. The last request in it was read before
            // `head` passed it, and `head` was loaded here with acquire ordering.
            unsafe { (*place).as_mut_ptr().copy_from_nonoverlapping(&raw const request, 1) };
        });
        // The request is now in the ring, so it must not be dropped here. (Moving it there by value
        // would copy it twice.)
        std::mem::forget(request);
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Prefetches the place of the next request. The first place needs no prefetch, because it is
    /// part of the ring itself.
    pub(crate) fn prefetch(&self) {
        if !self.is_empty() {
            prefetch::value(self.place(self.tail.load(Ordering::Relaxed)));
        }
    }

    /// Takes the oldest request. Its place stays occupied until [`WorkRing::release`]. Only one
    /// thread may take at a time: returns `None` also while another thread takes.
    #[inline]
    pub(crate) fn take(&self) -> Option<T> {
        if self.is_empty() || self.taking.swap(true, Ordering::Acquire) {
            return None;
        }
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            self.taking.store(false, Ordering::Release);
            return None;
        }
        let request = self.place(head).with_mut(|place| {
            // SAFETY: this thread has set `taking`, so no other reads. `head` is before `tail`, which
            // was loaded with acquire ordering, so the place was written, and nobody writes it again
            // before `head` has passed it. It is read only once, because `head` passes it now.
            Some(unsafe { (*place).assume_init_read() })
        });
        self.head.store(head.wrapping_add(1), Ordering::Release);
        self.taking.store(false, Ordering::Release);
        request
    }

    /// Frees the place of a completed request. Only the engine calls this.
    #[inline]
    pub(crate) fn release(&self) {
        let released = self.released.load(Ordering::Relaxed);
        debug_assert!(self.outstanding() > 0, "released more than was posted");
        self.released.store(released.wrapping_add(1), Ordering::Release);
    }

    /// Drops all requests that are not yet taken.
    pub(crate) fn forget(&self) {
        while self.take().is_some() {
            self.release();
        }
    }

    /// Returns the number of requests that the ring was created for.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of requests that are posted and not complete.
    pub fn outstanding(&self) -> u32 {
        // `released` is loaded first, because every released request was posted before.
        let released = self.released.load(Ordering::Acquire);
        self.tail.load(Ordering::Acquire).wrapping_sub(released)
    }

    /// Returns whether no request waits to be taken.
    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        head == self.tail.load(Ordering::Acquire)
    }

    /// Returns the place of request `count`.
    #[inline]
    fn place(&self, count: u32) -> &Place<T> {
        debug_assert!((self.places.len() + 1).is_power_of_two());
        let index = count.wrapping_sub(self.base.load(Ordering::Relaxed)) as usize;
        // `places.len()` is the number of places minus one, so all its low bits are ones.
        match index & self.places.len() {
            0 => &self.first,
            index => &self.places[index - 1],
        }
    }
}

impl<T> Drop for WorkRing<T> {
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

impl<T> std::fmt::Debug for WorkRing<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (depth, outstanding) = (self.depth, self.outstanding());
        f.debug_struct("WorkRing")
            .field("depth", &depth)
            .field("outstanding", &outstanding)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn ring<T>(depth: u32) -> WorkRing<T> {
        WorkRing::new(depth).unwrap()
    }

    #[test]
    fn a_place_is_free_after_release_not_after_take() {
        let ring = ring(2);
        ring.post(1).unwrap();
        ring.post(2).unwrap();
        assert_eq!(ring.take(), Some(1));
        assert_eq!(ring.post(3), Err(PostError::Full));
        ring.release();
        ring.post(3).unwrap();
        assert_eq!((ring.take(), ring.take(), ring.take()), (Some(2), Some(3), None));
    }

    #[test]
    fn a_queue_of_depth_zero_takes_nothing() {
        assert_eq!(ring(0).post(()), Err(PostError::Full));
    }

    #[test]
    fn requests_keep_their_order_whatever_is_in_the_ring_when_it_wraps() {
        // The depth is not a power of two, and the counters wrap.
        let ring = ring(5);
        for count in [&ring.head, &ring.tail, &ring.released] {
            count.store(u32::MAX - 10, Ordering::Relaxed);
        }
        let (mut posted, mut taken) = (0, 0);
        for step in 0..100 {
            for _ in 0..step % 7 {
                posted += u32::from(ring.post(posted).is_ok());
            }
            for _ in 0..step % 5 {
                if let Some(request) = ring.take() {
                    assert_eq!(request, taken);
                    taken += 1;
                    ring.release();
                }
            }
            assert_eq!(ring.outstanding(), posted - taken);
            assert!(ring.outstanding() <= 5);
        }
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn an_empty_ring_begins_anew_at_its_first_place() {
        let ring = ring(64);
        for n in 0..10 {
            ring.post(n).unwrap();
            ring.post(n).unwrap();
            let place = ring.place(ring.head.load(Ordering::Relaxed));
            assert!(std::ptr::eq(place, &ring.first));
            assert!(ring.take().is_some() && ring.take().is_some());
            (0..2).for_each(|_| ring.release());
        }
    }

    #[test]
    fn what_is_left_is_dropped_with_the_ring() {
        let request = Arc::new(());
        let ring = ring(4);
        (0..3).for_each(|_| ring.post(Arc::clone(&request)).unwrap());
        drop(ring.take());
        assert_eq!(Arc::strong_count(&request), 3);
        drop(ring);
        assert_eq!(Arc::strong_count(&request), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where there is no memory")]
    fn more_than_there_is_is_refused_when_the_ring_is_made() {
        // 2⁴⁸ bytes, more than a process can have.
        assert!(WorkRing::<[u8; 1 << 16]>::new(1 << 31 | 1).is_none());
    }

    #[test]
    fn threads_that_post_and_one_that_takes_lose_nothing() {
        const EACH: u32 = if cfg!(miri) { 30 } else { 2000 };
        let ring = Arc::new(ring(8));
        let posters = [0, 1].map(|thread| {
            let ring = Arc::clone(&ring);
            std::thread::spawn(move || {
                for n in 0..EACH {
                    while ring.post((thread, n)).is_err() {
                        std::thread::yield_now();
                    }
                }
            })
        });
        let mut next = [0; 2];
        while next != [EACH; 2] {
            match ring.take() {
                Some((thread, n)) => {
                    assert_eq!(n, std::mem::replace(&mut next[thread], n + 1));
                    ring.release();
                }
                None => std::thread::yield_now(),
            }
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert_eq!(ring.outstanding(), 0);
    }
}

//! The ring between the threads that post and the engine that works: bounded, lock-free, and with
//! the accounting that verbs demand (a request holds its place until it is complete, not only until
//! it is taken).

use crate::sync::{ArrayQueue, AtomicU32, Ordering};

/// A bounded queue of requests.
#[derive(Debug)]
pub struct WorkRing<T> {
    ring: ArrayQueue<T>,
    depth: u32,
    /// Requests posted and not yet released.
    outstanding: AtomicU32,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// As many requests as the queue was made for are outstanding (`ENOMEM`).
    Full,
}

impl<T> WorkRing<T> {
    /// Room for `depth` requests, which may be 0.
    pub fn new(depth: u32) -> Self {
        let ring = ArrayQueue::new(depth.max(1) as usize);
        Self { ring, depth, outstanding: AtomicU32::new(0) }
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`PostError::Full`].
    pub fn post(&self, request: T) -> Result<(), PostError> {
        let reserve = |n: u32| (n < self.depth).then_some(n + 1);
        self.outstanding
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, reserve)
            .map_err(|_| PostError::Full)?;
        // A place is reserved, so the ring, which is as large, has room.
        self.ring.push(request).map_err(|_| PostError::Full)
    }

    /// The oldest request not yet taken. It keeps its place until [`WorkRing::release`].
    pub(crate) fn take(&self) -> Option<T> {
        self.ring.pop()
    }

    /// A request is complete: its place is free.
    pub(crate) fn release(&self) {
        let before = self.outstanding.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "released more than was posted");
    }

    /// Drops every request not yet taken.
    pub(crate) fn forget(&self) {
        while self.take().is_some() {
            self.release();
        }
    }

    /// How many requests it was made for.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Requests posted and not complete.
    pub fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Acquire)
    }

    /// Whether no request waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_after_release_not_after_take() {
        let ring = WorkRing::new(2);
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
        assert_eq!(WorkRing::new(0).post(()), Err(PostError::Full));
    }
}

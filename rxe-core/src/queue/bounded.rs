//! A bounded list whose depth can change, for completion queues and shared receive queues. The list
//! is lock-free for any number of threads on both sides, and uses memory only for the items in it.
//!
//! Invariant: a place is counted before an item enters the list, and until after the item has left
//! it. Therefore there are never more items than places.
//!
//! A pop waits for a pusher that was preempted in the middle: see [`super::Doorbells`].

use crate::sync::{AtomicU64, Ordering, SegQueue};

/// A lock-free list with a depth that can change.
#[derive(Debug)]
pub(crate) struct Bounded<T> {
    list: SegQueue<T>,
    /// The number of places (upper half) and of taken places (lower half). They share a word so
    /// that a resize never leaves fewer places than are taken.
    places: AtomicU64,
}

impl<T> Bounded<T> {
    /// Creates an empty list with `depth` places.
    pub(crate) fn new(depth: u32) -> Self {
        Self { list: SegQueue::default(), places: AtomicU64::new(pack(depth, 0)) }
    }

    /// Appends an item.
    ///
    /// # Errors
    /// There is no free place; the item is returned.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        if !self.count() {
            return Err(item);
        }
        self.list.push(item);
        Ok(())
    }

    /// The first half of a push: counts a place, if one is free.
    fn count(&self) -> bool {
        let more = |places| {
            let (depth, len) = unpack(places);
            debug_assert!(len <= depth, "{len} in {depth} places");
            (len < depth).then_some(places + 1)
        };
        // SeqCst: a thread that arms a completion queue and then finds it empty relies on this
        // order. Either it sees this place counted, or the pusher, which checks afterwards, sees
        // that the queue is armed.
        self.places.fetch_update(Ordering::SeqCst, Ordering::Relaxed, more).is_ok()
    }

    /// Splits a push between its two halves, as if its thread were preempted there.
    #[cfg(test)]
    pub(crate) fn begin_push(&self) -> impl FnOnce(T) {
        assert!(self.count(), "there is a place");
        |item| self.list.push(item)
    }

    /// Removes and returns the oldest item.
    pub(crate) fn pop(&self) -> Option<T> {
        let item = self.list.pop()?;
        self.free(1);
        Some(item)
    }

    /// Removes the present items, oldest first. Their places stay taken until [`Bounded::free`], so
    /// the iterator ends even if other threads keep pushing.
    pub(crate) fn drain(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.list.pop())
    }

    /// Frees `count` places of items that [`Bounded::drain`] removed.
    pub(crate) fn free(&self, count: u32) {
        let (depth, len) = unpack(self.places.fetch_sub(count.into(), Ordering::AcqRel));
        debug_assert!(count <= len && len <= depth, "{count} of {len} in {depth} places");
    }

    /// Changes the number of places to `depth`. Items stay in the list.
    ///
    /// # Errors
    /// More than `depth` places are taken: returns their number. Nothing is changed.
    pub(crate) fn resize(&self, depth: u32) -> Result<(), u32> {
        let resized = |places| {
            let (before, len) = unpack(places);
            debug_assert!(len <= before, "{len} in {before} places");
            (len <= depth).then(|| pack(depth, len))
        };
        let result = self.places.fetch_update(Ordering::AcqRel, Ordering::Acquire, resized);
        result.map(|_| ()).map_err(|places| unpack(places).1)
    }

    /// Returns the number of places.
    pub(crate) fn depth(&self) -> u32 {
        unpack(self.places.load(Ordering::Acquire)).0
    }

    /// Returns the number of taken places.
    pub(crate) fn len(&self) -> u32 {
        unpack(self.places.load(Ordering::Acquire)).1
    }
}

fn pack(depth: u32, len: u32) -> u64 {
    u64::from(depth) << 32 | u64::from(len)
}

fn unpack(places: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = places.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drained_keeps_its_places_until_they_are_freed() {
        let list = Bounded::new(4);
        assert_eq!([1, 2, 3].map(|n| list.push(n)), [Ok(()); 3]);
        assert_eq!(list.drain().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(([4, 5].map(|n| list.push(n)), list.len()), ([Ok(()), Err(5)], 4));
        list.free(2);
        assert_eq!(([5, 6, 7].map(|n| list.push(n)), list.len()), ([Ok(()), Ok(()), Err(7)], 4));
        assert_eq!(list.pop(), Some(4));
    }

    #[test]
    fn resizing_loses_nothing_and_never_leaves_fewer_places_than_are_taken() {
        let list = Bounded::new(2);
        assert_eq!([1, 2, 3].map(|n| list.push(n)), [Ok(()), Ok(()), Err(3)]);
        list.resize(4).unwrap();
        assert_eq!([3, 4].map(|n| list.push(n)), [Ok(()), Ok(())]);
        assert_eq!(list.resize(3), Err(4));
        assert_eq!((list.depth(), list.len()), (4, 4));
        assert_eq!(list.pop(), Some(1));
        list.resize(3).unwrap();
        let left: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
        assert_eq!(left, [2, 3, 4]);
        assert_eq!([5, 6, 7, 8].map(|n| list.push(n)), [Ok(()), Ok(()), Ok(()), Err(8)]);
        assert_eq!(list.resize(0), Err(3));
    }
}

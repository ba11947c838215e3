//! A queue whose entries are also indexed by key. The entries of a destroyed object can be removed
//! at a cost that does not depend on the number of other entries.

use std::collections::{BTreeMap, BTreeSet};

/// An entry of a [`KeyedQueue`].
pub trait Keyed {
    /// The identifier of an object. Any number of entries may have the same key.
    type Key: Copy + Ord;

    /// Returns the keys of the objects that the entry belongs to. They must not change while the
    /// entry is in a queue.
    fn keys(&self) -> [Option<Self::Key>; 2];
}

/// A queue of entries, oldest first, with an index of their keys.
#[derive(Debug)]
pub struct KeyedQueue<V: Keyed> {
    /// The entries by sequence number, which increases by 1 per entry.
    entries: BTreeMap<u64, V>,
    index: BTreeSet<(V::Key, u64)>,
    next: u64,
    /// The number of entries visited to find others. Tests check that it does not grow with the
    /// length of the queue.
    #[cfg(test)]
    pub(crate) visited: usize,
}

impl<V: Keyed> Default for KeyedQueue<V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            index: BTreeSet::new(),
            next: 0,
            #[cfg(test)]
            visited: 0,
        }
    }
}

impl<V: Keyed> KeyedQueue<V> {
    /// Appends an entry.
    pub fn push(&mut self, value: V) {
        let number = self.next;
        self.next += 1;
        for key in value.keys().into_iter().flatten() {
            self.index.insert((key, number));
        }
        let old = self.entries.insert(number, value);
        debug_assert!(old.is_none(), "each entry has its own number");
        debug_assert!(self.index.len() <= 2 * self.entries.len(), "two keys each at most");
    }

    /// Removes and returns the oldest entry.
    pub fn pop(&mut self) -> Option<V> {
        let (number, value) = self.entries.pop_first()?;
        self.unlink(number, &value);
        Some(value)
    }

    /// Removes and returns the entries with this key, oldest first.
    pub fn remove(&mut self, key: V::Key) -> Vec<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes and returns the entries with this key for which `which` is true, oldest first.
    pub fn remove_if(&mut self, key: V::Key, which: impl Fn(&V) -> bool) -> Vec<V> {
        if self.index.is_empty() {
            return Vec::new();
        }
        let numbers: Vec<_> =
            self.index.range((key, 0)..=(key, u64::MAX)).map(|&(_, number)| number).collect();
        #[cfg(test)]
        {
            self.visited += numbers.len();
        }
        let mut removed = Vec::new();
        for number in numbers {
            if self.entries.get(&number).is_some_and(&which)
                && let Some(value) = self.entries.remove(&number)
            {
                self.unlink(number, &value);
                removed.push(value);
            }
        }
        removed
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.index.clear();
    }

    /// Returns all entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn unlink(&mut self, number: u64, value: &V) {
        for key in value.keys().into_iter().flatten() {
            let had = self.index.remove(&(key, number));
            debug_assert!(had || value.keys()[0] == value.keys()[1], "each key was entered");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    type Entry = (u8, Option<u8>, usize);

    impl Keyed for Entry {
        type Key = u8;

        fn keys(&self) -> [Option<u8>; 2] {
            [Some(self.0), self.1]
        }
    }

    proptest! {
        #[test]
        fn it_is_a_queue_from_which_objects_take_their_entries(
            steps in prop::collection::vec((0u8..4, 0u8..5, prop::option::of(0u8..5)), 1..200),
        ) {
            let (mut queue, mut model) = (KeyedQueue::default(), VecDeque::<Entry>::new());
            for (at, (step, key, other)) in steps.into_iter().enumerate() {
                let mut take = |which: &dyn Fn(&Entry) -> bool| {
                    let (out, stay) = model.drain(..).partition(|e| which(e));
                    model = stay;
                    Vec::from_iter::<VecDeque<_>>(out)
                };
                let has = |e: &Entry| e.0 == key || e.1 == Some(key);
                match step {
                    0 => prop_assert_eq!(queue.remove(key), take(&has)),
                    1 => {
                        let odd = |e: &Entry| e.2 % 2 == 1;
                        let wanted = take(&|e| has(e) && odd(e));
                        prop_assert_eq!(queue.remove_if(key, odd), wanted);
                    }
                    2 => prop_assert_eq!(queue.pop(), model.pop_front()),
                    _ => {
                        queue.push((key, other, at));
                        model.push_back((key, other, at));
                    }
                }
                prop_assert!(queue.iter().eq(&model));
                prop_assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            }
            while queue.pop().is_some() {}
            prop_assert!(queue.index.is_empty());
        }
    }
}

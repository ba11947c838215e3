//! Replacements for the synchronisation types, for loom.
//!
//! The queues have exactly the guarantees of crossbeam's queues: a push is ordered before the pop
//! of its item, and a pop before the push that reuses its place, each by the turn of the place; the
//! ends move by sequentially consistent exchanges; a thread that finds the queue empty or full
//! checks again after a sequentially consistent fence.
//!
//! loom treats a sequentially consistent access as an acquiring or releasing one. Therefore each
//! such access is preceded here by a sequentially consistent fence, as on processors that have no
//! instruction for it: this suffices to order two of them, and gives no more.
//!
//! loom tries another order of two accesses only if it finds that they depend on each other, and it
//! remembers only the last access to each atomic: a thread that loads before it stores hides the
//! other thread's load, and the order in which that load comes after the store is never tried.
//! Therefore each access is preceded here by an exchange on a companion, which depends on every
//! other exchange and orders nothing.

use std::fmt;

pub(crate) use loom::cell::UnsafeCell as Cell;
pub(crate) use loom::sync::RwLockReadGuard as ReadMostlyGuard;
use loom::sync::atomic::{
    AtomicBool as LoomBool, AtomicU8 as LoomU8, AtomicU32 as LoomU32, AtomicU64 as LoomU64,
    AtomicUsize as LoomUsize,
};
pub(crate) use loom::sync::atomic::{Ordering, fence};
use loom::thread::yield_now;

macro_rules! atomic {
    ($name:ident, $inner:ident, $t:ty) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name($inner, Companion);

        impl $name {
            pub(crate) fn new(value: $t) -> Self {
                Self($inner::new(value), Companion::default())
            }

            pub(crate) fn load(&self, order: Ordering) -> $t {
                self.1.meet();
                behind_fence(order, || self.0.load(weaker(order, Ordering::Acquire)))
            }

            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn store(&self, value: $t, order: Ordering) {
                self.1.meet();
                behind_fence(order, || self.0.store(value, weaker(order, Ordering::Release)));
            }

            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn swap(&self, value: $t, order: Ordering) -> $t {
                self.1.meet();
                behind_fence(order, || self.0.swap(value, weaker(order, Ordering::AcqRel)))
            }

            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn compare_exchange(
                &self,
                current: $t,
                new: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                let (ok, err) =
                    (weaker(success, Ordering::AcqRel), weaker(failure, Ordering::Acquire));
                self.1.meet();
                behind_fence(success, || self.0.compare_exchange(current, new, ok, err))
            }
        }
    };
}

atomic!(AtomicBool, LoomBool, bool);
atomic!(AtomicU8, LoomU8, u8);
atomic!(AtomicU32, LoomU32, u32);
atomic!(AtomicU64, LoomU64, u64);
atomic!(AtomicUsize, LoomUsize, usize);

macro_rules! number {
    ($name:ident, $t:ty) => {
        impl $name {
            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut f: impl FnMut($t) -> Option<$t>,
            ) -> Result<$t, $t> {
                let mut before = self.load(fetch);
                while let Some(next) = f(before) {
                    match self.compare_exchange(before, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }

            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn fetch_sub(&self, n: $t, order: Ordering) -> $t {
                self.1.meet();
                behind_fence(order, || self.0.fetch_sub(n, weaker(order, Ordering::AcqRel)))
            }

            #[allow(dead_code, reason = "not every one is used in every way")]
            pub(crate) fn fetch_max(&self, n: $t, order: Ordering) -> $t {
                self.1.meet();
                behind_fence(order, || self.0.fetch_max(n, weaker(order, Ordering::AcqRel)))
            }
        }
    };
}

number!(AtomicU8, u8);
number!(AtomicU32, u32);
number!(AtomicU64, u64);

/// The atomic that every access to its owner first exchanges: see the head of the module.
#[derive(Debug, Default)]
struct Companion(LoomUsize);

impl Companion {
    fn meet(&self) {
        self.0.fetch_add(0, Ordering::Relaxed);
    }
}

/// Executes an access, after a fence if it is sequentially consistent.
fn behind_fence<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
    if order == Ordering::SeqCst {
        fence(Ordering::SeqCst);
    }
    access()
}

fn weaker(order: Ordering, instead: Ordering) -> Ordering {
    if order == Ordering::SeqCst { instead } else { order }
}

/// A bounded queue for any number of threads at both ends.
struct ArrayQueue<T> {
    places: Vec<Place<T>>,
    /// The numbers of items ever taken (`head`) and put in (`tail`).
    head: AtomicUsize,
    tail: AtomicUsize,
}

struct Place<T> {
    /// `2n` while the place waits for its `n`-th item, `2n + 1` while it holds that item.
    turn: AtomicUsize,
    item: loom::sync::Mutex<Option<T>>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let place = |_| Place { turn: AtomicUsize::new(0), item: loom::sync::Mutex::new(None) };
        let places = (0..capacity).map(place).collect();
        Self { places, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    fn place(&self, count: usize) -> (&Place<T>, usize) {
        (&self.places[count % self.places.len()], count / self.places.len())
    }

    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let (place, lap) = self.place(tail);
            if place.turn.load(Ordering::Acquire) == 2 * lap {
                let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
                match self.tail.compare_exchange(tail, tail + 1, ok, err) {
                    Ok(_) => {
                        *place.item.lock().unwrap() = Some(item);
                        place.turn.store(2 * lap + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            fence(Ordering::SeqCst);
            if self.head.load(Ordering::Relaxed) + self.places.len() == tail {
                return Err(item);
            }
            yield_now();
            tail = self.tail.load(Ordering::Relaxed);
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (place, lap) = self.place(head);
            if place.turn.load(Ordering::Acquire) == 2 * lap + 1 {
                let (ok, err) = (Ordering::SeqCst, Ordering::Relaxed);
                match self.head.compare_exchange(head, head + 1, ok, err) {
                    Ok(_) => {
                        let item = place.item.lock().unwrap().take();
                        place.turn.store(2 * lap + 2, Ordering::Release);
                        return item;
                    }
                    Err(now) => head = now,
                }
                continue;
            }
            fence(Ordering::SeqCst);
            if self.tail.load(Ordering::Relaxed) == head {
                return None;
            }
            yield_now();
            head = self.head.load(Ordering::Relaxed);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        // crossbeam guarantees no ordering for `is_empty`.
        let head = self.head.load(Ordering::Relaxed);
        head == self.tail.load(Ordering::Relaxed)
    }
}

impl<T> fmt::Debug for ArrayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayQueue").finish_non_exhaustive()
    }
}

/// An unbounded queue. None of the models reaches the bound used here.
#[derive(Debug)]
pub(crate) struct SegQueue<T>(ArrayQueue<T>);

impl<T> Default for SegQueue<T> {
    fn default() -> Self {
        Self(ArrayQueue::new(4))
    }
}

impl<T> SegQueue<T> {
    pub(crate) fn push(&self, item: T) {
        assert!(self.0.push(item).is_ok(), "the model's queue is too small");
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.0.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A mutex with the interface of parking_lot.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// A read-write lock with the interface of parking_lot.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

/// The parts of the real lock are not modelled: taking one or all takes one lock.
pub(crate) type ReadMostly<T> = RwLock<T>;

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> ReadMostlyGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub(crate) fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }
}

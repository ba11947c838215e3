//! A read-write lock for data that several threads read constantly and that is rarely written.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

/// A read-write lock of eight parts, each on a cache line of its own. A reader takes the part of
/// its thread, so up to eight reading threads do not contend for a cache line; a writer takes all
/// parts.
#[derive(Debug, Default)]
pub(crate) struct ReadMostly<T>(ShardedLock<T>);

impl<T> ReadMostly<T> {
    pub(crate) fn read(&self) -> ReadMostlyGuard<'_, T> {
        ReadMostlyGuard(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn write(&self) -> impl DerefMut<Target = T> {
        let guard: ShardedLockWriteGuard<'_, T> =
            self.0.write().unwrap_or_else(PoisonError::into_inner);
        guard
    }
}

/// The guard of a reader.
#[derive(Debug)]
pub(crate) struct ReadMostlyGuard<'a, T>(ShardedLockReadGuard<'a, T>);

impl<T> Deref for ReadMostlyGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

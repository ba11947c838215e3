//! Memory windows: a peer's right to part of a region, given and taken back by requests instead of by
//! registering memory anew. IBTA 10.6.7, 11.2.8.11.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use rxe_core::mem::WindowType;
use rxe_core::types::Key;

use crate::error::Result;
use crate::objects::pd::{ProtectionDomain, keys};
use crate::observe::{Counted, Kind, Permit, Used};

/// A memory window, made by [`ProtectionDomain::create_window`] and bound to part of a region by
/// [`crate::QueuePair::bind`]. Dropped, it opens nothing any more.
///
/// A window of type 1 serves peers of any queue pair of its protection domain, and may be bound anew at
/// any time. One of type 2 serves only the peer of the queue pair that bound it, and must be invalidated
/// before it is bound anew: by [`crate::QueuePair::local_invalidate`] here or by
/// [`crate::Request::invalidate`] there.
pub struct MemoryWindow {
    pd: Used<ProtectionDomain>,
    kind: WindowType,
    key: Key,
    /// The low 8 bits that the last bind asked for.
    low: AtomicU8,
    _permit: Permit,
}

impl MemoryWindow {
    fn new(pd: Used<ProtectionDomain>, kind: WindowType, key: Key, permit: Permit) -> Self {
        let [low, ..] = key.value().to_le_bytes();
        Self { pd, kind, key, low: AtomicU8::new(low), _permit: permit }
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// The key by which peers name it, as of the last bind that is complete. Each bind changes it
    /// ([`crate::Request::new_rkey`]).
    pub fn rkey(&self) -> Key {
        self.pd.device().memory().window_key(self.key).unwrap_or(self.key)
    }

    /// A key that names it for the engine, whatever peers name it by.
    pub(crate) fn id(&self) -> Key {
        self.key
    }

    /// The low 8 bits of the key for another bind.
    pub(crate) fn next_low(&self) -> u8 {
        self.low.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if self.pd.device().shard().is_own() {
            self.pd.device().memory().destroy_window(self.key);
        }
    }
}

impl ProtectionDomain {
    /// Makes a memory window, which opens nothing until it is bound ([`QueuePair::bind`]).
    ///
    /// # Errors
    /// There are as many as the device allows, or it has failed.
    ///
    /// [`QueuePair::bind`]: crate::QueuePair::bind
    pub fn create_window(&self, kind: WindowType) -> Result<MemoryWindow> {
        self.device().shard().check()?;
        let permit = self.device().resources().mws.take()?;
        let key = self.device().memory().create_window(
            self.id(),
            kind,
            keys(self.device().shard().environment())?,
        );
        Ok(MemoryWindow::new(self.used_as(Kind::MemoryWindow), kind, key, permit))
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").field("kind", &self.kind).finish_non_exhaustive()
    }
}

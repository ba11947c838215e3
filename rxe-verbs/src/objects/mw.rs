//! Memory windows: a peer's access to part of a region, granted and revoked by requests instead of
//! by registering memory anew. IBTA 10.6.7, 11.2.8.11.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use rxe_core::mem::WindowType;
use rxe_core::types::Key;

use crate::error::Result;
use crate::objects::pd::{ProtectionDomain, keys};
use crate::observe::{Counted, Kind, Permit, Used};

/// A memory window: grants peers access to part of a region while it is bound.
///
/// Created by [`ProtectionDomain::create_window`] and bound by [`crate::QueuePair::bind`]. Dropping
/// the window revokes the access.
///
/// A window of type 1 serves the peers of all queue pairs in its protection domain and may be
/// rebound at any time. A window of type 2 serves only the peer of the queue pair that bound it,
/// and must be invalidated before it is rebound: locally by [`crate::QueuePair::local_invalidate`],
/// or by the peer's [`crate::Request::invalidate`].
pub struct MemoryWindow {
    pd: Used<ProtectionDomain>,
    kind: WindowType,
    key: Key,
    /// The low 8 bits of the key that the last bind requested.
    low: AtomicU8,
    _permit: Permit,
}

impl MemoryWindow {
    fn new(pd: Used<ProtectionDomain>, kind: WindowType, key: Key, permit: Permit) -> Self {
        let [low, ..] = key.value().to_le_bytes();
        Self { pd, kind, key, low: AtomicU8::new(low), _permit: permit }
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the window's key, which peers put into their requests. Each bind changes the key
    /// ([`crate::Request::new_rkey`]); this is that of the last bind that has completed.
    pub fn rkey(&self) -> Key {
        self.pd.device().memory().window_key(self.key).unwrap_or(self.key)
    }

    /// Returns the key that identifies the window to the engine. It does not change.
    pub(crate) fn id(&self) -> Key {
        self.key
    }

    /// Returns the low 8 bits of the key for the next bind.
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
    /// Creates a memory window, which grants no access until [`QueuePair::bind`].
    ///
    /// # Errors
    /// Fails if the device allows no more windows or has failed.
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

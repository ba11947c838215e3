//! How many objects of a kind a device has. Each object holds a permit, which ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::VerbsError;
use rxe_core::engine::Limits;

use super::DeviceAttr;
use crate::error::Result;

/// The permits of a device, by kind. Groups the engine counts itself.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) pds: Quota,
    pub(crate) cqs: Quota,
    pub(crate) qps: Quota,
    pub(crate) mrs: Quota,
    pub(crate) mws: Quota,
    pub(crate) srqs: Quota,
    pub(crate) ahs: Quota,
    /// Bytes of device memory.
    pub(crate) dm_bytes: Quota,
}

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            pds: Quota::new("protection domains", limits.max_pd),
            cqs: Quota::new("completion queues", limits.max_cq),
            qps: Quota::new("queue pairs", limits.max_qp),
            mrs: Quota::new("memory regions", limits.max_mr),
            mws: Quota::new("memory windows", limits.max_mw),
            srqs: Quota::new("shared receive queues", limits.max_srq),
            ahs: Quota::new("address handles", limits.max_ah),
            dm_bytes: Quota::new("bytes of device memory", DeviceAttr::MAX_DM_SIZE),
        }
    }
}

/// The permits of one kind.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    limit: u32,
    used: Arc<AtomicU32>,
}

impl Quota {
    fn new(what: &'static str, limit: u32) -> Self {
        Self { what, limit, used: Arc::default() }
    }

    /// How many there are.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// A permit for one more.
    ///
    /// # Errors
    /// There is none left.
    pub(crate) fn take(&self) -> Result<Permit> {
        self.take_many(1)
    }

    /// A permit for so many more.
    ///
    /// # Errors
    /// There are not as many left.
    pub(crate) fn take_many(&self, count: u32) -> Result<Permit> {
        let more = |used: u32| used.checked_add(count).filter(|&sum| sum <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let full = VerbsError::TooMany { what: self.what, limit: self.limit };
        taken.map(|_| Permit { used: Arc::clone(&self.used), count }).map_err(|_| full.into())
    }
}

/// One object's permit, or one for several, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    used: Arc<AtomicU32>,
    count: u32,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

//! How many objects of a kind a device has. Each object holds a permit, which ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_core::VerbsError;
use rxe_core::engine::Limits;

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
        let more = |used: u32| (used < self.limit).then_some(used + 1);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let full = VerbsError::TooMany { what: self.what, limit: self.limit };
        taken.map(|_| Permit { used: Arc::clone(&self.used) }).map_err(|_| full.into())
    }
}

/// One object's permit, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    used: Arc<AtomicU32>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

//! Limits on a device's number of objects of each kind. Each object holds a permit, which is
//! returned when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rxe_core::VerbsError;
use rxe_core::engine::Limits;
use rxe_core::types::Gid;
use rxe_sys::fork_generation;

use crate::error::Result;

/// The permits for objects of one kind.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    limit: u32,
    used: Arc<AtomicU32>,
}

impl Quota {
    pub(super) fn new(what: &'static str, limit: u32) -> Self {
        Self { what, limit, used: Arc::default() }
    }

    /// Returns the number of permits taken.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes a permit for one object.
    ///
    /// # Errors
    /// Fails if no permit is left.
    pub(crate) fn take(&self) -> Result<Permit> {
        self.take_many(1)
    }

    /// Takes a permit for `count` objects.
    ///
    /// # Errors
    /// Fails if fewer than `count` permits are left.
    pub(crate) fn take_many(&self, count: u32) -> Result<Permit> {
        let more = |used: u32| used.checked_add(count).filter(|&sum| sum <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let full = VerbsError::TooMany { what: self.what, limit: self.limit };
        taken.map(|_| Permit { used: Arc::clone(&self.used), count }).map_err(|_| full.into())
    }
}

/// A permit for one or several objects, returned when it is dropped.
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

/// The permits for attachments to multicast groups. An engine counts the attachments of its own
/// queue pairs; these permits cover all shards.
#[derive(Debug)]
pub(crate) struct GroupQuota {
    max_groups: u32,
    max_members: u32,
    total: Quota,
    /// The number of queue pairs attached to each group.
    members: Arc<Mutex<HashMap<Gid, u32>>>,
}

impl GroupQuota {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            max_groups: limits.max_mcast_grp,
            max_members: limits.max_mcast_qp_attach,
            total: Quota::new("attachments to multicast groups", limits.max_total_mcast_qp_attach),
            members: Arc::default(),
        }
    }

    /// Takes a permit for one queue pair in a group.
    ///
    /// # Errors
    /// Fails if the limit of groups, of queue pairs in this group, or of attachments in all is
    /// reached.
    pub(crate) fn attach(&self, group: Gid) -> Result<GroupPermit> {
        let mut all = self.members.lock();
        let members = all.get(&group).copied().unwrap_or(0);
        let full = |what, limit| Err(VerbsError::TooMany { what, limit }.into());
        if members >= self.max_members {
            return full("queue pairs in a multicast group", self.max_members);
        }
        if members == 0 && all.len() >= self.max_groups as usize {
            return full("multicast groups", self.max_groups);
        }
        let total = self.total.take()?;
        all.insert(group, members + 1);
        let (members, generation) = (Arc::clone(&self.members), fork_generation());
        Ok(GroupPermit { group, members, generation, _total: total })
    }
}

/// A queue pair's permit to be attached to a group, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct GroupPermit {
    group: Gid,
    members: Arc<Mutex<HashMap<Gid, u32>>>,
    /// The fork generation of the owning process. In a forked child the lock may be held forever.
    generation: u64,
    _total: Permit,
}

impl GroupPermit {
    /// Returns the group.
    pub(crate) fn group(&self) -> Gid {
        self.group
    }
}

impl Drop for GroupPermit {
    fn drop(&mut self) {
        if self.generation != fork_generation() {
            return;
        }
        let mut all = self.members.lock();
        if let Some(members) = all.get_mut(&self.group) {
            *members -= 1;
            if *members == 0 {
                all.remove(&self.group);
            }
        }
    }
}

//! How many objects of a kind a device has. Each object holds a permit, which ends with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rxe_core::VerbsError;
use rxe_core::engine::Limits;
use rxe_core::types::Gid;
use rxe_sys::fork_generation;

use crate::error::Result;

/// The permits of one kind.
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

/// The permits for attachments to multicast groups. An engine counts those of its own queue pairs; these
/// are of all shards.
#[derive(Debug)]
pub(crate) struct GroupQuota {
    max_groups: u32,
    max_members: u32,
    total: Quota,
    /// How many queue pairs are attached to each group.
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

    /// A permit for one more queue pair in this group.
    ///
    /// # Errors
    /// There are as many groups, as many queue pairs in this one, or as many in all, as there may be.
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

/// One queue pair's permit to be attached to a group, until it is dropped.
#[derive(Debug)]
pub(crate) struct GroupPermit {
    group: Gid,
    members: Arc<Mutex<HashMap<Gid, u32>>>,
    /// Of the process that it is of. In a forked child the lock may be held for ever.
    generation: u64,
    _total: Permit,
}

impl GroupPermit {
    /// The group.
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

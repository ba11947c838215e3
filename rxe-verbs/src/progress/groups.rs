//! The multicast groups of a shard: its interface joins the groups that a queue pair is attached
//! to. IBTA 10.5.
//!
//! Joining and leaving a group may block, so both happen without the shard's lock: the caller is
//! given an object that joins, and a membership ends where it is dropped.

use rxe_core::types::Gid;
use rxe_net::{Membership, MulticastJoiner, NetError};

use super::turn::Core;

impl Core {
    /// Returns an object that joins this group, to be used without the shard's lock. Returns `None`
    /// if the interface has joined the group already.
    pub(crate) fn joiner(&mut self, group: Gid) -> Result<Option<MulticastJoiner>, NetError> {
        if self.joined.contains(&group) {
            return Ok(None);
        }
        match self.backend.sharing() {
            Some(sharing) => Ok(Some(sharing.joiner())),
            None => Err(NetError::NoMulticast { backend: self.backend.capabilities().name }),
        }
    }

    /// Begins to receive from a joined group. Returns the membership if it is not needed: another
    /// thread was faster, or no queue pair is attached to the group any more.
    pub(crate) fn join_group(
        &mut self,
        membership: Membership,
    ) -> Result<Option<Membership>, NetError> {
        let group = Gid::from(membership.group());
        let wanted = self.engine.multicast_groups().any(|g| g == group);
        if !wanted || self.joined.contains(&group) {
            return Ok(Some(membership));
        }
        let Some(sharing) = self.backend.sharing() else { return Ok(Some(membership)) };
        let unused = sharing.add_membership(membership)?;
        self.joined.push(group);
        Ok(unused)
    }

    /// Stops receiving from the groups that no queue pair is attached to any more. The caller drops
    /// the returned memberships without the shard's lock.
    #[must_use = "dropping it may block"]
    pub(crate) fn leave_groups(&mut self) -> Vec<Membership> {
        let Self { engine, backend, joined, .. } = self;
        let mut left = Vec::new();
        joined.retain(|group| {
            let wanted = engine.multicast_groups().any(|g| g == *group);
            if !wanted && let Some(sharing) = backend.sharing() {
                left.extend(sharing.remove_membership(group.to_ip()));
            }
            wanted
        });
        left
    }
}

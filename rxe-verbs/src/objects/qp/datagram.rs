//! What only datagram queue pairs do: becoming ready without a peer, and joining multicast groups.
//! IBTA 11.2.5, 11.3.

use rxe_core::qp::{AttrMask, QpAttr, QpState, QpType};
use rxe_core::types::{Gid, Qkey};

use super::{QueuePair, invalid};
use crate::error::{Error, Result};
use crate::observe::GroupPermit;

impl QueuePair {
    /// The Q_Key that it was made with: what datagrams to it must carry.
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Takes a datagram queue pair from RESET or INIT to RTS: it needs no peer.
    ///
    /// # Errors
    /// It is not a datagram queue pair, or in another state.
    pub fn activate(&self) -> Result<()> {
        if self.service() != QpType::Ud {
            return Err(invalid("a connected QP becomes ready with its peer: use connect()"));
        }
        if self.state() == QpState::Reset {
            self.to_init(rxe_core::mem::Access::empty())?;
        }
        let rtr = QpAttr { qp_state: QpState::Rtr, ..QpAttr::default() };
        self.modify(&rtr, AttrMask::STATE)?;
        let rts = QpAttr { qp_state: QpState::Rts, sq_psn: self.psn, ..QpAttr::default() };
        self.modify(&rts, AttrMask::STATE | AttrMask::SQ_PSN)
    }

    /// Receives what is sent to a multicast group (IPv4 or IPv6) from now on, own datagrams among it,
    /// each in a receive of its own. The interface joins the group.
    ///
    /// # Errors
    /// It is not a datagram queue pair, the GID is not a group's, there are as many groups or attachments
    /// as the device allows, or the interface cannot join.
    pub fn attach_multicast(&self, group: Gid) -> Result<()> {
        self.shard().check_own()?;
        let mut groups = self.groups.lock();
        if groups.iter().all(|permit| permit.group() != group) {
            let permit = self.device().resources().groups.attach(group)?;
            self.shard().with(|core| core.engine.attach_multicast(self.qpn(), group))??;
            groups.push(permit);
        }
        drop(groups);
        self.join(group).inspect_err(|_| {
            // It was attached just now.
            let _ = self.detach_multicast(group);
        })
    }

    /// Has the interface join a group that this queue pair is attached to: not under the lock, since the
    /// kernel may keep us waiting.
    fn join(&self, group: Gid) -> Result<()> {
        let Some(joiner) = self.shard().with(|core| core.joiner(group))?? else { return Ok(()) };
        let membership = joiner.join(group.to_ip())?;
        let unused = self.shard().with(|core| core.join_group(membership))??;
        drop(unused);
        Ok(())
    }

    /// The multicast groups that it is attached to.
    pub fn multicast_groups(&self) -> Vec<Gid> {
        self.groups.lock().iter().map(GroupPermit::group).collect()
    }

    /// Undoes [`QueuePair::attach_multicast`].
    ///
    /// # Errors
    /// It is not attached to the group.
    pub fn detach_multicast(&self, group: Gid) -> Result<()> {
        self.shard().check_own()?;
        let mut groups = self.groups.lock();
        let left = self.shard().with(|core| {
            core.engine.detach_multicast(self.qpn(), group)?;
            Ok::<_, Error>(core.leave_groups())
        })??;
        groups.retain(|permit| permit.group() != group);
        drop(groups);
        // Here the lock is free.
        drop(left);
        Ok(())
    }
}

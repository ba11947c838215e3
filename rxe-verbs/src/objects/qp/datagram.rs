//! Operations of datagram queue pairs only: becoming ready without a peer, and joining multicast
//! groups. IBTA 11.2.5, 11.3.

use rxe_core::qp::{AttrMask, QpAttr, QpState, QpType};
use rxe_core::types::{Gid, Qkey};

use super::{QueuePair, invalid};
use crate::error::{Error, Result};
use crate::observe::GroupPermit;

impl QueuePair {
    /// Returns the Q_Key that datagrams to the queue pair must carry.
    pub fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Moves a datagram queue pair from RESET or INIT to RTS. It needs no peer.
    ///
    /// # Errors
    /// Fails in another state and for other services.
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

    /// Attaches the queue pair to a multicast group (IPv4 or IPv6). The interface joins the group.
    ///
    /// Each datagram to the group takes one receive of this queue pair, including those that it
    /// sends itself.
    ///
    /// # Errors
    /// Fails if this is not a datagram queue pair, if the GID is not a multicast group, if the
    /// device allows no more groups or attachments, or if the interface cannot join.
    pub fn attach_multicast(&self, group: Gid) -> Result<()> {
        self.shard().check_own()?;
        let mut groups = self.groups.lock();
        if groups.iter().any(|permit| permit.group() == group) {
            return Ok(());
        }
        let permit = self.device().resources().groups.attach(group)?;
        self.shard().with(|core| core.engine.attach_multicast(self.qpn(), group))??;
        groups.push(permit);
        drop(groups);
        self.join(group).inspect_err(|_| {
            // Undoes the attachment. The error to report is that of `join`.
            let _ = self.detach_multicast(group);
        })
    }

    /// Has the interface join a group that this queue pair is attached to. Called without the lock,
    /// because the kernel may block the call.
    fn join(&self, group: Gid) -> Result<()> {
        let Some(joiner) = self.shard().with(|core| core.joiner(group))?? else { return Ok(()) };
        let membership = joiner.join(group.to_ip())?;
        let unused = self.shard().with(|core| core.join_group(membership))??;
        drop(unused);
        Ok(())
    }

    /// Returns the multicast groups that the queue pair is attached to.
    pub fn multicast_groups(&self) -> Vec<Gid> {
        self.groups.lock().iter().map(GroupPermit::group).collect()
    }

    /// Detaches the queue pair from a group, and undoes [`QueuePair::attach_multicast`].
    ///
    /// # Errors
    /// Fails if the queue pair is not attached to the group.
    pub fn detach_multicast(&self, group: Gid) -> Result<()> {
        self.shard().check_own()?;
        let mut groups = self.groups.lock();
        let left = self.shard().with(|core| {
            core.engine.detach_multicast(self.qpn(), group)?;
            Ok::<_, Error>(core.leave_groups())
        })??;
        groups.retain(|permit| permit.group() != group);
        drop(groups);
        // The interface leaves groups here, after the locks are released.
        drop(left);
        Ok(())
    }
}

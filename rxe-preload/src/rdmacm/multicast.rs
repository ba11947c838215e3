//! Joins and leaves multicast groups.

use std::ffi::{c_int, c_void};
use std::ptr;

use rxe_verbs::Gid;
use rxe_verbs::cm::CmParam;

use super::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use super::id::{Group, Id, gid, given};
use super::verbs::{ibv_attach_mcast, ibv_detach_mcast};
use crate::ffi::{Failure, Outcome, check_bits, minus_one_of};

impl Id {
    fn join(
        &self,
        address: *const libc::sockaddr,
        context: *mut c_void,
        only_sends: bool,
    ) -> Outcome {
        // SAFETY: the caller's address.
        let group = unsafe { given(address) }?.ip();
        let joins = Group { gid: group.into(), context, only_sends, told: false };
        self.groups.lock().push(joins);
        let joined = self.cm.join_multicast(group);
        if joined.is_err() {
            self.groups.lock().pop();
        }
        joined?;
        self.complete()
    }

    fn leave(&self, address: *const libc::sockaddr) -> Outcome {
        // SAFETY: the caller's address.
        let group = unsafe { given(address) }?.ip();
        self.cm.leave_multicast(group)?;
        let group = Gid::from(group);
        let mut groups = self.groups.lock();
        // A group that was joined twice must be left twice. The last join is undone first.
        let last = groups.iter().rposition(|joined| joined.gid == group);
        let left = last.map(|last| groups.remove(last));
        let receives = |joined: &Group| joined.gid == group && joined.told && !joined.only_sends;
        let detaches = left.is_some_and(|left| receives(&left)) && !groups.iter().any(receives);
        drop(groups);
        if detaches && self.has_qp() {
            // SAFETY: the identifier's queue pair; if it is not attached, the call fails.
            unsafe { ibv_detach_mcast((*self.verbs()).qp, &raw const *Box::new(gid(group)), 0) };
        }
        Ok(())
    }

    /// Handles a completed join: attaches the identifier's queue pair to the group, unless the
    /// identifier only sends to it or has left it meanwhile.
    pub(super) fn joined(&self, param: &CmParam) -> Outcome {
        let CmParam::Ud(param) = param else { return Ok(()) };
        let dgid = param.ah.dgid;
        let receives = |joined: &Group| joined.gid == dgid && !joined.only_sends;
        if !self.has_qp() || !self.groups.lock().iter().any(receives) {
            return Ok(());
        }
        let group = gid(dgid);
        // SAFETY: the identifier's queue pair.
        match unsafe { ibv_attach_mcast((*self.verbs()).qp, &raw const group, 0) } {
            0 => Ok(()),
            errno => Err(Failure::plain(errno)),
        }
    }

    /// Returns the context that the program passed when it joined a group.
    /// The event of the join reports it. If a group was joined several times, the events get the
    /// contexts in the order of the joins.
    pub(super) fn tell_context(&self, group: Gid) -> *const c_void {
        let mut groups = self.groups.lock();
        let found = groups.iter_mut().find(|joined| joined.gid == group && !joined.told);
        found.map_or(ptr::null(), |joined| {
            joined.told = true;
            joined.context
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    let joined = unsafe { Id::known(id) }.and_then(|this| this.join(address, context, false));
    minus_one_of("rdma_join_multicast", joined)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    const ADDRESS: u32 = 1;
    const FLAGS: u32 = 2;
    const ONLY_SENDS: u32 = 1;
    // SAFETY: an identifier and the caller's structure.
    let (this, attr) = unsafe { (Id::known(id), &*attr) };
    let join = || -> Outcome {
        check_bits("comp_mask", attr.comp_mask, ADDRESS | FLAGS, libc::ENOTSUP)?;
        if attr.comp_mask != ADDRESS | FLAGS || attr.join_flags > ONLY_SENDS {
            return Err(Failure::plain(libc::EINVAL));
        }
        this?.join(attr.addr, context, attr.join_flags == ONLY_SENDS)
    };
    minus_one_of("rdma_join_multicast_ex", join())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    let left = unsafe { Id::known(id) }.and_then(|this| this.leave(address));
    minus_one_of("rdma_leave_multicast", left)
}

//! Joining and leaving multicast groups.

use std::ffi::{c_int, c_void};
use std::ptr;

use rxe_verbs::Gid;
use rxe_verbs::cm::CmParam;

use super::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex, read_address};
use super::id::{Id, gid, no_family};
use super::verbs::{ibv_attach_mcast, ibv_detach_mcast};
use crate::ffi::{Failure, Outcome, minus_one_of};

impl Id {
    fn join(&self, address: *const libc::sockaddr, context: *mut c_void) -> Outcome {
        // SAFETY: the caller's address.
        let group = unsafe { read_address(address) }.ok_or_else(no_family)?.ip();
        self.groups.lock().push((group.into(), context));
        let joined = self.cm.join_multicast(group);
        if joined.is_err() {
            self.groups.lock().pop();
        }
        joined?;
        self.complete()
    }

    fn leave(&self, address: *const libc::sockaddr) -> Outcome {
        // SAFETY: the caller's address.
        let group = unsafe { read_address(address) }.ok_or_else(no_family)?.ip();
        self.cm.leave_multicast(group)?;
        let group = Gid::from(group);
        self.groups.lock().retain(|(joined, _)| *joined != group);
        if self.has_qp() {
            // SAFETY: the identifier's queue pair; if it is not attached, the call fails.
            unsafe { ibv_detach_mcast((*self.verbs()).qp, &raw const *Box::new(gid(group)), 0) };
        }
        Ok(())
    }

    /// The group is joined: attaches the identifier's queue pair to it.
    pub(super) fn joined(&self, param: &CmParam) -> Outcome {
        let CmParam::Ud(param) = param else { return Ok(()) };
        if !self.has_qp() {
            return Ok(());
        }
        let group = gid(param.ah.dgid);
        // SAFETY: the identifier's queue pair.
        match unsafe { ibv_attach_mcast((*self.verbs()).qp, &raw const group, 0) } {
            0 => Ok(()),
            errno => Err(Failure::plain(errno)),
        }
    }

    /// The context that the program gave when it joined a group.
    pub(super) fn group_context(&self, group: Gid) -> *const c_void {
        let groups = self.groups.lock();
        let found = groups.iter().find(|(joined, _)| *joined == group);
        found.map_or(ptr::null(), |(_, context)| *context)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: an identifier.
    let joined = unsafe { Id::known(id) }.and_then(|this| this.join(address, context));
    minus_one_of("rdma_join_multicast", joined)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const ADDRESS: u32 = 1;
    const FLAGS: u32 = 2;
    // SAFETY: an identifier and the caller's structure.
    let (this, attr) = unsafe { (Id::known(id), &*attr) };
    // Flag 1 asks to join for sending only. It is accepted and treated as a full join.
    let known = attr.comp_mask == ADDRESS | FLAGS && attr.join_flags <= 1;
    let outcome = if known {
        this.and_then(|this| this.join(attr.addr, context))
    } else {
        Err(Failure::plain(libc::EINVAL))
    };
    minus_one_of("rdma_join_multicast_ex", outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: an identifier.
    let left = unsafe { Id::known(id) }.and_then(|this| this.leave(address));
    minus_one_of("rdma_leave_multicast", left)
}

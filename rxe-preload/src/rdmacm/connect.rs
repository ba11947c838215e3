//! Connects, accepts, refuses and disconnects.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::time::Instant;

use rxe_verbs::cm::{CmEventKind, ConnParam, RejReason};
use rxe_verbs::{QpState, QpType, Qpn};

use super::abi::{rdma_cm_event, rdma_cm_id, rdma_conn_param};
use super::channel::Channel;
use super::id::{self, Id, acknowledge, expect_answer};
use super::qp::rdma_create_qp;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, minus_one_of};
use crate::ibverbs::abi::{ibv_ece, ibv_qp_attr};
use crate::ibverbs::qp_attr::from_attributes;

impl Id {
    /// Returns the parameters of a new connection.
    /// If the program gives none, they ask for as many READs and atomics as the device supports.
    ///
    /// # Safety
    /// `param` is null or the caller's structure.
    unsafe fn param(&self, param: *const rdma_conn_param) -> Outcome<ConnParam> {
        let mut ours = ConnParam {
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            ..ConnParam::default()
        };
        // SAFETY: the caller's promise.
        if let Some(theirs) = unsafe { param.as_ref() } {
            // SAFETY: the caller's promise.
            ours.private_data = unsafe { bytes(theirs.private_data, theirs.private_data_len) };
            ours.responder_resources =
                self.resources("responder_resources", theirs.responder_resources)?;
            ours.initiator_depth = self.resources("initiator_depth", theirs.initiator_depth)?;
            ours.flow_control = theirs.flow_control != 0;
            ours.retry_count = theirs.retry_count;
            ours.rnr_retry_count = theirs.rnr_retry_count;
            ours.srq = theirs.srq != 0;
            ours.qp_num = Qpn::new(theirs.qp_num);
        }
        // SAFETY: the program's own field, and its queue pair.
        if let Some(qp) = unsafe { (*self.verbs()).qp.as_ref() } {
            ours.qp_num = Qpn::new(qp.qp_num);
            ours.srq = !qp.srq.is_null();
        }
        Ok(ours)
    }

    /// Checks the number of READs and atomics that a program asks for.
    /// The value 255 asks for the device's maximum.
    fn resources(&self, name: &str, asked: u8) -> Outcome<u8> {
        let Some(device) = self.cm.device() else { return Ok(asked) };
        let most = device.info().attr().max_qp_rd_atom;
        if self.is_datagram() || asked == u8::MAX || u32::from(asked) <= most {
            return Ok(asked);
        }
        let why = format!(
            "{name} {asked}: the device has {most} (max_qp_rd_atom), and 255 asks for them"
        );
        Err(Failure::new(libc::EINVAL, why))
    }

    fn is_datagram(&self) -> bool {
        // SAFETY: the program's own field.
        unsafe { (*self.verbs()).qp_type == QpType::Ud as c_uint }
    }

    fn connect(&self, param: &ConnParam) -> Outcome {
        self.cm.connect(param)?;
        *self.asked.lock() = Some(Instant::now());
        expect_answer();
        self.complete()
    }

    fn accept(&self, param: &ConnParam) -> Outcome {
        if !self.is_datagram() && self.has_qp() {
            let accept = || {
                self.modify_qp(QpState::Init)?;
                self.prepare(param);
                self.modify_qp(QpState::Rtr)?;
                self.modify_qp(QpState::Rts)
            };
            if let Err(failure) = accept() {
                let _ = self.cm.reject_with(RejReason::NO_RESOURCES, &[]);
                return Err(failure);
            }
        }
        self.cm.accept(param)?;
        if self.is_datagram() { Ok(()) } else { self.complete() }
    }

    /// Sets the program's parameters before they are used to modify its queue pair.
    fn prepare(&self, param: &ConnParam) {
        self.cm.set_conn_param(param);
    }

    /// Completes a connection that the peer has accepted: moves the queue pair to RTS and tells the
    /// peer.
    pub(super) fn connected(&self) -> Outcome {
        self.modify_qp(QpState::Init)?;
        self.modify_qp(QpState::Rtr)?;
        self.modify_qp(QpState::Rts)?;
        Ok(self.cm.establish()?)
    }

    fn disconnect(&self) -> Outcome {
        self.qp_to_error();
        match self.cm.disconnect() {
            Ok(()) => self.complete(),
            // Programs often disconnect connections that have ended, or were never established. As
            // with the kernel, that is not a mistake, and no event follows.
            Err(e) if e.errno() == libc::EINVAL && self.cm.was_begun() => Ok(()),
            Err(e) => Err(Failure::plain(e.errno())),
        }
    }
}

/// Copies the private data of a program.
/// # Safety
/// There are `len` bytes at `data`, which may be null if `len` is 0.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let connect = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        may_fail("rdma_connect")?;
        // SAFETY: the caller's structure.
        this.connect(&unsafe { this.param(param) }?)
    };
    minus_one_of("rdma_connect", connect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let establish = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        if this.has_qp() {
            // For identifiers with a queue pair, this library sends the RTU itself.
            return Err(Failure::plain(libc::EINVAL));
        }
        Ok(this.cm.establish()?)
    };
    minus_one_of("rdma_establish", establish())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let listen = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        may_fail("rdma_listen")?;
        let listened = this.cm.listen(usize::try_from(backlog).unwrap_or(0));
        this.fill_addresses();
        Ok(listened?)
    };
    minus_one_of("rdma_listen", listen())
}

/// Returns the next request to a synchronous identifier.
/// The request's queue pair gets the attributes that the program passed to `rdma_create_ep`.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let get = || -> Outcome<(&Id, *mut rdma_cm_event)> {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(listen) }?;
        if !this.is_synchronous() {
            let why = "the identifier has a channel: requests come as events";
            return Err(Failure::new(libc::EINVAL, why));
        }
        this.keep(ptr::null_mut());
        // SAFETY: a synchronous identifier has a channel of its own.
        let event = unsafe { Channel::of((*this.verbs()).channel) }.next()?;
        // SAFETY: just received.
        let (kind, status) = unsafe { ((*event).event, (*event).status) };
        if kind != CmEventKind::ConnectRequest as c_uint {
            // SAFETY: just received.
            unsafe { acknowledge(event) };
            return Err(Failure::plain(if status == 0 { libc::EINVAL } else { status.abs() }));
        }
        Ok((this, event))
    };
    let outcome = get().and_then(|(this, event)| {
        // SAFETY: a request's identifier, just created.
        let request = unsafe { (*event).id };
        // SAFETY: as above.
        let new = unsafe { Id::of(request) };
        new.keep(event);
        if let Some(mut attr) = *this.template.lock() {
            // SAFETY: the listener's domain, which the program named.
            let made = unsafe { rdma_create_qp(request, (*listen).pd, &raw mut attr) };
            if made != 0 {
                let errno = std::io::Error::last_os_error().raw_os_error();
                // SAFETY: no other code has it.
                unsafe { id::destroy(request) };
                return Err(Failure::plain(errno.unwrap_or(libc::EIO)));
            }
        }
        // SAFETY: the caller's variable.
        unsafe { *id = request };
        Ok(())
    });
    minus_one_of("rdma_get_request", outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let accept = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        may_fail("rdma_accept")?;
        // SAFETY: the caller's structure.
        this.accept(&unsafe { this.param(param) }?)
    };
    minus_one_of("rdma_accept", accept())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let reject = || -> Outcome {
        // SAFETY: an identifier and the caller's bytes.
        let (this, data) = unsafe { (Id::known(id)?, bytes(data, len)) };
        Ok(this.cm.reject(&data)?)
    };
    minus_one_of("rdma_reject", reject())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let reject = || -> Outcome {
        // SAFETY: an identifier and the caller's bytes.
        let (this, data) = unsafe { (Id::known(id)?, bytes(data, len)) };
        Ok(this.cm.reject_with(RejReason::VENDOR_OPTION_NOT_SUPPORTED, &data)?)
    };
    minus_one_of("rdma_reject_ece", reject())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    const COMM_EST: c_uint = rxe_verbs::AsyncKind::CommEst as c_uint;
    let notify = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        match event {
            COMM_EST => Ok(this.cm.notify_established()?),
            _ => Err(Failure::plain(libc::EINVAL)),
        }
    };
    minus_one_of("rdma_notify", notify())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    minus_one_of("rdma_disconnect", unsafe { Id::known(id) }.and_then(Id::disconnect))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let init = || -> Outcome {
        // SAFETY: an identifier and the caller's structure.
        let (this, to) = unsafe { (Id::known(id)?, (*attr).qp_state) };
        let to = QpState::from_verbs(to).ok_or_else(|| Failure::plain(libc::EINVAL))?;
        let (ours, bits) = this.cm.init_qp_attr(to)?;
        // SAFETY: the caller's structures.
        unsafe {
            *attr = from_attributes(&ours);
            *mask = bits.bits().cast_signed();
        }
        Ok(())
    };
    minus_one_of("rdma_init_qp_attr", init())
}

/// Accepts no options for enhanced connection establishment.
/// With such options, two devices of one vendor agree on extensions.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's structure.
    let none = unsafe { ece.as_ref() }.is_some_and(|ece| ece.vendor_id == 0);
    let outcome = if none { Ok(()) } else { Err(Failure::plain(libc::EINVAL)) };
    minus_one_of("rdma_set_local_ece", outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    let outcome = unsafe { Id::known(id) }.and_then(|this| {
        if this.has_qp() || ece.is_null() {
            let why = "it is for queue pairs that the program makes, without rdma_create_qp";
            return Err(Failure::new(libc::EINVAL, why));
        }
        // SAFETY: the caller's structure.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
        Ok(())
    });
    minus_one_of("rdma_get_remote_ece", outcome)
}

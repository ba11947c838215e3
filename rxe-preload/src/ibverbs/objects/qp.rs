//! The object behind a program's `struct ibv_qp`.

use std::cell::UnsafeCell;
use std::ffi::{c_uint, c_void};
use std::mem::ManuallyDrop;

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use rxe_verbs::{QpCap, Qpn, QueuePair, SendRequest};

use super::{Context, Handle, Unacknowledged};
use crate::ffi::{Failure, Outcome};
use crate::ibverbs::abi::{ibv_cq, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_srq};

/// A queue pair as programs hold it.
#[repr(C)]
pub(crate) struct Qp {
    /// The header's structure, to which the program writes too.
    verbs: UnsafeCell<ibv_qp_ex>,
    made: Handle,
    pub(crate) number: Qpn,
    pub(crate) pair: ManuallyDrop<QueuePair>,
    pub(crate) asyncs: Unacknowledged,
    pub(crate) batch: Batch,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    sq_sig_all: bool,
    /// Whether the program asked for the extended interface. The functions are always set.
    pub(crate) extended: bool,
}

found_by_pointer!(Qp, ibv_qp);
known_by_handle!(Qp, ibv_qp, "the queue pair");
ends_with!(Qp, pair);

impl Qp {
    /// Returns the queue pair as [`Qp::known`] does, if it belongs to this process.
    ///
    /// # Safety
    /// As for [`Qp::of`], and its context is open.
    pub(crate) unsafe fn own<'q>(qp: *mut ibv_qp) -> Outcome<&'q Self> {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::known(qp) }?;
        // SAFETY: as above; this is the context on which it was created.
        unsafe { Context::of((*qp).context) }.check()?;
        Ok(this)
    }

    /// Returns the attributes with which the queue pair was created.
    pub(crate) fn init_attr(&self, qp_context: *mut c_void) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: from_cap(self.pair.cap()),
            qp_type: self.pair.service() as c_uint,
            sq_sig_all: self.sq_sig_all.into(),
        }
    }

    /// Creates a queue pair for the program, which frees it with `ibv_destroy_qp`.
    pub(crate) fn into_ptr(
        verbs: ibv_qp_ex,
        made: Handle,
        pair: QueuePair,
        sq_sig_all: bool,
        extended: bool,
    ) -> *mut ibv_qp {
        let ibv_qp { context, send_cq, recv_cq, srq, .. } = verbs.qp_base;
        let this = Self {
            verbs: UnsafeCell::new(verbs),
            made,
            number: pair.qpn(),
            pair: ManuallyDrop::new(pair),
            asyncs: Unacknowledged::default(),
            batch: Batch::default(),
            send_cq,
            recv_cq,
            srq,
            sq_sig_all,
            extended,
        };
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(this).cast()
    }
}

pub(crate) fn from_cap(cap: QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The requests that a thread builds with the extended interface (`ibv_wr_*`).
pub(crate) struct Batch {
    pub(crate) lock: RawMutex,
    pub(crate) building: UnsafeCell<Building>,
}

/// The requests of a batch, and the first error of the calls that build them.
#[derive(Default)]
pub(crate) struct Building {
    pub(crate) requests: Vec<SendRequest>,
    pub(crate) wrong: Option<Failure>,
}

impl Default for Batch {
    fn default() -> Self {
        Self { lock: RawMutex::INIT, building: UnsafeCell::default() }
    }
}

//! Faults at the verbs: the n-th request fails, a call is refused, an asynchronous event comes,
//! completions are late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rxe_core::queue::{Payload, SendOp, SendRequest, SgeList, Status};
use rxe_sys::spawn_thread;

use super::FaultPlan;
use crate::error::{Error, Result};
use crate::event::{AsyncEvents, AsyncKind};

/// A fault at the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsFault {
    /// A request to the send queue of each queue pair ends with this status, and the queue pair goes into
    /// the error state (UC, UD: SQE). Nothing is sent for it.
    Completion {
        /// The status.
        status: Status,
        /// The how many-th request it is, counted from 1.
        request: u64,
    },
    /// A call fails and changes nothing. For programs that use libibverbs and librdmacm.
    Errno {
        /// The errno.
        errno: i32,
        /// The function, one of [`VerbsFault::FUNCTIONS`].
        function: &'static str,
        /// The how many-th call fails, counted from 1; all of them if `None`.
        call: Option<u64>,
    },
    /// An asynchronous event of the device comes. Nothing else happens.
    Async {
        /// Which.
        kind: AsyncKind,
        /// So long after the device was opened.
        after: Duration,
    },
    /// Each completion is held back.
    SlowCq {
        /// For so long.
        by: Duration,
    },
}

impl VerbsFault {
    /// The functions that can be made to fail.
    pub const FUNCTIONS: [&'static str; 44] = [
        "ibv_open_device",
        "ibv_close_device",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_query_gid",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_open_xrcd",
        "ibv_reg_mr",
        "ibv_dereg_mr",
        "ibv_alloc_mw",
        "ibv_dealloc_mw",
        "ibv_alloc_dm",
        "ibv_create_comp_channel",
        "ibv_destroy_comp_channel",
        "ibv_get_cq_event",
        "ibv_create_cq",
        "ibv_destroy_cq",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "ibv_create_qp",
        "ibv_destroy_qp",
        "ibv_modify_qp",
        "ibv_query_qp",
        "ibv_attach_mcast",
        "ibv_create_srq",
        "ibv_destroy_srq",
        "ibv_modify_srq",
        "ibv_query_srq",
        "ibv_create_ah",
        "ibv_destroy_ah",
        "ibv_post_send",
        "ibv_post_recv",
        "ibv_post_srq_recv",
        "rdma_create_event_channel",
        "rdma_create_id",
        "rdma_bind_addr",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_create_qp",
        "rdma_listen",
        "rdma_connect",
        "rdma_accept",
        "rdma_get_cm_event",
    ];
}

/// What the faults at the verbs of one device, or of one program, have done.
#[derive(Debug, Default)]
pub(crate) struct VerbsTally(Vec<(VerbsFault, AtomicU64)>);

impl VerbsTally {
    pub(crate) fn new(plan: &FaultPlan) -> Arc<Self> {
        Arc::new(Self(plan.verbs().iter().map(|fault| (*fault, AtomicU64::new(0))).collect()))
    }

    /// The faults that happen in a device, with how often they did.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&VerbsFault, u64)> {
        let own = |fault: &VerbsFault| !matches!(fault, VerbsFault::Errno { .. });
        let counts = self.0.iter().filter(move |(fault, _)| own(fault));
        counts.map(|(fault, count)| (fault, count.load(Ordering::Relaxed)))
    }

    /// The status that the `nth` request of a queue pair must end with.
    fn status(&self, nth: u64) -> Option<Status> {
        self.0.iter().find_map(|(fault, count)| match *fault {
            VerbsFault::Completion { status, request } if request == nth => {
                count.fetch_add(1, Ordering::Relaxed);
                Some(status)
            }
            _ => None,
        })
    }

    /// How long completions are held back.
    pub(crate) fn slow_cq(&self) -> Option<Duration> {
        self.0.iter().find_map(|(fault, _)| match *fault {
            VerbsFault::SlowCq { by } => Some(by),
            _ => None,
        })
    }

    /// Counts a completion that is held back.
    pub(super) fn held_back(&self) {
        for (fault, count) in &self.0 {
            if let VerbsFault::SlowCq { .. } = fault {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Has the asynchronous events come when it is time, in the order of their times and, among those of one
    /// time, of the plan.
    pub(crate) fn start_events(self: &Arc<Self>, events: &Arc<AsyncEvents>) -> Result<()> {
        let mut due: Vec<_> = self
            .0
            .iter()
            .enumerate()
            .filter_map(|(index, (fault, _))| match *fault {
                VerbsFault::Async { kind, after } => Some((after, index, kind)),
                _ => None,
            })
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        due.sort_unstable_by_key(|(after, index, _)| (*after, *index));
        let (tally, events) = (Arc::clone(self), Arc::downgrade(events));
        // One thread for all: each with its own would come in any order on a host that was late for two.
        let come = move || {
            let begin = Instant::now();
            for (after, index, kind) in due {
                std::thread::sleep(after.saturating_sub(begin.elapsed()));
                let Some(events) = events.upgrade() else { return };
                tally.0[index].1.fetch_add(1, Ordering::Relaxed);
                events.of_device(kind, "a fault on purpose".into());
            }
        };
        let started = spawn_thread("rxe-fault", come);
        started.map_err(|e| Error::io("start a thread for a fault", e))?;
        Ok(())
    }
}

/// The faults of the requests to one send queue.
#[derive(Debug)]
pub(crate) struct RequestFaults {
    tally: Arc<VerbsTally>,
    posted: AtomicU64,
}

impl RequestFaults {
    /// `None` if no request is to fail.
    pub(crate) fn new(tally: &Arc<VerbsTally>) -> Option<Box<Self>> {
        let fails = |(fault, _): &(VerbsFault, _)| matches!(fault, VerbsFault::Completion { .. });
        let any = tally.0.iter().any(fails);
        any.then(|| Box::new(Self { tally: Arc::clone(tally), posted: AtomicU64::new(0) }))
    }

    /// The next request, or what fails in its place.
    pub(crate) fn next(&self, request: SendRequest) -> SendRequest {
        let nth = self.posted.fetch_add(1, Ordering::Relaxed) + 1;
        match self.tally.status(nth) {
            Some(status) => {
                let op = SendOp::Fail { status };
                SendRequest { op, payload: Payload::Sges(SgeList::new()), ..request }
            }
            None => request,
        }
    }

    /// The last request was not taken.
    pub(crate) fn refused(&self) {
        self.posted.fetch_sub(1, Ordering::Relaxed);
    }
}

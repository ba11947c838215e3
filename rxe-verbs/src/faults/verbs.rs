//! Faults at the verbs: the n-th request fails, a call fails, an asynchronous event occurs, or
//! completions are delayed.

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
    /// A request to the send queue of each queue pair completes with this status. The queue pair
    /// enters the error state (UC, UD: SQE). The request is not sent.
    Completion {
        /// The status.
        status: Status,
        /// The number of the request, counted from 1 on each queue pair.
        request: u64,
    },
    /// A call fails and has no effect. For programs that use libibverbs and librdmacm.
    Errno {
        /// The error number.
        errno: i32,
        /// The function, one of [`VerbsFault::FUNCTIONS`].
        function: &'static str,
        /// The number of the call that fails, counted from 1; all calls if `None`.
        call: Option<u64>,
    },
    /// An asynchronous event of the device is reported. Nothing else happens.
    Async {
        /// The kind of the event.
        kind: AsyncKind,
        /// The time of the event, after the device was opened.
        after: Duration,
    },
    /// Each completion is delayed.
    SlowCq {
        /// The delay.
        by: Duration,
    },
}

impl VerbsFault {
    /// The functions that [`VerbsFault::Errno`] can make fail.
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

/// Counts how often each fault at the verbs of a device or program has occurred.
#[derive(Debug, Default)]
pub(crate) struct VerbsTally(Vec<(VerbsFault, AtomicU64)>);

impl VerbsTally {
    pub(crate) fn new(plan: &FaultPlan) -> Arc<Self> {
        Arc::new(Self(plan.verbs().iter().map(|fault| (*fault, AtomicU64::new(0))).collect()))
    }

    /// Returns the faults that a device injects, with how often each has occurred.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&VerbsFault, u64)> {
        let own = |fault: &VerbsFault| !matches!(fault, VerbsFault::Errno { .. });
        let counts = self.0.iter().filter(move |(fault, _)| own(fault));
        counts.map(|(fault, count)| (fault, count.load(Ordering::Relaxed)))
    }

    /// Returns the status with which the `nth` request of a queue pair must fail, if any.
    fn status(&self, nth: u64) -> Option<Status> {
        self.0.iter().find_map(|(fault, count)| match *fault {
            VerbsFault::Completion { status, request } if request == nth => {
                count.fetch_add(1, Ordering::Relaxed);
                Some(status)
            }
            _ => None,
        })
    }

    /// Returns how long completions are delayed, if they are.
    pub(crate) fn slow_cq(&self) -> Option<Duration> {
        self.0.iter().find_map(|(fault, _)| match *fault {
            VerbsFault::SlowCq { by } => Some(by),
            _ => None,
        })
    }

    /// Counts a delayed completion.
    pub(super) fn count_delayed(&self) {
        for (fault, count) in &self.0 {
            if let VerbsFault::SlowCq { .. } = fault {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Starts a thread that reports the asynchronous events, in the order of their times.
    /// Simultaneous events follow the order of the plan.
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
        // One thread for all events: separate threads would report close events in any order on a
        // busy host.
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
    /// Creates the faults of one send queue. Returns `None` if no request must fail.
    pub(crate) fn new(tally: &Arc<VerbsTally>) -> Option<Box<Self>> {
        let fails = |(fault, _): &(VerbsFault, _)| matches!(fault, VerbsFault::Completion { .. });
        let any = tally.0.iter().any(fails);
        any.then(|| Box::new(Self { tally: Arc::clone(tally), posted: AtomicU64::new(0) }))
    }

    /// Returns the request, or a failing one in its place if a fault names its number.
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

    /// Uncounts the last request, which the queue did not accept.
    pub(crate) fn refused(&self) {
        self.posted.fetch_sub(1, Ordering::Relaxed);
    }
}

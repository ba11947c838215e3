//! Queue pairs: where requests are posted. IBTA 10.2.4, 11.2.5, 11.4.1.

mod builder;
mod connect;
mod datagram;
mod request;
mod window;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::VerbsError;
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpState, QpType};
use rxe_core::queue::{RecvRequest, SendRequest, Sge};
use rxe_core::types::{Psn, Qkey, Qpn};

pub use builder::QpBuilder;
pub use connect::{ConnectOptions, Endpoint};
pub use request::Request;

use crate::device::{Device, QpnPermit};
use crate::error::{Error, PostError, Result};
use crate::faults::RequestFaults;
use crate::objects::cq::CompletionQueue;
use crate::objects::pd::ProtectionDomain;
use crate::objects::srq::SharedReceiveQueue;
use crate::objects::xrc::XrcDomain;
use crate::observe::{GroupPermit, Permit, Used};
use crate::progress::{Post, ReplyPredictor, Shard};

/// A queue pair. Any thread may post to it. Dropping it destroys it.
///
/// Outstanding requests are then discarded without completions, as verbs define, and the queue
/// pair's pending asynchronous events are removed.
pub struct QueuePair {
    handle: Arc<QpHandle>,
    shard: Arc<Shard>,
    pd: Used<ProtectionDomain>,
    send_cq: Used<CompletionQueue>,
    /// The receive completion queue, if it differs from `send_cq`.
    recv_cq: Option<Used<CompletionQueue>>,
    srq: Option<Used<SharedReceiveQueue>>,
    xrc: Option<Used<XrcDomain>>,
    /// The local address of [`QueuePair::endpoint`] and [`QueuePair::connect`].
    gid_index: u16,
    psn: Psn,
    /// The Q_Key that datagrams to the queue pair must carry.
    qkey: Qkey,
    /// Injected request failures, if the device has any.
    faults: Option<Box<RequestFaults>>,
    /// Predicts which posts the program follows by waiting for a reply.
    reply_predictor: Mutex<ReplyPredictor>,
    /// One permit for each multicast group joined.
    groups: Mutex<Vec<GroupPermit>>,
    /// The queue pair's hold on its number.
    _permit: QpnPermit,
    _quota: Permit,
}

impl QueuePair {
    /// Returns the queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn()
    }

    /// Returns the state, which other threads may change meanwhile.
    pub fn state(&self) -> QpState {
        self.handle.state()
    }

    /// Returns the attributes. IBTA 11.2.5.3.
    ///
    /// # Errors
    /// Fails if the device has failed.
    pub fn query(&self) -> Result<QpAttr> {
        Ok(self.shard().with(|core| core.engine.query_qp(self.qpn()))??)
    }

    /// Returns the sizes of the queues.
    pub fn cap(&self) -> QpCap {
        self.handle.init().cap
    }

    /// Returns the transport service.
    pub fn service(&self) -> QpType {
        self.handle.init().service
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.pd.device()
    }

    /// Returns the completion queue of send requests.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Returns the completion queue of receives.
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.recv_cq.as_ref().unwrap_or(&self.send_cq)
    }

    /// Returns the shared receive queue, if the queue pair uses one.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_deref()
    }

    /// Returns the XRC domain, if the queue pair is an XRC target.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.xrc.as_deref()
    }

    /// Returns the number of send requests posted and not complete. An unsignaled request is
    /// complete when a later signaled one is.
    pub fn sends_outstanding(&self) -> u32 {
        self.handle.sends_outstanding()
    }

    /// Returns the number of receives posted and not complete.
    pub fn receives_outstanding(&self) -> u32 {
        self.handle.receives_outstanding()
    }

    /// Changes the attributes that `mask` names. IBTA 11.2.5.2.
    ///
    /// # Errors
    /// Fails, without a change, if the state, the mask or a value does not allow it.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        if mask.contains(AttrMask::AV) {
            self.device().gid(attr.ah_attr.sgid_index)?;
        }
        let now = self.device().now();
        self.shard().with(|core| core.engine.modify_qp(now, self.qpn(), attr, mask))??;
        if mask.contains(AttrMask::STATE) && attr.qp_state == QpState::Reset {
            self.discard_delayed();
        }
        Ok(())
    }

    /// Moves to the error state: posted requests complete as flushed.
    ///
    /// # Errors
    /// Fails if the device has failed.
    pub fn to_error(&self) -> Result<()> {
        self.go(QpState::Err)
    }

    /// Moves to RESET: posted requests are discarded without completions, and the connection is
    /// forgotten.
    ///
    /// # Errors
    /// Fails if the device has failed.
    pub fn to_reset(&self) -> Result<()> {
        self.go(QpState::Reset)
    }

    fn go(&self, qp_state: QpState) -> Result<()> {
        self.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// Posts send requests in order and starts sending them together.
    ///
    /// Small requests to one peer leave in a common system call. Sending starts before this returns
    /// or, in a stream of posts, together with the next posts: after 50 µs at the latest (0.8 ms in
    /// a long stream), or when the program polls and finds no completion. A request with a
    /// solicited event is never delayed.
    ///
    /// In a ping-pong on a queue pair without receives, whose program polls memory for the answer,
    /// this returns when the answer has arrived, or after 2 ms.
    ///
    /// # Errors
    /// Fails if the queue pair is not ready to send, if its queue is full, or if a request is
    /// invalid. The requests before the failed one are posted ([`PostError::posted`]).
    pub fn post_send(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<(), PostError> {
        self.shard().check().map_err(|error| PostError { posted: 0, error })?;
        let mut posted = 0;
        let mut post = Post::default();
        let result = requests.into_iter().try_for_each(|request| {
            post.add(&request);
            self.hand_over(request)?;
            posted += 1;
            Ok(())
        });
        self.begin(post);
        result.map_err(|e: VerbsError| PostError { posted, error: e.into() })
    }

    /// Checks whether all these requests could be posted now. Other threads that post on the queue
    /// pair may use up the room before the caller does.
    ///
    /// # Errors
    /// Fails with the first reason why a request cannot be posted.
    pub fn check_post_send(&self, requests: &[SendRequest]) -> Result<()> {
        let depth = self.cap().max_send_wr;
        if self.sends_outstanding() as usize + requests.len() > depth as usize {
            return Err(VerbsError::QueueFull { queue: "send", depth }.into());
        }
        Ok(requests.iter().try_for_each(|request| self.handle.check_post_send(request))?)
    }

    /// Adds a request to the send queue, after injected faults have been applied to it.
    #[inline]
    fn hand_over(&self, request: SendRequest) -> Result<(), VerbsError> {
        match &self.faults {
            None => self.handle.post_send(request),
            Some(faults) => {
                let result = self.handle.post_send(faults.next(request));
                result.inspect_err(|_| faults.refused())
            }
        }
    }

    /// Posts a receive, a buffer for the next message.
    ///
    /// # Errors
    /// Fails if the queue pair is in RESET or uses a shared receive queue, if its queue is full, or
    /// if the list is too long.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.shard().check()?;
        self.handle.post_recv(request)?;
        // Only a queue pair in the error state rings the doorbell for a receive.
        if self.handle.state() == QpState::Err {
            self.shard().answer_doorbells();
        }
        Ok(())
    }

    /// Posts a receive with this identifier and these scatter elements.
    ///
    /// # Errors
    /// Fails like [`QueuePair::post_recv`].
    pub fn recv(&self, id: u64, into: &[Sge]) -> Result<()> {
        self.post_recv(RecvRequest { id, sges: into.into() })
    }

    /// Starts sending posted requests, immediately or later.
    fn begin(&self, posted: Post) {
        // If receives are posted, the program learns of messages from completions, so no reply need
        // be awaited here.
        let mut predictor = if self.receives_outstanding() == 0 && self.srq.is_none() {
            self.reply_predictor.try_lock()
        } else {
            None
        };
        let must_leave = posted.must_leave || predictor.as_ref().is_some_and(|a| a.is_ping_pong());
        let post = Post { must_leave, ..posted }.on(&self.handle);
        if self.shard().posted(&post)
            && let Some(predictor) = &mut predictor
        {
            self.shard().await_reply(self.qpn(), predictor);
        }
    }

    /// Discards completions that a fault delays. The engine has already removed those in the
    /// queues.
    fn discard_delayed(&self) {
        self.send_cq().discard(self.qpn());
        self.recv_cq().discard(self.qpn());
    }

    #[inline]
    fn shard(&self) -> &Shard {
        &self.shard
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // In a forked child, threads that exist only in the parent may hold the locks.
        if self.shard().is_own() {
            // The interface leaves multicast groups here, after the lock is released.
            drop(self.shard().destroy_qp(self.qpn()));
            self.discard_delayed();
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.qpn())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Returns the error for misuse that has no specific error.
fn invalid(why: &'static str) -> Error {
    VerbsError::InvalidRequest { why }.into()
}

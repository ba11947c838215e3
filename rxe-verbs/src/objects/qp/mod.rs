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

/// A queue pair. Any thread may post to it. Dropped, it is destroyed: what is posted and not
/// complete is forgotten, as verbs have it, and so are its asynchronous events.
pub struct QueuePair {
    handle: Arc<QpHandle>,
    shard: Arc<Shard>,
    pd: Used<ProtectionDomain>,
    send_cq: Used<CompletionQueue>,
    /// If it is another than `send_cq`.
    recv_cq: Option<Used<CompletionQueue>>,
    srq: Option<Used<SharedReceiveQueue>>,
    xrc: Option<Used<XrcDomain>>,
    /// For [`QueuePair::endpoint`] and [`QueuePair::connect`].
    gid_index: u16,
    psn: Psn,
    /// Of datagrams.
    qkey: Qkey,
    /// Requests that are to fail; rarely any.
    faults: Option<Box<RequestFaults>>,
    /// Which of its posts wait for a reply.
    reply_predictor: Mutex<ReplyPredictor>,
    /// For the multicast groups that it is attached to.
    groups: Mutex<Vec<GroupPermit>>,
    /// Given back when the number is free again.
    _permit: QpnPermit,
    _quota: Permit,
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.handle.qpn()
    }

    /// Its state, as of a moment ago.
    pub fn state(&self) -> QpState {
        self.handle.state()
    }

    /// Its attributes. IBTA 11.2.5.3.
    ///
    /// # Errors
    /// The device has failed.
    pub fn query(&self) -> Result<QpAttr> {
        Ok(self.shard().with(|core| core.engine.query_qp(self.qpn()))??)
    }

    /// The sizes of its queues.
    pub fn cap(&self) -> QpCap {
        self.handle.init().cap
    }

    /// Its transport service.
    pub fn service(&self) -> QpType {
        self.handle.init().service
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        self.pd.device()
    }

    /// Where its send requests complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.recv_cq.as_ref().unwrap_or(&self.send_cq)
    }

    /// The queue that its receives come from, if it has none of its own.
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_deref()
    }

    /// The domain that it is a target in, if it is one of XRC.
    pub fn xrc_domain(&self) -> Option<&XrcDomain> {
        self.xrc.as_deref()
    }

    /// Send requests posted and not complete. An unsignalled one is complete when a later signalled
    /// one is.
    pub fn sends_outstanding(&self) -> u32 {
        self.handle.sends_outstanding()
    }

    /// Receives posted and not complete.
    pub fn receives_outstanding(&self) -> u32 {
        self.handle.receives_outstanding()
    }

    /// Changes the attributes that `mask` names. IBTA 11.2.5.2.
    ///
    /// # Errors
    /// The state, the mask or a value does not allow it; nothing is changed then.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        if mask.contains(AttrMask::AV) {
            self.device().gid(attr.ah_attr.sgid_index)?;
        }
        let now = self.device().now();
        self.shard().with(|core| core.engine.modify_qp(now, self.qpn(), attr, mask))??;
        if mask.contains(AttrMask::STATE) && attr.qp_state == QpState::Reset {
            self.discard_held_back();
        }
        Ok(())
    }

    /// Puts it into the error state: what is posted completes as flushed.
    ///
    /// # Errors
    /// The device has failed.
    pub fn to_error(&self) -> Result<()> {
        self.go(QpState::Err)
    }

    /// Makes it forget everything that was posted and agreed on, without completions.
    ///
    /// # Errors
    /// The device has failed.
    pub fn to_reset(&self) -> Result<()> {
        self.go(QpState::Reset)
    }

    fn go(&self, qp_state: QpState) -> Result<()> {
        self.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// Posts send requests, in their order, and then begins them together: small ones for one peer leave in
    /// common calls of the system. They are begun before this returns, or, in a stream of posts, together with
    /// the next ones: after 50 µs at the latest (0.8 ms in a long stream), or when the program polls and finds
    /// no completion. A request with a solicited event never waits.
    ///
    /// In a ping-pong on a queue pair without receives, whose program looks for the answer in its memory,
    /// this returns when the answer has come, or after 2 ms.
    ///
    /// # Errors
    /// The QP is not ready to send, its queue is full, or a request contradicts itself. The requests before
    /// that one are posted ([`PostError::posted`]).
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

    /// Returns an error if not all of these requests could be posted now. Other threads that post on the queue
    /// pair may use up the room before the caller does.
    ///
    /// # Errors
    /// The first reason why one of them cannot be taken.
    pub fn check_post_send(&self, requests: &[SendRequest]) -> Result<()> {
        let depth = self.cap().max_send_wr;
        if self.sends_outstanding() as usize + requests.len() > depth as usize {
            return Err(VerbsError::QueueFull { queue: "send", depth }.into());
        }
        Ok(requests.iter().try_for_each(|request| self.handle.check_post_send(request))?)
    }

    /// Puts a request into the send queue, or what is to fail in its place.
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

    /// Posts a receive: where the next message may go.
    ///
    /// # Errors
    /// The QP is in RESET, its queue is full, the list is too long, or its receives come from a
    /// shared queue.
    pub fn post_recv(&self, request: RecvRequest) -> Result<()> {
        self.shard().check()?;
        self.handle.post_recv(request)?;
        // Only a QP in the error state rings here.
        if self.handle.state() == QpState::Err {
            self.shard().answer_doorbells();
        }
        Ok(())
    }

    /// Posts a receive: where the next message may go.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn recv(&self, id: u64, into: &[Sge]) -> Result<()> {
        self.post_recv(RecvRequest { id, sges: into.into() })
    }

    /// Sees to it that what was just posted leaves, now or soon.
    fn begin(&self, posted: Post) {
        // Where receives are posted, the program learns of messages by their completions.
        let mut predictor = if self.receives_outstanding() == 0 && self.srq.is_none() {
            self.reply_predictor.try_lock()
        } else {
            None
        };
        let urgent = posted.urgent || predictor.as_ref().is_some_and(|a| a.is_ping_pong());
        let post = Post { urgent, ..posted }.on(&self.handle);
        if self.shard().posted(&post)
            && let Some(predictor) = &mut predictor
        {
            self.shard().await_reply(self.qpn(), predictor);
        }
    }

    /// The engine has removed its completions; these are those that a fault holds back.
    fn discard_held_back(&self) {
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
        // In a forked child the locks may be held for ever.
        if self.shard().is_own() {
            // Groups are left where the lock is free.
            drop(self.shard().destroy_qp(self.qpn()));
            self.discard_held_back();
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

/// The misuse that has no better name.
fn invalid(why: &'static str) -> Error {
    VerbsError::InvalidRequest { why }.into()
}

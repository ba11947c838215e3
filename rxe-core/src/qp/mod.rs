//! Queue pairs: attributes, the state machine and the parts. IBTA 10.2.4, 10.3, 11.2.5.
//!
//! A queue pair has a send side (a requester) and a receive side (a responder). They share nothing but
//! a read-only view of the queue pair.

mod congestion;
mod modify;
mod state;
mod transport;

use std::net::IpAddr;
use std::sync::Arc;

pub use crate::service::{QpHandle, QpInit};
pub use crate::types::{AddressVector, AttrMask, QpAttr, QpCap, QpState, QpType};
pub(crate) use modify::address;
use modify::unconnected;
pub use state::{Transition, check_modify, transitions};

use crate::event::Event;
use crate::prefetch;
use crate::queue::SharedReceiveQueue;
use crate::rc::Controller;
use crate::service::{ConnectionError, Ctx, QpIdentity, QpView, SendLimits};
use crate::types::{Psn, Time};
use crate::wire::{Ext, NetHeader, OpKind, Packet, TxBatch, cnp, emit};

use congestion::Congestion;
pub use transport::SendProgress;
use transport::{RecvSide, SendFailure, SendSide};

/// A queue pair, as its engine stores it. Everything that a packet touches is in one block of ten cache
/// lines, because with ten thousand queue pairs every line is a cache miss. The rest is in the handle.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Qp {
    pub(crate) handle: Arc<QpHandle>,
    pub(crate) identity: QpIdentity,
    attr: QpAttr,
    /// The network header of packets to the peer: set from RTR on, the source port from the start.
    net: NetHeader,
    send: SendSide,
    recv: RecvSide,
    congestion: Congestion,
    /// Pacing stopped the last attempt to send before it looked for requests.
    cut_off: bool,
    /// Requests used up the batch or the pace before all responses were sent. The next call of
    /// [`Qp::transmit`] sends only responses, so that requests cannot starve them.
    responses_wait: bool,
    /// The first packet of the peer has arrived.
    established: bool,
    /// The QP's entries in the engine's lists.
    pub(crate) scheduled: Scheduled,
}

/// The entries of a QP in the engine's lists.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Scheduled {
    /// The QP is in the ready list.
    pub(crate) ready: bool,
    /// Which ready list it belongs to: there is one for each source port.
    pub(crate) list: u8,
    /// The [`Qp::inflight_weight`] that the sums of its peer include.
    pub(crate) inflight_weight: u16,
    /// The number of the peer, which QPs to one address share; 0 without a peer.
    pub(crate) peer: u32,
    /// The time of its entry among the timers.
    pub(crate) timer: Option<Time>,
}

/// What a QP would send now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// There is something to send.
    pub(crate) any: bool,
    /// There is more to send than acknowledgements, which may wait.
    pub(crate) more_than_acks: bool,
}

/// Borrows the view of a QP. A macro, so that its two sides can still be borrowed mutably.
macro_rules! view_of {
    ($qp:expr, $ctx:expr) => {
        QpView {
            handle: &$qp.handle,
            identity: &$qp.identity,
            attr: &$qp.attr,
            net: &$qp.net,
            limits: $ctx.limits,
            target: None,
        }
    };
}
use view_of;

impl Qp {
    pub(crate) fn new(handle: Arc<QpHandle>, src_port: u16) -> Self {
        let service = handle.init.service;
        let (qpn, pd, max_message) = (handle.qpn, handle.init.pd, handle.max_message());
        Self {
            handle,
            identity: QpIdentity { qpn, pd, service, max_message },
            attr: QpAttr::default(),
            net: unconnected(src_port),
            send: SendSide::idle(service),
            recv: RecvSide::idle(service),
            congestion: Congestion::default(),
            cut_off: false,
            responses_wait: false,
            established: false,
            scheduled: Scheduled::default(),
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.attr.qp_state
    }

    /// Returns the message sequence number, if the service is reliable.
    pub(crate) fn msn(&self) -> Option<u32> {
        self.recv.msn()
    }

    /// Returns how far the QP has sent.
    pub(crate) fn send_progress(&self) -> SendProgress {
        self.send.progress()
    }

    /// Returns the PSN of the next request; `None` for UD.
    pub(crate) fn expected_psn(&self) -> Option<Psn> {
        self.recv.expected()
    }

    /// Returns the rate that congestion control allows, in bytes per second; `None` without a limit.
    pub(crate) fn rate_limit(&self) -> Option<u64> {
        self.congestion.rate()
    }

    pub(crate) fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// Returns the attributes as a program queries them, with the PSNs of the next packets.
    pub(crate) fn query(&self) -> QpAttr {
        let sq_draining = self.state() == QpState::Sqd && self.send.is_draining();
        let rq_psn = self.expected_psn().unwrap_or(self.attr.rq_psn);
        QpAttr { sq_draining, sq_psn: self.send_progress().psn, rq_psn, ..self.attr }
    }

    /// Returns the network header of packets to the peer. Packets from the peer must have the reverse
    /// addresses.
    pub(crate) fn net(&self) -> &NetHeader {
        &self.net
    }

    /// Returns the address of the peer, if the QP is connected and its service is reliable.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        let reliable = !matches!(self.identity.service, QpType::Ud | QpType::Uc);
        let connected = !matches!(self.state(), QpState::Reset | QpState::Init);
        (reliable && connected).then_some(self.net.dst)
    }

    /// Returns the QP's weight in the window that it shares with others to the same peer: its packets in
    /// flight, at least 1; 0 if it has few in flight and no more to send.
    #[inline]
    pub(crate) fn inflight_weight(&self) -> u16 {
        self.send.inflight_weight()
    }

    /// Receives a packet whose headers and ICRC have been checked.
    pub(crate) fn receive(&mut self, ctx: &mut Ctx<'_>, net: &NetHeader, packet: &Packet<'_>) {
        if packet.info().kind == OpKind::Cnp {
            // A CNP may be older than this connection, so it does not count as the peer's first packet. It
            // is never answered with another CNP, even if it carries a mark.
            ctx.events.emit(Event::CongestionNotified { qpn: self.identity.qpn });
            if self.congestion.notified(ctx.now)
                && let Some(control) = self.send.control()
            {
                control.on_marked(ctx.now);
            }
            return;
        }
        debug_assert!(!matches!(self.state(), QpState::Reset | QpState::Init | QpState::Err));
        if !self.established {
            self.established = true;
            let (qpn, state) = (self.identity.qpn, self.state());
            if state == QpState::Rtr {
                ctx.events.emit(Event::CommunicationEstablished { qpn });
            }
            if matches!(state, QpState::Rtr | QpState::Rts) {
                ctx.events.note_first_packet(qpn);
            }
        }
        let connected = self.identity.service != QpType::Ud;
        if connected && self.congestion.observe(ctx.now, net) {
            ctx.events.emit(Event::CongestionSeen { qpn: self.identity.qpn });
        }
        let target = self.xrc_target(packet);
        let view = QpView { target: target.as_ref(), ..view_of!(self, ctx) };
        let result = if packet.info().is_request {
            self.recv.receive(&view, ctx, net, packet)
        } else {
            self.send.receive(&view, ctx, packet)
        };
        self.apply_outcome(ctx, result);
    }

    /// Receives a coalesced segment as one. Returns `false` if that is not possible, because one of its
    /// packets may be refused or has an effect beyond its message. Then its packets must be received one
    /// by one, which repeats whatever this call has done.
    pub(crate) fn receive_coalesced(
        &mut self,
        ctx: &mut Ctx<'_>,
        net: &NetHeader,
        packet: &Packet<'_>,
    ) -> bool {
        if !self.established || self.congestion.learns_from(net) {
            return false;
        }
        debug_assert!(packet.count() > 1 && packet.info().kind != OpKind::Cnp);
        debug_assert!(!matches!(self.state(), QpState::Reset | QpState::Init | QpState::Err));
        let target = self.xrc_target(packet);
        let view = QpView { target: target.as_ref(), ..view_of!(self, ctx) };
        let result = if packet.info().is_request {
            Ok(self.recv.receive_coalesced(&view, ctx, packet))
        } else {
            self.send.receive_coalesced(&view, ctx, packet)
        };
        let taken = result != Ok(false);
        if taken {
            self.apply_outcome(ctx, result.map(drop));
        }
        taken
    }

    /// Returns the shared receive queue that an XRC request names, if it exists.
    fn xrc_target(&self, packet: &Packet<'_>) -> Option<Arc<SharedReceiveQueue>> {
        let srq = packet.xrc_srq()?;
        // The XRCETH has 8 reserved bits above the number.
        self.handle.init.xrcd.as_ref()?.find(srq & 0xff_ffff)
    }

    /// Sends at most about `budget` packets. Returns whether more could be sent immediately.
    pub(crate) fn transmit(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> bool {
        match self.state() {
            // Requests may have been posted since the state changed.
            QpState::Err => self.flush(ctx),
            QpState::Sqe => self.send.flush(&view_of!(self, ctx), ctx),
            _ => {}
        }
        let before = batch.total().1;
        let connected = self.identity.service != QpType::Ud;
        if connected {
            self.net.tos = self.congestion.mark(self.attr.ah_attr.traffic_class);
            if self.congestion.take_cnp() {
                self.notify_peer(batch);
            }
        }
        let mtu = self.attr.path_mtu.bytes();
        let allowed = self.congestion.allowance(ctx.now, mtu);
        // Acknowledgements are not paced: the peer would think that its requests were lost.
        self.cut_off = allowed == 0;
        let only_responses = !self.cut_off && std::mem::take(&mut self.responses_wait);
        let mut more = only_responses;
        let mut requests = 0;
        // Requests first: an acknowledgement is smaller than most of them, so it can be the last
        // segment of the same burst, and both leave in one call.
        if !(self.cut_off || only_responses) && matches!(self.state(), QpState::Rts | QpState::Sqd)
        {
            let packets = batch.total().0;
            more |= self.request(ctx, batch, budget.min(allowed));
            requests = usize::try_from(batch.total().0 - packets).unwrap_or(usize::MAX);
        }
        let view = view_of!(self, ctx);
        let left = budget.min(allowed.saturating_sub(requests));
        let (unfinished, result) = self.recv.transmit(&view, ctx, batch, left);
        self.apply_outcome(ctx, result);
        let used_up = requests >= allowed || batch.is_full();
        self.responses_wait |= unfinished && requests > 0 && used_up;
        debug_assert!(requests == 0 || !self.cut_off, "a pace that is used up sends no requests");
        let bytes = batch.total().1 - before;
        self.congestion.sent(ctx.now, bytes);
        if bytes > 0 && self.congestion.is_pacing() {
            self.restart_timers(ctx.now);
        }
        if self.cut_off { self.recv.has_small_work() } else { more | unfinished }
    }

    /// Sends requests, at most about `budget` packets. Returns whether more could be sent.
    fn request(&mut self, ctx: &mut Ctx<'_>, batch: &mut TxBatch, budget: usize) -> bool {
        let view = view_of!(self, ctx);
        let (unfinished, result) = match self.send.transmit(&view, ctx, batch, budget) {
            Ok(unfinished) => (unfinished, Ok(())),
            Err(SendFailure::SendQueue) => {
                self.set_state(QpState::Sqe);
                self.send.flush(&view_of!(self, ctx), ctx);
                (false, Ok(()))
            }
            Err(SendFailure::QueuePair) => (false, Err(ConnectionError)),
        };
        self.apply_outcome(ctx, result);
        unfinished
    }

    /// Sends the peer a congestion notification: its packets arrive marked.
    fn notify_peer(&self, batch: &mut TxBatch) {
        // DSCP 48, which hardware uses for CNPs, and ECT(0).
        const CNP_TOS: u8 = 0xc2;
        let net = NetHeader { tos: CNP_TOS, ..self.net };
        let bth = cnp::bth(self.attr.dest_qp_num);
        batch.push_to(net, bth.dest_qp, emit::len(bth.opcode, 0), |net, buf| {
            emit::packet(net, buf, &bth, &Ext::default(), 0, |_| {});
        });
    }

    /// Handles the timers that are due at `ctx.now`.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        if self.congestion.is_held() || self.congestion.is_ahead(ctx.now) {
            self.restart_timers(ctx.now);
        }
        self.congestion.release(ctx.now);
        let view = view_of!(self, ctx);
        let result = self.send.handle_timeout(&view, ctx);
        self.apply_outcome(ctx, result);
    }

    /// Excuses the peer for missing responses, because this host did not run for a while.
    pub(crate) fn excuse(&mut self, now: Time) {
        if let Some(control) = self.send.control() {
            control.excuse(now);
        }
    }

    /// Gives the peer the whole timeout again, because this side held its requests back.
    fn restart_timers(&mut self, now: Time) {
        if let Some(control) = self.send.control() {
            control.restart(now);
        }
    }

    /// Returns when [`Qp::handle_timeout`] is to be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.send.deadline(), self.congestion.deadline()) {
            (Some(send), Some(pace)) => Some(send.min(pace)),
            (send, pace) => send.or(pace),
        }
    }

    /// Prefetches the memory that sending needs besides the QP itself.
    pub(crate) fn prefetch(&self) {
        prefetch::value(&*self.handle);
        self.send.prefetch();
    }

    /// Records that the doorbell rang: the program may have posted requests.
    pub(crate) fn posted(&mut self) {
        self.handle.doorbell_seen();
        self.send.posted();
    }

    /// Returns what [`Qp::transmit`] would send.
    pub(crate) fn work(&self, limits: SendLimits) -> Work {
        debug_assert_eq!(self.state(), self.handle.state());
        let (handle, identity, attr, net) = (&self.handle, &self.identity, &self.attr, &self.net);
        let view = QpView { handle, identity, attr, net, limits, target: None };
        let requests =
            matches!(self.state(), QpState::Rts | QpState::Sqd) && self.send.has_work(&view);
        let cnp = self.congestion.has_cnp();
        let any = if self.congestion.is_held() {
            self.recv.has_small_work()
        } else {
            self.cut_off || requests || self.recv.has_work()
        };
        let more_than_acks = cnp || self.cut_off || requests || !self.recv.can_wait();
        Work { any: cnp || any, more_than_acks }
    }

    /// Ends a call into the QP: enters the error state if the call failed, and reports that the send
    /// queue has drained.
    #[inline]
    fn apply_outcome(&mut self, ctx: &mut Ctx<'_>, result: Result<(), ConnectionError>) {
        // Several times for each message nothing has failed, and no queue drains.
        if result.is_err() || ctx.overflow || self.state() == QpState::Sqd {
            self.apply_rare_outcome(ctx, result);
        }
    }

    #[cold]
    fn apply_rare_outcome(&mut self, ctx: &mut Ctx<'_>, result: Result<(), ConnectionError>) {
        if (result.is_err() || ctx.overflow) && self.state() != QpState::Err {
            self.enter_error(ctx);
        }
        if self.state() == QpState::Sqd && self.send.take_drained() && self.attr.en_sqd_async_notify
        {
            ctx.events.emit(Event::SqDrained { qpn: self.identity.qpn });
        }
    }

    /// Enters the error state if a completion queue of the QP has overflowed. Returns whether the state
    /// changed.
    pub(crate) fn fail_if_overflowed(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let init = &self.handle.init;
        let behind = init.send_cq.is_overflowed() || init.recv_cq.is_overflowed();
        let fails = behind && !matches!(self.state(), QpState::Reset | QpState::Err);
        if fails {
            self.enter_error(ctx);
        }
        fails
    }

    /// Enters the error state. In the error state, flushes requests that were posted since.
    pub(crate) fn fail(&mut self, ctx: &mut Ctx<'_>) {
        match self.state() {
            QpState::Reset => {}
            QpState::Err => self.flush(ctx),
            _ => self.enter_error(ctx),
        }
    }

    fn enter_error(&mut self, ctx: &mut Ctx<'_>) {
        self.set_state(QpState::Err);
        self.flush(ctx);
        debug_assert!(self.send.deadline().is_none(), "what is flushed waits for nothing");
        debug_assert_eq!(self.inflight_weight(), 0, "and is no weight on the peer");
        if self.handle.rq.is_shared() {
            ctx.events.emit(Event::LastWqeReached { qpn: self.identity.qpn });
        }
    }

    fn flush(&mut self, ctx: &mut Ctx<'_>) {
        let view = view_of!(self, ctx);
        self.send.flush(&view, ctx);
        self.recv.flush(&view, ctx);
    }

    fn set_state(&mut self, state: QpState) {
        self.attr.qp_state = state;
        self.attr.cur_qp_state = state;
        self.handle.set_state(state);
        debug_assert_eq!(self.handle.state(), state, "only the engine changes it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_needs_of_a_queue_pair_takes_few_cache_lines() {
        // With thousands of queue pairs each line costs some nanoseconds per message:
        // docs/en/project/performance.md.
        assert!(size_of::<Qp>() <= 10 * 64, "{} bytes", size_of::<Qp>());
        assert_eq!(align_of::<Qp>(), 64);
    }
}

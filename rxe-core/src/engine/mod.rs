//! The engine: all queue pairs of a shard, fed with frames and time, drained of frames and events.
//!
//! The engine is `&mut self` and has no locks, sockets, clocks or threads. Its driver repeats these
//! steps, in this order, until none of them finds anything to do:
//!
//! 1. [`Engine::handle_frame`] with everything that has arrived,
//! 2. [`Engine::handle_timeout`] with the time (after [`Engine::excuse_silence`], if the driver
//!    itself did not run when something was due),
//! 3. [`Engine::poll_transmit`], sending the packets in the batch, until the batch stays empty,
//! 4. [`Engine::poll_event`], until there is no event.
//!
//! The driver then sleeps until a frame arrives, a [`QpHandle`] is posted to (its [`Doorbells`] are
//! no longer empty), or the time that [`Engine::poll_timeout`] returns. Completions go directly to
//! the completion queues. Acknowledgements are built in step 3, so that one acknowledgement answers
//! all frames of step 1.

#[cfg(test)]
mod coalesced_tests;
#[cfg(test)]
mod direct_tests;
mod gsi;
mod list;
mod lookahead;
mod peers;
mod ready;
mod rx;
mod table;
mod timer;
mod tx;

use std::sync::Arc;

pub use crate::config::{Config, Limits, SourcePort};
pub use crate::event::{
    Affiliation, Counters, Event, FailedRequest, MemoryRange, QpCounters, ResponderError,
    RetryCause,
};
pub use gsi::ReceivedMad;
pub use list::{QpInfo, QpPage};

use crate::error::VerbsError;
use crate::event::EventSink;
use crate::mem::{Memory, PdId};
use crate::qp::{Qp, address};
use crate::queue::{AddressHandle, Doorbells};
use crate::service::{Ctx, QpHandle, QpInit, SendLimits};
use crate::types::{AddressVector, AttrMask, Gid, Mtu, QpAttr, QpState, QpType, Qpn, Time};
use crate::wire::Frame;
use crate::wire::icrc::PrefixCache;

use peers::Peers;
use ready::Ready;
use table::QpTable;
use timer::Timers;

/// How many other queue pairs come between the prefetch of a queue pair and its use.
const PREFETCH_DISTANCE: usize = Frame::PREFETCH_DISTANCE / 2;

/// All queue pairs of a shard. Takes frames and the time, and produces packets, completions and
/// events. The [module](self) says in which order to call the methods.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    memory: Arc<Memory>,
    doorbells: Arc<Doorbells>,
    qps: QpTable,
    /// How many QPs were ever created, modulo 2¹⁶.
    created: u16,
    groups: rx::Groups,
    gsi: gsi::Gsi,
    frame_prefetch: lookahead::FramePrefetch,
    prefix: PrefixCache,
    ready: Ready,
    /// A ready QP has more to send than acknowledgements.
    more_than_acks: bool,
    timers: Timers,
    peers: Peers,
    events: EventSink,
}

impl Engine {
    /// Returns an engine without QPs, for a device and its memory.
    pub fn new(config: Config, memory: Arc<Memory>) -> Self {
        Self {
            ready: Ready::new(config.source_port),
            config,
            memory,
            doorbells: Arc::default(),
            qps: QpTable::default(),
            created: 0,
            groups: rx::Groups::new(),
            gsi: gsi::Gsi::default(),
            frame_prefetch: lookahead::FramePrefetch::default(),
            prefix: PrefixCache::default(),
            more_than_acks: false,
            timers: Timers::default(),
            peers: Peers::default(),
            events: EventSink::default(),
        }
    }

    /// Returns the configuration of the device.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Replaces the GID table, when the interface's addresses have changed. QPs keep the addresses
    /// that they were connected with.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        self.config.gids = gids;
    }

    /// Replaces the largest path MTU, when the interface's MTU has changed. QPs keep the path MTU that they
    /// were connected with.
    pub fn set_max_mtu(&mut self, mtu: Mtu) {
        self.config.max_mtu = mtu;
    }

    /// Returns the device's memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the doorbells that ring when a QP of this engine is posted to.
    pub fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// Creates a queue pair in RESET under an unused number that the caller has chosen. IBTA 11.2.5.1.
    ///
    /// # Errors
    /// The number is reserved or in use, sizes exceed the device's limits, there are as many queue
    /// pairs as it allows, or there is no memory for the queues.
    pub fn create_qp(&mut self, qpn: Qpn, init: QpInit) -> Result<Arc<QpHandle>, VerbsError> {
        let limits = &self.config.limits;
        let cap = &init.cap;
        // The sizes of a receive queue mean nothing if a shared one takes its place.
        let own = init.srq.is_none();
        for (applies, what, asked, limit) in [
            (true, "max_send_wr", cap.max_send_wr, limits.max_qp_wr),
            (own, "max_recv_wr", cap.max_recv_wr, limits.max_qp_wr),
            (true, "max_send_sge", cap.max_send_sge, limits.max_sge),
            (own, "max_recv_sge", cap.max_recv_sge, limits.max_sge),
            (true, "max_inline_data", cap.max_inline_data, limits.max_inline_data),
        ] {
            if applies && asked > limit {
                let (asked, limit) = (asked.into(), limit.into());
                return Err(VerbsError::LimitExceeded { what, asked, limit });
            }
        }
        room(self.qps.len(), "queue pairs", limits.max_qp)?;
        if qpn.value() <= 1 || qpn == Qpn::MULTICAST || self.qps.contains(qpn) {
            return Err(VerbsError::Busy {
                what: format!("QP number {qpn} is in use or reserved"),
            });
        }
        init.send_cq.tell_overflow_to(&self.doorbells);
        init.recv_cq.tell_overflow_to(&self.doorbells);
        let doorbells = Arc::clone(&self.doorbells);
        let handle = Arc::new(QpHandle::new(qpn, init, doorbells, limits.max_message)?);
        let src_port = self.config.source_port.of(qpn, self.created);
        let mut qp = Qp::new(Arc::clone(&handle), src_port);
        debug_assert_eq!(qp.state(), QpState::Reset, "IBTA 11.2.5.1");
        debug_assert_eq!(handle.qpn(), qpn);
        qp.scheduled.list = self.ready.list_of(src_port);
        self.created = self.created.wrapping_add(1);
        self.qps.insert(qpn, qp);
        Ok(handle)
    }

    /// Changes the attributes of a QP that `mask` names. IBTA 11.2.5.2.
    ///
    /// # Errors
    /// The transition, the mask or a value is not allowed; nothing is changed then.
    pub fn modify_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        let limits = self.send_limits();
        let qp = self.qps.get_mut(qpn).ok_or_else(|| unknown(qpn))?;
        let guard = self.memory.guard();
        let mut ctx = Ctx::new(now, &guard, &mut self.events, limits);
        qp.modify(&mut ctx, &self.config, attr, mask)?;
        let peer = qp.peer();
        self.peers.connect(&mut qp.scheduled, peer);
        debug_assert_eq!(peer.is_some(), qp.scheduled.peer != 0, "a connected QP has a peer");
        drop(guard);
        self.schedule(qpn);
        self.fail_behind_overflow(now);
        Ok(())
    }

    /// Returns the attributes of a QP. IBTA 11.2.5.3.
    ///
    /// # Errors
    /// There is no such QP.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpAttr, VerbsError> {
        self.qps.get(qpn).map(Qp::query).ok_or_else(|| unknown(qpn))
    }

    /// Destroys a QP. Posted requests are dropped without completions, and completions that were not
    /// polled yet are removed, as on hardware. Later packets to the QP are dropped. Its type 2 memory
    /// windows are unbound.
    ///
    /// # Errors
    /// There is no such QP.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let mut qp = self.qps.remove(qpn).ok_or_else(|| unknown(qpn))?;
        self.timers.disarm(&mut qp.scheduled.timer, qpn);
        self.peers.connect(&mut qp.scheduled, None);
        self.events.forget(qpn);
        self.groups.retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
        qp.reset(&self.memory.guard());
        debug_assert!(!self.qps.contains(qpn) && qp.deadline().is_none());
        debug_assert_eq!((qp.scheduled.peer, qp.scheduled.timer), (0, None));
        Ok(())
    }

    /// Creates an address handle for datagrams. The handle copies the addresses, so it stays valid when
    /// the GID table changes. IBTA 11.2.2.1.
    ///
    /// # Errors
    /// The GID index or the peer's GID is not valid, or their address families differ.
    pub fn create_ah(
        &self,
        pd: PdId,
        av: &AddressVector,
    ) -> Result<Arc<AddressHandle>, VerbsError> {
        // Datagrams leave with the source port of their QP.
        let net = address(&self.config, av, 0)?;
        Ok(Arc::new(AddressHandle { pd, net }))
    }

    /// Attaches a UD QP to a multicast group. The caller joins the group on the interface.
    /// IBTA 11.3.1.
    ///
    /// # Errors
    /// There is no such QP, it is not UD, the address is not that of a group, or there are as many
    /// groups, or QPs in this one, as the device allows.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let qp = self.qps.get(qpn).ok_or_else(|| unknown(qpn))?;
        if qp.identity.service != QpType::Ud {
            return Err(VerbsError::InvalidRequest { why: "only UD QPs can join groups" });
        }
        if !group.to_ip().is_multicast() {
            return Err(VerbsError::InvalidRequest {
                why: "the GID is not that of a multicast group",
            });
        }
        let limits = &self.config.limits;
        let members = self.groups.get(&group).map_or(&[][..], |members| &members[..]);
        if members.contains(&qpn) {
            return Ok(());
        }
        room(members.len(), "queue pairs in a multicast group", limits.max_mcast_qp_attach)?;
        if members.is_empty() {
            room(self.groups.len(), "multicast groups", limits.max_mcast_grp)?;
        }
        let total = self.groups.values().map(Vec::len).sum();
        room(total, "attachments to multicast groups", limits.max_total_mcast_qp_attach)?;
        self.groups.entry(group).or_default().push(qpn);
        debug_assert!(self.groups.values().all(|members| !members.is_empty()));
        Ok(())
    }

    /// Detaches a QP from a multicast group.
    ///
    /// # Errors
    /// The QP is not attached to the group.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let not_attached =
            || VerbsError::UnknownObject { what: format!("QP {qpn} in group {}", group.to_ip()) };
        let members = self.groups.get_mut(&group).ok_or_else(not_attached)?;
        let at = members.iter().position(|&member| member == qpn).ok_or_else(not_attached)?;
        members.swap_remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    /// Returns the groups that QPs are attached to, and that must be joined on the interface.
    pub fn multicast_groups(&self) -> impl Iterator<Item = Gid> + '_ {
        self.groups.keys().copied()
    }

    /// Returns the number of QPs.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Returns the state of a QP; `None` if there is no QP of that number.
    pub fn qp_state(&self, qpn: Qpn) -> Option<QpState> {
        self.qps.get(qpn).map(|qp| qp.state())
    }

    /// Returns a QP's message sequence number: how many messages of its peer are complete, modulo 2²⁴.
    /// `None` if there is no such QP, or its service is not reliable. IBTA 9.7.5.1.4.
    pub fn qp_msn(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).and_then(Qp::msn)
    }

    /// Excuses peers that did not respond because the caller did not run for a while, until `now`.
    /// Outstanding requests get their whole timeout again, but each try only once. Called after
    /// everything that has arrived was handled, and before [`Engine::handle_timeout`].
    pub fn excuse_silence(&mut self, now: Time) {
        for qpn in self.timers.qps() {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.excuse(now);
            }
        }
    }

    /// Handles all timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.timers.next().is_none_or(|next| next > now) {
            return;
        }
        let limits = self.send_limits();
        let Self { qps, memory, events, timers, peers, ready, more_than_acks, .. } = self;
        // The deadline of a QP may have moved since its timer was armed; then the timer is armed anew.
        let mut guard = None;
        while let Some(qpn) = timers.pop_due(now) {
            let Some(qp) = qps.get_mut(qpn) else { continue };
            qp.scheduled.timer = None;
            if qp.deadline().is_some_and(|deadline| deadline <= now) {
                let guard = guard.get_or_insert_with(|| memory.guard());
                qp.handle_timeout(&mut Ctx::new(now, guard, events, limits));
            }
            *more_than_acks |= schedule(qp, limits, ready, timers, peers);
        }
        debug_assert!(self.timers.next().is_none_or(|next| next > now), "all that is due is done");
        drop(guard);
        self.fail_behind_overflow(now);
    }

    /// Returns whether [`Engine::poll_transmit`] has nothing but acknowledgements to send. A caller that
    /// is about to post may delay them: they then leave together with the request, and do not delay a
    /// program that waits for the completion. They must not wait for more than a few milliseconds,
    /// because the peer has a timeout.
    pub fn can_wait(&self) -> bool {
        let news = self.gsi.has_mail() || self.events.has_first_packets();
        !(self.more_than_acks || news) && self.doorbells.is_empty()
    }

    /// Returns when [`Engine::handle_timeout`] must be called. That call may find nothing to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes the oldest event. The newest 1,024 events are kept, and all that have an
    /// [`Event::affiliation`].
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.take()
    }

    /// Returns the engine's counters.
    pub fn counters(&self) -> &Counters {
        &self.events.counters
    }

    /// Moves all queue pairs that are not in RESET to the error state, because the device has failed.
    /// Posted requests complete as flushed. A second call flushes requests that were posted since the
    /// first. IBTA 11.6.3.
    pub fn fail_all(&mut self, now: Time) {
        self.take_doorbells();
        let limits = self.send_limits();
        let guard = self.memory.guard();
        for qp in self.qps.values_mut() {
            qp.fail(&mut Ctx::new(now, &guard, &mut self.events, limits));
        }
        // All QPs are in RESET or ERR: there is none left that an overflow could stop.
        self.events.overflowed = false;
        debug_assert!(
            self.qps.values_mut().all(|qp| matches!(qp.state(), QpState::Reset | QpState::Err))
        );
    }

    fn send_limits(&self) -> SendLimits {
        let Config { window_packets: packets, window_bytes: bytes, max_mtu, .. } = self.config;
        SendLimits { packets, bytes, peer_window: u32::MAX, max_mtu }
    }

    /// Stops the QPs that complete into an overflowed completion queue. Called after completions were
    /// added. The results of requests that complete there are lost, so their QPs go into the error state.
    #[inline]
    fn fail_behind_overflow(&mut self, now: Time) {
        if self.events.overflowed {
            self.fail_overflowed(now);
        }
    }

    #[cold]
    fn fail_overflowed(&mut self, now: Time) {
        let limits = self.send_limits();
        let guard = self.memory.guard();
        // Flushing adds completions, which may overflow another queue.
        let Self { qps, events, ready, timers, peers, more_than_acks, .. } = self;
        while std::mem::take(&mut events.overflowed) {
            for qp in qps.values_mut() {
                if qp.fail_if_overflowed(&mut Ctx::new(now, &guard, events, limits)) {
                    *more_than_acks |= schedule(qp, limits, ready, timers, peers);
                }
            }
        }
    }

    /// Puts a QP that was just called into the ready list and the timers, if it has work or a deadline.
    fn schedule(&mut self, qpn: Qpn) {
        let limits = self.send_limits();
        if let Some(qp) = self.qps.get_mut(qpn) {
            let Self { ready, timers, peers, .. } = self;
            self.more_than_acks |= schedule(qp, limits, ready, timers, peers);
        }
    }
}

/// Puts a QP that was just called into the ready list and the timers, if it has work or a deadline.
/// Returns whether it has more to send than acknowledgements.
fn schedule(
    qp: &mut Qp,
    limits: SendLimits,
    ready: &mut Ready,
    timers: &mut Timers,
    peers: &mut Peers,
) -> bool {
    let weight = qp.inflight_weight();
    peers.set_weight(&mut qp.scheduled, weight);
    debug_assert!(qp.scheduled.inflight_weight == weight || qp.scheduled.peer == 0);
    let work = qp.work(limits);
    if work.any {
        ready.push(&mut qp.scheduled, qp.identity.qpn);
    }
    debug_assert!(qp.scheduled.ready || !work.any, "a QP with work is in the list");
    if let Some(deadline) = qp.deadline() {
        timers.arm(&mut qp.scheduled.timer, deadline, qp.identity.qpn);
        debug_assert!(qp.scheduled.timer.is_some_and(|at| at <= deadline), "it is called in time");
    }
    work.more_than_acks
}

/// Checks that one more object fits `limit`.
fn room(have: usize, what: &'static str, limit: u32) -> Result<(), VerbsError> {
    let free = have < limit as usize;
    free.then_some(()).ok_or(VerbsError::TooMany { what, limit })
}

fn unknown(qpn: Qpn) -> VerbsError {
    VerbsError::UnknownObject { what: format!("QP {qpn}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Completion, CompletionQueue, RecvRequest, Status};
    use crate::types::QpCap;
    use crate::wire::{DropReason, NetHeader, TxBatch, TxLimits};

    #[test]
    fn one_overflow_that_leads_to_another_stops_all_behind_both() {
        let mut engine = Engine::new(Config::default(), Arc::default());
        let cqs: Vec<_> = (0..8).map(|_| Arc::new(CompletionQueue::new(1, None))).collect();
        // Each QP flushes its receives into the queue where the next QP completes its sends.
        let between = |i: usize| [&cqs[i], &cqs[i + 1]];
        let qps: Vec<_> = (0..7).map(|i| unconnected(&mut engine, 0x10, between(i))).collect();
        fail(&mut engine, &qps[0]);
        let states: Vec<_> = qps.iter().map(|qp| qp.state()).collect();
        assert_eq!(states, [QpState::Err; 7]);
    }

    #[test]
    fn an_overflow_stops_also_the_queue_pairs_of_other_engines() {
        let mut engines = [(); 3].map(|()| Engine::new(Config::default(), Arc::default()));
        let [small, other] = [1, 64].map(|depth| Arc::new(CompletionQueue::new(depth, None)));
        let [a, b, c] = &mut engines;
        let first = unconnected(a, 0x10, [&small, &small]);
        let behind = unconnected(b, 0x20, [&other, &small]);
        let beside = unconnected(c, 0x30, [&other, &other]);
        // This engine is dropped immediately: its doorbells can no longer be rung.
        unconnected(&mut Engine::new(Config::default(), Arc::default()), 0x40, [&small, &small]);
        fail(a, &first);
        let states = || [&first, &behind, &beside].map(|qp| qp.state());
        assert_eq!(states(), [QpState::Err, QpState::Init, QpState::Init], "not by engine a");
        assert_eq!([&*b, &*c].map(Engine::has_transmit_work), [true, false]);
        b.poll_transmit(Time::ZERO, &mut TxBatch::new(TxLimits::default()));
        assert_eq!(states(), [QpState::Err, QpState::Err, QpState::Init]);
        assert!(b.doorbells().is_empty());
    }

    #[test]
    fn a_queue_pair_that_fails_behind_an_overflow_gives_its_share_of_the_way_back() {
        let mut pair = crate::testing::Pair::new();
        pair.fate = Box::new(|_| 0);
        let remote = pair.b.remote(0);
        pair.a.post(1, crate::queue::SendOp::Write { remote, imm: None }, 0, 200_000);
        pair.run_until_idle();
        let qpn = pair.a.qp.qpn();
        let weight = |engine: &Engine| engine.qps.get(qpn).unwrap().scheduled.inflight_weight;
        assert!(weight(&pair.a.engine) > 0);
        let other = Completion::new(0, Status::Success, qpn, Time::ZERO);
        while pair.a.cq.push(other).is_ok() {}
        pair.run_until_idle();
        assert_eq!((pair.a.qp.state(), weight(&pair.a.engine)), (QpState::Err, 0));
    }

    #[test]
    fn a_frame_may_hold_more_packets_than_there_are_identifications() {
        let mut engine = Engine::new(Config::default(), Arc::default());
        let bytes = [0; 0x1_0040];
        let frame = Frame { segment: 1, ..Frame::single(NetHeader::default(), &bytes) };
        engine.handle_frame(Time::ZERO, &frame);
        assert_eq!(engine.counters().dropped(DropReason::Truncated), bytes.len() as u64);
    }

    #[test]
    fn a_device_that_fails_flushes_what_was_posted_and_what_is_posted_then() {
        let mut engine = Engine::new(Config::default(), Arc::default());
        let [cq, small] = [64, 1].map(|depth| Arc::new(CompletionQueue::new(depth, None)));
        let first = unconnected(&mut engine, 0x10, [&cq, &cq]);
        let second = unconnected(&mut engine, 0x10, [&cq, &small]);
        engine.fail_all(Time::ZERO);
        assert_eq!([&first, &second].map(|qp| qp.state()), [QpState::Err; 2]);
        assert_eq!((cq.len(), small.is_overflowed()), (2, true));
        first.post_recv(RecvRequest::default()).unwrap();
        engine.fail_all(Time::ZERO);
        assert_eq!(cq.len(), 3);
        let flushed = || cq.poll().map(|done| (done.qpn, done.status));
        let expected = (first.qpn(), Status::WorkRequestFlushed);
        assert!(std::iter::from_fn(flushed).all(|done| done == expected));
    }

    /// Creates a queue pair in INIT with two receives that completes into the two queues. Its number is
    /// the first free one from `qpn` on.
    fn unconnected(
        engine: &mut Engine,
        qpn: u32,
        [send_cq, recv_cq]: [&Arc<CompletionQueue>; 2],
    ) -> Arc<QpHandle> {
        let init = QpInit {
            service: QpType::Uc,
            pd: PdId(1),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            cap: QpCap::default(),
            srq: None,
            xrcd: None,
            sq_sig_all: false,
        };
        let free = (qpn..).map(Qpn::from_wire).find(|&qpn| !engine.qps.contains(qpn)).unwrap();
        let qp = engine.create_qp(free, init).unwrap();
        let mask = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let attr = QpAttr { qp_state: QpState::Init, ..QpAttr::default() };
        engine.modify_qp(Time::ZERO, free, &attr, AttrMask::STATE | mask).unwrap();
        (0..2).for_each(|_| qp.post_recv(RecvRequest::default()).unwrap());
        qp
    }

    fn fail(engine: &mut Engine, qp: &QpHandle) {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        engine.modify_qp(Time::ZERO, qp.qpn(), &attr, AttrMask::STATE).unwrap();
    }
}

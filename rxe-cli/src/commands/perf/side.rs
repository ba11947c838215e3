//! The objects of one side of a measurement: memory, queue pairs, a completion queue.

use std::cell::OnceCell;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::mem::Access;
use rxe_core::qp::QpCap;
use rxe_core::queue::{Completion, Remote, SendRequest, Sge, Status};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu};
use rxe_verbs::{
    AddressHandle, CompletionQueue, ConnectOptions, Device, Endpoint, MemoryRegion, Qpn, QueuePair,
    Request,
};

use super::control::Ends;
use super::plan::{Atomic, Kind, Op, Plan, Transport};
use super::stats::Packets;
use crate::common::{Error, Opened};

/// The options that each side decides for itself.
pub(super) struct Needs {
    /// Whether to sleep instead of polling.
    pub(super) events: bool,
    pub(super) timeout: u8,
}

/// One side of a measurement.
pub(super) struct Side {
    pub(super) qps: Vec<QueuePair>,
    pub(super) cq: CompletionQueue,
    /// The memory region. Messages are sent from the first half and received into the second.
    pub(super) mr: MemoryRegion,
    pub(super) events: bool,
    device: Device,
    timeout: AckTimeout,
    outs: u8,
    half: usize,
    /// The number of bytes in front of a received message.
    front: usize,
    /// The peer's memory, known once connected.
    remote: OnceCell<Remote>,
    /// The destination of each queue pair's datagrams, known once connected.
    to: OnceCell<Vec<(AddressHandle, Qpn)>>,
}

/// The most completions to take at a time.
pub(super) const BATCH: usize = 64;

/// The time to sleep between two checks for a message of the peer.
pub(super) const NAP: Duration = Duration::from_millis(50);

/// The bit that the IDs of receives have, and those of sends do not.
const RECV: u64 = 1 << 63;

/// The time without a packet after which a waiting side fails.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of polls between two checks of the clock.
const POLLS: u32 = 16;

impl Side {
    /// Creates the queue pairs in INIT, and posts receives if the plan needs them.
    pub(super) fn new(opened: &Opened, plan: &Plan, needs: &Needs) -> Result<Self, Error> {
        let device = &opened.device;
        let pd = device.create_pd()?;
        let cq = device.create_cq(plan.cq_depth().max(16))?;
        // Atomics need 8-byte alignment; 64 is a multiple.
        let half = plan.largest().next_multiple_of(64);
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let front = plan.transport.front();
        let mr = pd.register(half + front + half, Access::LOCAL_WRITE | remote)?;
        let cap = QpCap {
            max_send_wr: plan.tx_depth,
            max_recv_wr: plan.rx_depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline,
        };
        let service = plan.transport.service();
        let make = |_| pd.qp(&cq).service(service).cap(cap).gid_index(opened.gid_index).build();
        let qps = (0..plan.qps).map(make).collect::<Result<Vec<_>, _>>()?;
        let side = Self {
            qps,
            cq,
            mr,
            events: needs.events,
            device: device.clone(),
            timeout: AckTimeout::new(needs.timeout).unwrap_or_default(),
            outs: plan.outs,
            half,
            front,
            remote: OnceCell::new(),
            to: OnceCell::new(),
        };
        for (at, qp) in side.qps.iter().enumerate() {
            qp.to_init(remote)?;
            if plan.op == Op::Send {
                (0..plan.rx_depth).try_for_each(|_| side.post_receive(at))?;
            }
        }
        Ok(side)
    }

    /// Returns the addresses and the memory to report to the peer.
    pub(super) fn ends(&self) -> Ends {
        Ends {
            qps: self.qps.iter().map(|qp| qp.endpoint().to_string()).collect(),
            addr: self.mr.addr(),
            rkey: self.mr.rkey().value(),
        }
    }

    /// Returns the GID of the peer's first queue pair. Fails if the peer has another number of
    /// them.
    pub(super) fn peer_gid(&self, ends: &Ends) -> Result<Gid, Error> {
        if ends.qps.len() != self.qps.len() {
            let what =
                format!("the peer made {} queue pairs, not {}", ends.qps.len(), self.qps.len());
            return Err(Error::new(what, "is it of the same release?"));
        }
        let first = ends.qps.first().map(|text| text.parse::<Endpoint>()).transpose()?;
        Ok(first.map_or(Gid::ZERO, |end| end.gid))
    }

    /// Brings all queue pairs to RTS, and records the peer's memory and address handles.
    pub(super) fn connect(&self, ends: &Ends, mtu: Mtu) -> Result<(), Error> {
        self.peer_gid(ends)?;
        let options = ConnectOptions {
            mtu: Some(mtu),
            timeout: self.timeout,
            max_rd_atomic: self.outs,
            max_dest_rd_atomic: self.outs,
            ..ConnectOptions::default()
        };
        let mut to = Vec::new();
        for (qp, peer) in self.qps.iter().zip(&ends.qps) {
            let peer: Endpoint = peer.parse()?;
            if qp.service() == Transport::Ud.service() {
                qp.activate()?;
                to.push((qp.pd().create_ah_to(peer.gid)?, peer.qpn));
            } else {
                qp.connect(&peer, &options)?;
            }
        }
        // Setting cannot fail, because a side is connected only once.
        let _ = self.to.set(to);
        let _ = self.remote.set(Remote { addr: ends.addr, rkey: Key::new(ends.rkey) });
        Ok(())
    }

    /// Builds a request of the plan's operation, unsignaled and with ID 0.
    pub(super) fn request(&self, plan: &Plan, size: u32, qp: usize) -> Result<SendRequest, Error> {
        let to = self.to.get().and_then(|all| all.get(qp));
        let qp = &self.qps[qp];
        let local = self.source(size);
        let remote = self.landing();
        let request = match (plan.op, plan.atomic) {
            (Op::Send, _) => qp.send(0, &[local]),
            (Op::Write, _) => qp.write(0, &[local], remote),
            (Op::Read, _) => qp.read(0, &[local], remote),
            (Op::Atomic, Atomic::FetchAndAdd) => qp.fetch_add(0, local, remote, 1),
            (Op::Atomic, Atomic::CmpAndSwap) => qp.compare_swap(0, local, remote, 0, 1),
        };
        let request = match to {
            Some((ah, qpn)) => request.to(ah, *qpn, qp.qkey()),
            None => request,
        };
        Ok(self.inlined(plan, size, request.unsignaled()).build()?)
    }

    fn inlined<'q>(&self, plan: &Plan, size: u32, request: Request<'q>) -> Request<'q> {
        let copied = matches!(plan.op, Op::Send | Op::Write) && size <= plan.inline;
        if copied { request.inline() } else { request }
    }

    fn source(&self, size: u32) -> Sge {
        self.mr.slice(..size as usize)
    }

    /// Returns the place in the peer's memory that messages go to.
    fn landing(&self) -> Remote {
        let Remote { addr, rkey } =
            self.remote.get().copied().unwrap_or(Remote { addr: 0, rkey: Key::new(0) });
        Remote { addr: addr.wrapping_add(self.half as u64), rkey }
    }

    /// Returns the byte at `at` of the place that the peer's messages go to.
    pub(super) fn landed(&self, at: usize) -> Result<u8, Error> {
        let mut byte = [0];
        self.mr.read_at(self.half + self.front + at, &mut byte)?;
        Ok(byte[0])
    }

    /// Zeroes the place that the peer's messages go to.
    pub(super) fn clear_landing(&self, size: u32) -> Result<(), Error> {
        Ok(self.mr.write_at(self.half, &vec![0; size as usize])?)
    }

    /// Returns the number of complete UC messages received since the device was opened.
    pub(super) fn came_whole(&self) -> u64 {
        self.device.counters().rcvd_uc_msgs
    }

    /// Returns the packets that the device has sent since it was opened.
    pub(super) fn packets(&self) -> Packets {
        Packets::of(&self.device.counters())
    }

    /// Appends available completions to the empty `batch`, at most [`BATCH`]. With
    /// [`Side::events`], sleeps up to [`NAP`] until there are some.
    pub(super) fn poll(&self, batch: &mut Vec<Completion>) -> Result<usize, Error> {
        if !self.events {
            return Ok(self.cq.poll(BATCH, |done| batch.push(done))?);
        }
        batch.extend(self.wait(NAP)?);
        // Those that have come together with it.
        while !self.cq.is_empty() && batch.len() < BATCH {
            batch.extend(self.cq.poll_one()?);
        }
        Ok(batch.len())
    }

    /// Returns the next completion, if there is one, and fails if it is an error. With
    /// [`Side::events`], sleeps up to `nap` until there is one.
    #[inline]
    pub(super) fn poll_one(&self, nap: Duration) -> Result<Option<Completion>, Error> {
        let done = if self.events { self.wait(nap)? } else { self.cq.poll_one()? };
        if let Some(done) = &done {
            self.check(done)?;
        }
        Ok(done)
    }

    /// Sleeps up to `nap` until there is a completion.
    fn wait(&self, nap: Duration) -> Result<Option<Completion>, Error> {
        match self.cq.wait_one(nap) {
            Ok(done) => Ok(Some(done)),
            Err(rxe_verbs::Error::TimedOut { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Posts a receive on this queue pair.
    pub(super) fn post_receive(&self, qp: usize) -> Result<(), Error> {
        let into = self.mr.slice(self.half..);
        Ok(self.qps[qp].recv(RECV | qp as u64, &[into])?)
    }

    /// Returns the queue pair of a receive's completion; `None` for a send's.
    pub(super) fn receive_of(&self, done: &Completion) -> Option<usize> {
        let qp = usize::try_from(done.id & !RECV).ok()?;
        (done.id & RECV != 0 && qp < self.qps.len()).then_some(qp)
    }

    /// Fails if a completion is an error.
    pub(super) fn check(&self, done: &Completion) -> Result<(), Error> {
        if done.status == Status::Success {
            return Ok(());
        }
        let what = format!("a request failed: {} ({})", done.status, done.status.code());
        // Dropped packets do not explain a failure, because they arrived after it.
        let last = self.device.explain().into_iter().rfind(|line| !line.starts_with("dropped"));
        let last = last.map(|l| format!("; last seen here: {l}"));
        Err(Error::new(what, format!("{}{}", done.status.meaning(), last.unwrap_or_default())))
    }

    pub(super) fn is_latency_by_memory(plan: &Plan) -> bool {
        (plan.op, plan.kind) == (Op::Write, Kind::Lat)
    }
}

/// Detects, at little cost, that a peer is silent for too long.
#[derive(Default)]
pub(super) struct Watchdog {
    polls: u32,
    since: Option<Instant>,
    /// The device's packet count when the time limit last expired.
    packets: Option<u64>,
}

impl Watchdog {
    /// Records a poll without a completion. Returns whether it is time to check for messages of the
    /// peer. If `waiting`, fails if the peer has been silent for too long.
    pub(super) fn polled(&mut self, side: &Side, waiting: bool) -> Result<bool, Error> {
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS) {
            return Ok(false);
        }
        // The peer may need this CPU to answer.
        thread::yield_now();
        self.slept(side, waiting)
    }

    /// Like [`Watchdog::polled`], for a sleep without a completion. Always returns true.
    pub(super) fn slept(&mut self, side: &Side, waiting: bool) -> Result<bool, Error> {
        if !waiting {
            *self = Self { polls: self.polls, ..Self::default() };
        } else if self.is_silent(Instant::now(), || side.device.counters().rcvd_pkts) {
            let what = format!("nothing came from the peer for {} s", PEER_TIMEOUT.as_secs());
            let todo = "is it still running, and does the network carry UDP port 4791?";
            return Err(Error::new(what, todo));
        }
        Ok(true)
    }

    /// Returns whether no packet has arrived within the time limit.
    /// Packets count, not completions: on a slow network, one completion for many requests may take
    /// longer. The packet counter is behind a lock, so it is read only when the time limit expires.
    fn is_silent(&mut self, now: Instant, packets: impl FnOnce() -> u64) -> bool {
        if now.duration_since(*self.since.get_or_insert(now)) <= PEER_TIMEOUT {
            return false;
        }
        let packets = Some(packets());
        self.since = Some(now);
        std::mem::replace(&mut self.packets, packets) == packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_silent_when_no_packets_come_and_not_when_requests_take_long() {
        let (start, mut watchdog) = (Instant::now(), Watchdog::default());
        let mut silent = |limits: u32, packets| {
            let now = start + limits * PEER_TIMEOUT + Duration::from_millis(limits.into());
            watchdog.is_silent(now, || packets)
        };
        assert!(!silent(0, 7));
        // These packets may have arrived before the first check.
        assert!(!silent(1, 7));
        assert!(!silent(2, 8) && !silent(3, 9));
        assert!(silent(4, 9));
    }
}

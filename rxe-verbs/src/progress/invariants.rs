//! Checks the invariants of [`super::policy`] with random programs on a whole shard. Time is
//! virtual: it passes while a program thinks, while packets are sent and received, and while the
//! process does not run. The driver runs exactly when its timer fires, and when a packet arrives
//! while it sleeps on the sockets.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::qp::{QpAttr, QpCap, QpHandle, QpInit, QpType};
use rxe_core::queue::{CompletionQueue, Payload, Remote, SendFlags, SendOp, SendRequest, Sge};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Psn, Qpn, Time};
use rxe_core::wire::{
    Aeth, Bth, Ext, Frame, NetHeader, Opcode, Packet, Position, Reth, TxBatch, TxLimits, emit,
};
use rxe_net::{Backend, Capabilities, NetError, Rng, SendStatus, SrcPort};
use rxe_sys::{EventFd, SharedFd};

use super::policy::{
    AckPolicy, BATCHES_IN_TIME, MAX_POST_WAIT, MAX_REPLY_WAIT, MAX_STREAM_WAIT, Post,
    ReplyPredictor, TICK,
};
use super::shard::{Shard, ShardParts};
use super::testing::ready_to_send;
use crate::event::{AsyncEvents, Events};
use crate::os::{Environment, Simulation};

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// The time of a call, apart from what a policy allows it.
const SLACK: Duration = Duration::from_micros(10);
/// The size of a batch in bytes, so small that a transfer takes many batches.
const BATCH_BYTES: u32 = 16 << 10;
/// The time to send a full batch.
const BATCH_TIME: Duration = Duration::from_micros(20);
/// The most batches of a turn, and one more that ends it.
const MAX_SENDS: u32 = 16 + 1;
/// The longest turn: 250 µs, the step that began within this time, and the end of the turn.
const TURN: Duration = Duration::from_micros(250 + 2 * 20 + 10);
const BULK: u32 = 4 << 20;
const BASE: u64 = 0x10_0000;

/// The host, and the network behind its sockets.
struct Host(Mutex<State>);

struct State {
    now: Time,
    /// When the driver's timer fires.
    wake: Time,
    /// The driver sleeps on the sockets.
    watched: bool,
    /// How long the process did not run in total, and when it last continued.
    stopped: Duration,
    resumed: Time,
    /// Packets on their way to this host, in the order of their arrival.
    arrivals: BTreeMap<(Time, u64), Arrival>,
    count: u64,
    peer: Peer,
    /// Calls of the backend that sent something.
    sends: u32,
    /// Polls of the backend.
    receives: u32,
    /// The number of received messages. `owed` has one entry for each whose acknowledgement has not
    /// left: when it was read, and the value of `stopped` then.
    messages: u32,
    owed: Vec<(Time, Duration)>,
    /// When the first packet of each request left, and the value of `stopped` then. There is a list
    /// for each queue pair; `World::look` empties it.
    begun: [VecDeque<(Time, Duration)>; 3],
    /// Packets of the bulk transfer that have not left yet.
    bulk: usize,
    broken: Option<String>,
}

/// The peer.
struct Peer {
    address: IpAddr,
    round_trip: Duration,
    /// Answers each new request with a message.
    echoes: bool,
    /// Receives requests and sends nothing.
    silent: bool,
    /// The PSN of the peer's next message, and of the next new request to it.
    psn: Psn,
    expected: Psn,
}

enum Arrival {
    Ack(Psn),
    Message,
}

/// The numbers and services of the queue pairs. The last one is for bulk transfers.
const QPS: [(u32, QpType); 3] = [(17, QpType::Rc), (19, QpType::Uc), (21, QpType::Uc)];

impl State {
    fn arrives(&mut self, after: Duration, what: Arrival) {
        self.count += 1;
        self.arrivals.insert((self.now + after, self.count), what);
    }

    /// Handles a packet that leaves this host.
    fn leaves(&mut self, packet: &Packet<'_>) {
        let to = packet.dest_qp().value();
        let Some(at) = QPS.iter().position(|(own, _)| own + 1 == to) else {
            self.broken = Some(format!("a packet to QP {to}"));
            return;
        };
        if !packet.info().is_request {
            for (since, stopped) in std::mem::take(&mut self.owed) {
                let waited = self.now.since(since).saturating_sub(self.stopped - stopped);
                if waited > TICK + 2 * TURN {
                    self.broken = Some(format!("an acknowledgement waited for {waited:?}"));
                }
            }
            return;
        }
        if at == 2 {
            self.bulk -= 1;
        }
        let first = matches!(packet.info().position, Position::First | Position::Only);
        let is_new = at > 0 || packet.psn() == self.peer.expected;
        if at == 0 && is_new {
            self.peer.expected = self.peer.expected.next();
        }
        if first && is_new {
            self.begun[at].push_back((self.now, self.stopped));
        }
        if at > 0 || self.peer.silent {
            return;
        }
        if packet.ack_req() {
            self.arrives(self.peer.round_trip, Arrival::Ack(packet.psn()));
        }
        if self.peer.echoes && is_new {
            self.arrives(self.peer.round_trip, Arrival::Message);
        }
    }

    /// Takes the next packet that has arrived, as the socket delivers it.
    fn read(&mut self) -> Option<(NetHeader, Vec<u8>)> {
        let entry = self.arrivals.first_entry().filter(|entry| entry.key().0 <= self.now)?;
        let ((at, _), what) = entry.remove_entry();
        let late = self.now.since(at.max(self.resumed));
        if late > TICK + 2 * TURN {
            self.broken = Some(format!("a packet was read {late:?} after it came"));
        }
        let qpn = Qpn::from_wire(QPS[0].0);
        let (bth, ext) = match what {
            Arrival::Ack(psn) => {
                let ext = Ext { aeth: Some(Aeth::ack(0)), ..Ext::default() };
                (Bth::new(Opcode::RC_ACKNOWLEDGE, qpn, psn), ext)
            }
            Arrival::Message => {
                self.messages += 1;
                self.owed.push((self.now, self.stopped));
                let bth = Bth::new(Opcode::RC_WRITE_ONLY, qpn, self.peer.psn);
                self.peer.psn = self.peer.psn.next();
                let ext = Ext { reth: Some(Reth::default()), ..Ext::default() };
                (Bth { ack_req: true, ..bth }, ext)
            }
        };
        let net = NetHeader::outgoing(self.peer.address, OWN, 0xc000);
        let mut bytes = Vec::new();
        emit::packet_from(&net, &mut bytes, &bth, &ext, &[]);
        Some((net, bytes))
    }
}

impl Simulation for Host {
    fn now(&self) -> Time {
        self.0.lock().now
    }

    fn random(&self) -> u64 {
        4
    }

    fn wake_at(&self, at: Time) {
        self.0.lock().wake = at;
    }

    fn advance(&self, _: Time) -> bool {
        unreachable!("no program sleeps here")
    }

    fn id(&self) -> u64 {
        1
    }

    fn runs_to_completion(&self) -> bool {
        false
    }
}

/// A backend that leads to the virtual network.
struct Wire(Arc<Host>, Capabilities);

impl Backend for Wire {
    fn capabilities(&self) -> &Capabilities {
        &self.1
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let mut packets = Vec::new();
        {
            let mut state = self.0.0.lock();
            state.receives += 1;
            state.now = state.now + Duration::from_nanos(200);
            while packets.len() < budget
                && let Some(packet) = state.read()
            {
                packets.push(packet);
            }
        }
        packets.iter().for_each(|(net, bytes)| sink(&Frame::single(*net, bytes)));
        Ok(packets.len())
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let mut state = self.0.0.lock();
        state.sends += 1;
        for frame in batch.frames() {
            for (_, bytes) in frame.packets() {
                state.leaves(&Packet::parse(bytes).expect("the engine's"));
            }
            let part =
                u32::try_from(frame.payload.len()).map_or(BATCH_BYTES, |n| n.min(BATCH_BYTES));
            state.now = state.now + BATCH_TIME * part / BATCH_BYTES + SLACK / 40;
        }
        batch.clear();
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(&SharedFd)) {}

    fn counters(&self) -> rxe_net::Counters {
        rxe_net::Counters::default()
    }

    fn watch(&mut self, on: bool) {
        self.0.0.lock().watched = on;
    }
}

/// A request that has not left yet.
struct Waiting {
    posted: Time,
    stopped: Duration,
}

/// A program and its shard.
struct World {
    host: Arc<Host>,
    shard: Shard,
    rng: Rng,
    cq: Arc<CompletionQueue>,
    qps: [Arc<QpHandle>; 3],
    predictor: ReplyPredictor,
    key: Key,
    waiting: [VecDeque<Waiting>; 3],
    /// What [`DoorbellBatching`](super::policy) may know: the number of posts in a row that belong
    /// to a stream, the time of the last one, whether the program has polled since, and when
    /// requests began to wait.
    stream: u32,
    last: Time,
    polled: bool,
    began: Option<Time>,
    /// An upper bound of the batches in a row that left before the driver's timer fired.
    in_time: u32,
    /// The number of posts at most 50 µs after a message was read, and of posts after any message.
    answered: u32,
    rounds: u32,
    seen: u32,
    read: Time,
    /// Acknowledgements never wait: the policy is `Prompt`, or the peer is on this host.
    acks_at_once: bool,
    /// How often each situation of [`MUST_MEET`] occurred.
    met: [u64; MUST_MEET.len()],
}

/// Situations that must occur in the runs, or the runs prove nothing about them.
const MUST_MEET: [&str; 9] = [
    "a post that waits for company",
    "as many as leave in one call",
    "posts that the driver sends",
    "acknowledgements that wait",
    "a post that waits for an answer",
    "a post that must leave",
    "a turn that is cut short",
    "a process that does not run",
    "a peer that says nothing",
];

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let policy = if rng.below(4) == 0 { AckPolicy::Prompt } else { AckPolicy::Adaptive };
        let local = rng.below(4) == 0;
        let peer = Peer {
            address: if local { OWN } else { PEER },
            round_trip: Duration::from_micros(2 + rng.below(40)),
            echoes: false,
            silent: false,
            psn: Psn::ZERO,
            expected: Psn::ZERO,
        };
        let now = Time::ZERO + Duration::from_secs(1);
        let state = State {
            now,
            wake: Time::MAX,
            watched: false,
            stopped: Duration::ZERO,
            resumed: now,
            arrivals: BTreeMap::new(),
            count: 0,
            peer,
            sends: 0,
            receives: 0,
            messages: 0,
            owed: Vec::new(),
            begun: [const { VecDeque::new() }; 3],
            bulk: 0,
            broken: None,
        };
        let host = Arc::new(Host(Mutex::new(state)));
        let limits = TxLimits { batch_bytes: BATCH_BYTES as usize, ..TxLimits::default() };
        let capabilities = Capabilities {
            name: "virtual",
            link_mtu: 1500,
            tx: limits,
            src_port: SrcPort::Any,
            recv_buffer: 0,
            qpn_block: None,
        };
        let memory = Arc::new(Memory::new());
        let buffer = Buffer::zeroed(BULK as usize);
        let key = memory.register(PdId(1), buffer, BASE, Access::LOCAL_WRITE, || 0x100);
        let asyncs = Arc::new(AsyncEvents::new(Arc::new(EventFd::new().expect("a descriptor"))));
        let config = Config { gids: vec![OWN.into()], ..Config::default() };
        let shard = Shard::new(ShardParts {
            device: "virtual".into(),
            engine: Engine::new(config, memory),
            backend: Box::new(Wire(Arc::clone(&host), capabilities)),
            events: Events::new(Arc::clone(&asyncs), None, None),
            asyncs,
            acks: policy,
            realtime: false,
            environment: Environment::Simulated(Arc::clone(&host) as Arc<dyn Simulation>),
        });
        let shard = shard.expect("a shard");
        let cq = Arc::new(CompletionQueue::new(1 << 16, None));
        let to = host.0.lock().peer.address;
        let qps = QPS.map(|(qpn, service)| connect(&shard, qpn, service, to, &cq));
        Self {
            host,
            shard,
            rng,
            cq,
            qps,
            predictor: ReplyPredictor::default(),
            key: key.expect("memory"),
            waiting: [const { VecDeque::new() }; 3],
            stream: 0,
            last: Time::ZERO,
            polled: false,
            began: None,
            in_time: 0,
            answered: 0,
            rounds: 0,
            seen: 0,
            read: Time::ZERO,
            acks_at_once: local || policy == AckPolicy::Prompt,
            met: [0; MUST_MEET.len()],
        }
    }

    fn met(&mut self, what: usize) {
        self.met[what] += 1;
    }

    fn now(&self) -> Time {
        self.host.0.lock().now
    }

    fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.rng.below(to - from))
    }

    /// Calls `f`, and checks how long the turn was.
    fn call<R>(&mut self, allowed: Duration, f: impl FnOnce(&mut Self) -> R) -> R {
        let (began, sends) = {
            let state = self.host.0.lock();
            (state.now, state.sends)
        };
        let result = f(self);
        let state = self.host.0.lock();
        let (took, sends) = (state.now.since(began), state.sends - sends);
        let turns = allowed == Duration::ZERO;
        assert!(!turns || sends <= MAX_SENDS, "a turn of {sends} batches");
        let limit = allowed + TURN;
        assert!(took <= limit, "a call took {took:?}");
        assert_eq!(state.broken, None);
        drop(state);
        if turns && sends > 8 {
            self.met(6);
        }
        self.look();
        result
    }

    /// Like [`World::call`], for a call of the program. A long turn hands the lock over, so the
    /// driver runs afterwards if it is due.
    fn program<R>(&mut self, allowed: Duration, f: impl FnOnce(&mut Self) -> R) -> R {
        let began = self.now();
        let waited = self.unsent() > 0;
        let result = self.call(allowed, f);
        self.in_time += u32::from(waited && self.unsent() == 0);
        let now = self.now();
        if now.since(began) > TURN / 4 {
            self.run_until(now);
        }
        result
    }

    /// Checks which requests have left, and how long they have waited.
    fn look(&mut self) {
        let mut state = self.host.0.lock();
        for at in 0..3 {
            while let Some((left, stopped)) = state.begun[at].pop_front() {
                let request = self.waiting[at].pop_front().expect("it was posted");
                let waited = left.since(request.posted);
                let waited = waited.saturating_sub(stopped - request.stopped);
                let limit = self.max_wait() + SLACK;
                assert!(state.bulk > 0 || waited <= limit, "a request waited for {waited:?}");
            }
        }
    }

    /// Returns how long requests may wait.
    fn max_wait(&self) -> Duration {
        (MAX_POST_WAIT * (1 << (self.in_time / BATCHES_IN_TIME).min(8))).min(MAX_STREAM_WAIT)
    }

    /// Returns the number of requests that have not left.
    fn unsent(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Returns whether a bulk transfer is in progress. Meanwhile other requests wait longer.
    fn is_busy(&self) -> bool {
        self.host.0.lock().bulk > 0
    }

    /// Runs the driver whenever it is due until this time.
    fn run_until(&mut self, until: Time) {
        loop {
            let (next, timer) = {
                let mut state = self.host.0.lock();
                let arrival = state.arrivals.keys().next().map(|(at, _)| *at);
                let arrival = arrival.filter(|_| state.watched).unwrap_or(Time::MAX);
                let next = state.wake.min(arrival).max(state.now);
                if next > until {
                    state.now = state.now.max(until);
                    return;
                }
                state.now = next;
                let timer = state.wake <= next;
                if timer {
                    state.wake = Time::MAX;
                }
                (next, timer)
            };
            let waited = self.unsent() > 0;
            self.call(Duration::ZERO, |world| world.shard.drive(timer).expect("it goes on"));
            assert!(self.host.0.lock().owed.is_empty(), "the driver lets acknowledgements wait");
            if waited && !self.is_busy() {
                assert_eq!(self.unsent(), 0, "the driver lets requests wait");
                self.met(2);
                if self.began.is_some_and(|began| next.since(began) >= self.max_wait()) {
                    (self.stream, self.in_time) = (0, 0);
                } else {
                    self.in_time += 1;
                }
            }
            self.began = None;
        }
    }

    fn think(&mut self, time: Duration) {
        let until = self.now() + time;
        self.run_until(until);
    }

    /// Stops the process for a time. Sometimes stops the whole network too, so that packets on
    /// their way are late.
    fn stop(&mut self, time: Duration) {
        self.met(7);
        let whole = time > Duration::from_millis(20) && self.rng.below(2) == 0;
        let mut state = self.host.0.lock();
        if whole {
            let arrivals = std::mem::take(&mut state.arrivals).into_iter();
            state.arrivals = arrivals.map(|((at, n), what)| ((at + time, n), what)).collect();
        }
        state.now = state.now + time;
        state.stopped += time;
        state.resumed = state.now;
    }

    fn poll(&mut self) {
        let before = self.host.0.lock().messages;
        self.program(Duration::ZERO, |world| world.shard.turn_if_free(|_| ()).expect("it goes on"));
        self.polled = true;
        self.began = None;
        while self.cq.poll().is_some() {}
        if self.is_busy() {
            return;
        }
        assert_eq!(self.unsent(), 0, "requests wait after a poll");
        let state = self.host.0.lock();
        if state.messages > before {
            self.read = state.now;
        }
        if !state.owed.is_empty() {
            assert!(!self.acks_at_once, "acknowledgements wait");
            assert!(self.answered >= 8, "acknowledgements wait after {} answers", self.answered);
            drop(state);
            self.met(3);
        }
    }

    /// Calls a verb that takes the lock, or arms a completion queue.
    fn verb(&mut self, arms: bool) {
        self.program(Duration::ZERO, |world| {
            let shard = &world.shard;
            if arms { shard.serve_sleeper() } else { shard.with(|_| ()) }.expect("it goes on");
        });
        self.began = None;
        let state = self.host.0.lock();
        assert!(!arms || state.watched, "nobody would wake who sleeps now");
        let busy = state.bulk > 0;
        drop(state);
        assert!(busy || self.unsent() == 0, "requests wait after a verb");
    }

    /// Posts like `QueuePair`. `packets`: the number of packets that the post claims to have.
    fn post(&mut self, at: usize, packets: u32, solicited: bool) {
        let qp = Arc::clone(&self.qps[at]);
        if qp.sends_outstanding() >= 100 {
            return self.poll();
        }
        let mut request =
            SendRequest::new(0, SendOp::Send { imm: None }, Payload::Sges([].as_slice().into()));
        if solicited {
            request.flags |= SendFlags::SOLICITED;
        }
        qp.post_send(request).expect("there is room");
        self.posted_to(
            at,
            Post { packets, requests: 1, must_leave: solicited, ..Post::default() },
            true,
        );
    }

    fn posted_to(&mut self, at: usize, post: Post, answers: bool) {
        let (now, stopped, messages, receives, busy) = {
            let state = self.host.0.lock();
            (state.now, state.stopped, state.messages, state.receives, state.bulk > 0)
        };
        // The policy may take this post for an answer, and for a round of a ping-pong by memory
        // polling.
        if messages != std::mem::replace(&mut self.seen, messages) {
            self.rounds += 1;
        }
        if now.since(self.read) <= Duration::from_micros(50) {
            self.answered += 1;
            self.read = Time::ZERO;
        }
        let others = self.unsent();
        self.waiting[at].push_back(Waiting { posted: now, stopped });
        let in_memory = answers && at == 0 && self.host.0.lock().peer.echoes;
        let must_leave = post.must_leave || in_memory && self.predictor.is_ping_pong();
        let alone = QPS[at].1 == QpType::Rc && self.qps[at].sends_outstanding() <= post.requests;
        let post = Post { must_leave, ..post }.on(&self.qps[at]);
        let awaited = self.program(MAX_REPLY_WAIT, |world| {
            if world.shard.posted(&post) && in_memory {
                world.shard.await_reply(world.qps[at].qpn(), &mut world.predictor);
            }
            world.host.0.lock().receives > receives
        });
        if awaited {
            assert!(self.rounds >= 8, "a post waits for an answer after {} rounds", self.rounds);
            self.met(4);
            self.polled = true;
        }
        if self.host.0.lock().messages > messages {
            self.read = self.now();
        }
        if busy || self.is_busy() {
            // During a transfer, assume that the policy has seen a stream.
            (self.stream, self.began) = (8, None);
            return;
        }
        let waits = self.unsent() > 0;
        let state = self.host.0.lock();
        assert!(waits || awaited || state.owed.is_empty(), "acknowledgements wait after a post");
        drop(state);
        if post.must_leave || post.packets >= Post::MAX_PACKETS {
            assert!(!waits, "{post:?} waits");
            self.met(5);
            self.began = None;
            return;
        }
        assert!(self.unsent() < Post::MAX_PACKETS as usize, "{} requests wait", self.unsent());
        if waits && others > 0 {
            self.met(0);
            return;
        }
        if others > 0 {
            // A full batch leaves; posting it took long.
            self.met(1);
            (self.last, self.polled, self.began) = (now, true, None);
            return;
        }
        let polled = std::mem::take(&mut self.polled);
        let follows = now.since(self.last) <= Duration::from_micros(10);
        self.last = now;
        if polled && !follows && alone {
            assert!(!waits, "a request waits, and nothing is on its way");
            return;
        }
        self.stream = if polled || follows { self.stream + 1 } else { 0 };
        if waits {
            assert!(self.stream >= 8, "a request waits that is number {} of a stream", self.stream);
            self.met(0);
            self.began = Some(now);
        }
    }

    /// Posts 4 MiB.
    fn bulk(&mut self) {
        if self.is_busy() {
            return;
        }
        let sge = Sge { addr: BASE, length: BULK, lkey: self.key };
        let remote = Remote { addr: 0, rkey: Key::new(1) };
        let payload = Payload::Sges([sge].into_iter().collect());
        let request = SendRequest::new(0, SendOp::Write { remote, imm: None }, payload);
        self.host.0.lock().bulk = BULK as usize / 1024;
        self.qps[2].post_send(request).expect("there is room");
        self.posted_to(2, Post { packets: BULK / 1024, requests: 1, ..Post::default() }, false);
    }

    /// Runs one random part of a program.
    fn live(&mut self) {
        let length = 10 + self.rng.below(60);
        let echoes = |world: &Self, on| world.host.0.lock().peer.echoes = on;
        match self.rng.below(9) {
            // A stream, with occasional polls.
            0..3 => {
                let at = self.rng.index(2);
                let gap = [0, 400, 3_000, 12_000][self.rng.index(4)];
                let odds = [40, 2_000][self.rng.index(2)];
                for _ in 0..3 * length {
                    let packets = if self.rng.below(odds) == 0 { 64 } else { 1 };
                    let solicited = self.rng.below(odds) == 0;
                    self.post(at, packets, solicited);
                    let gap = Duration::from_nanos(self.rng.below(gap + 1));
                    self.think(gap);
                    if self.rng.below(odds) == 0 {
                        self.poll();
                    }
                }
            }
            // A ping-pong: the program polls the completion queue or its memory.
            3..5 => {
                let polls = self.rng.below(2) == 0;
                echoes(self, true);
                for _ in 0..length {
                    if self.qps[0].sends_outstanding() > 50 {
                        self.think(Duration::from_micros(100));
                    }
                    let before = self.host.0.lock().messages;
                    if polls {
                        self.qps[0].post_send(empty()).expect("there is room");
                        self.posted_to(
                            0,
                            Post { packets: 1, requests: 1, ..Post::default() },
                            false,
                        );
                    } else {
                        self.post(0, 1, false);
                    }
                    for _ in 0..400 {
                        if self.host.0.lock().messages > before {
                            break;
                        }
                        if polls { self.poll() } else { self.think(Duration::from_nanos(500)) }
                    }
                    let pause = if self.rng.below(20) == 0 { 200_000 } else { 3_000 };
                    let pause = Duration::from_nanos(self.rng.below(pause));
                    self.think(pause);
                }
                echoes(self, false);
            }
            // Occasional calls.
            5 => {
                for _ in 0..length {
                    let pause = self.micros(0, 2_000);
                    self.think(pause);
                    match self.rng.below(5) {
                        0..2 => {
                            let at = self.rng.index(2);
                            self.post(at, 1, false);
                        }
                        2 => self.poll(),
                        what => self.verb(what == 3),
                    }
                }
            }
            // Messages arrive while the program polls or computes.
            6 => {
                for _ in 0..length {
                    let after = self.micros(1, 500);
                    self.host.0.lock().arrives(after, Arrival::Message);
                    for _ in 0..self.rng.below(200) {
                        self.poll();
                    }
                    let pause = self.micros(1, 1_500);
                    self.think(pause);
                }
            }
            // A long transfer with other calls in between.
            7 => {
                self.bulk();
                for _ in 0..length {
                    match self.rng.below(4) {
                        0 => self.poll(),
                        1 => self.verb(false),
                        2 => {
                            let at = self.rng.index(2);
                            self.post(at, 1, false);
                        }
                        _ => {
                            let pause = self.micros(1, 300);
                            self.think(pause);
                        }
                    }
                }
                self.think(Duration::from_millis(100));
                assert!(!self.is_busy(), "the driver goes on with what was cut short");
            }
            // The process does not run for a while.
            _ => {
                self.post(0, 1, false);
                let time = self.micros(100, 400_000);
                self.stop(time);
                if self.rng.below(2) == 0 {
                    self.poll();
                }
                // Each try gets its full timeout again only once, so the answer must arrive before
                // the next stop.
                self.think(Duration::from_millis(1));
            }
        }
    }

    /// Checks that everything has left, and that nothing wakes the driver any more.
    fn end(&mut self) {
        self.think(Duration::from_secs(1));
        let timeouts = |world: &Self| world.shard.counters().0.ack_timeout;
        assert_eq!(timeouts(self), 0, "the peer has always answered");
        if self.rng.below(4) == 0 {
            // This comes last, because after a loss a queue pair delays requests by itself.
            self.host.0.lock().peer.silent = true;
            self.post(0, 1, true);
            self.think(Duration::from_millis(12));
            self.host.0.lock().peer.silent = false;
            self.think(Duration::from_secs(1));
            assert!(timeouts(self) > 0, "a timer did not run");
            self.met(8);
        }
        while self.cq.poll().is_some() {}
        assert_eq!(self.qps.each_ref().map(|qp| qp.sends_outstanding()), [0; 3], "unfinished");
        let state = self.host.0.lock();
        assert!(state.owed.is_empty() && state.arrivals.is_empty());
        assert!(state.watched && state.wake == Time::MAX, "an idle process does not sleep");
        drop(state);
    }
}

fn empty() -> SendRequest {
    SendRequest::new(0, SendOp::Send { imm: None }, Payload::Sges([].as_slice().into()))
}

/// Creates a queue pair in RTS. Its peer has the next number.
fn connect(
    shard: &Shard,
    number: u32,
    service: QpType,
    peer: IpAddr,
    cq: &Arc<CompletionQueue>,
) -> Arc<QpHandle> {
    let init = QpInit {
        service,
        pd: PdId(1),
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        cap: QpCap { max_send_wr: 128, ..QpCap::default() },
        srq: None,
        xrcd: None,
        sq_sig_all: true,
    };
    let mut attr = QpAttr {
        path_mtu: Mtu::M1024,
        dest_qp_num: Qpn::from_wire(number + 1),
        qp_access_flags: Access::REMOTE_WRITE,
        timeout: AckTimeout::new(10).expect("4 ms"),
        retry_cnt: 7,
        ..QpAttr::default()
    };
    attr.ah_attr.dgid = Gid::from(peer);
    let made = shard.with(|core| {
        let qp = core.engine.create_qp(Qpn::from_wire(number), init)?;
        ready_to_send(&mut core.engine, Time::ZERO, qp.qpn(), service, attr)?;
        Ok::<_, rxe_core::VerbsError>(qp)
    });
    made.expect("the shard is there").expect("a queue pair")
}

const SEEDS: u64 = 100;
const STRETCHES: usize = 30;

#[test]
fn random_programs_find_every_invariant_of_the_policy_held() {
    let mut met = [0; MUST_MEET.len()];
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STRETCHES).for_each(|_| world.live());
            world.end();
            world.met
        });
        let run = run.unwrap_or_else(|_| panic!("the program of seed {seed} fails (see above)"));
        (0..met.len()).for_each(|what| met[what] += run[what]);
    }
    for (what, count) in MUST_MEET.iter().zip(met) {
        println!("{what}: {count}");
        assert!(count > 0, "no program has met {what}");
    }
}

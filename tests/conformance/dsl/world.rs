//! The engine under test: one engine with one QP, and memory with several keys. The script is the peer.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::{Config, Engine, Event, RetryCause};
use rxe_core::mem::{Access, Binding, Buffer, Memory, PdId, WindowType};
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    CompletionQueue, Payload, RecvRequest, SendFlags, SendRequest, Sge, SharedReceiveQueue,
    XrcDomain,
};
use rxe_core::types::{AckTimeout, Gid, Key, Psn, Qkey, Qpn, Time};
use rxe_core::wire::{NetHeader, OpKind, Opcode, Packet, Syndrome, icrc};

use super::bystander::Bystander;
use super::case::{Answer, Async, Case, Given, Piece, Step};
use super::packet::{self, Pkt};
use super::road::Road;

/// The first PSN that the QP expects, close to the wraparound.
pub(crate) const RQ_PSN: u32 = 0xff_fffd;
/// The first PSN that the QP sends.
pub(crate) const SQ_PSN: u32 = 0x00_0100;
/// The numbers of the QP and its peer, in the QPN range of the first process on an address.
pub(crate) const QPN: u32 = 0x1_0012;
pub(crate) const PEER_QPN: u32 = 0x1_0011;
pub(crate) const QKEY: Qkey = Qkey::new(0x1111_1111);

/// The address of the memory, and its length in bytes.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY: u64 = 0x4_0000;
/// The initial value of every byte of memory.
pub(crate) const FILL: u8 = 0x11;
/// The offsets of the program's local buffers.
pub(crate) const SOURCE: u64 = 0x8000;
pub(crate) const LOCAL: u64 = 0x1_0000;
/// The offset of the probe, the WRITE at the end of every case.
const PROBE: u64 = 0x3_f000;

/// The key of the region of all memory, with all rights.
pub(crate) const ALL: Key = Key::new(0x0100_0001);
/// Keys of the same memory with fewer rights.
pub(crate) const READ_ONLY: Key = Key::new(0x0200_0002);
pub(crate) const WRITE_ONLY: Key = Key::new(0x0300_0003);
pub(crate) const NO_ATOMIC: Key = Key::new(0x0400_0004);
pub(crate) const LOCAL_ONLY: Key = Key::new(0x0500_0005);
/// The key of a region with all rights in another protection domain.
pub(crate) const OTHER_PD: Key = Key::new(0x0600_0006);
/// The key of a region that is deregistered before the case begins.
pub(crate) const DEREGISTERED: Key = Key::new(0x0700_0007);
/// Key 0, which a peer sends if it forgets to set the key.
pub(crate) const KEY_0: Key = Key::new(0);
pub(crate) const KEY_ONES: Key = Key::new(u32::MAX);
/// A key that was never registered.
pub(crate) const UNKNOWN: Key = Key::new(0x0800_0008);

/// Memory windows with the rights to READ and WRITE 256 bytes at [`WINDOW_AT`]: type 1; type 2,
/// bound on the QP under test; type 2, bound on another QP; and an unbound one.
pub(crate) const WINDOW_1: Key = Key::new(0x0a00_0001);
pub(crate) const WINDOW_2: Key = Key::new(0x0b00_0001);
pub(crate) const WINDOW_OTHER_QP: Key = Key::new(0x0c00_0001);
pub(crate) const WINDOW_UNBOUND: Key = Key::new(0x0d00_0000);
pub(crate) const WINDOW_AT: u64 = 0x1000;
/// The region that the windows are bound to.
pub(crate) const BINDABLE: Key = Key::new(0x0900_0009);

/// The number of the shared receive queue, and of a second one of the XRC domain in another
/// protection domain.
pub(crate) const SRQ: u32 = 7;
const OTHER_SRQ: u32 = 8;

pub(super) const PD: PdId = PdId(1);
const PD2: PdId = PdId(2);

/// Returns the offset of receive `id`.
pub(crate) const fn recv_at(id: u64) -> u64 {
    0x2_0000 + id * 0x2000
}

/// Runs a case over `road`. Returns what is wrong, in words; empty if the case passes.
pub(crate) fn judge(case: &Case, road: &mut dyn Road) -> Vec<String> {
    let mut world = World::new(&case.given, road);
    for step in &case.script {
        world.step(step);
    }
    let mut wrong = world.wrong.clone();
    let expect = &case.expect;
    compare(&mut wrong, "answers", &expect.answers, &world.answers);
    if let Some(requests) = &expect.requests {
        compare(&mut wrong, "requests", requests, &world.requests);
    }
    let done: Vec<_> = std::iter::from_fn(|| world.cq.poll()).collect();
    let fits = done.len() == expect.completions.len()
        && done.iter().zip(&expect.completions).all(|(done, want)| {
            done.id == want.id
                && done.status == want.status
                && want.len.is_none_or(|len| done.byte_len == len)
                && want.op.is_none_or(|op| done.op == op)
        });
    if !fits {
        let done: Vec<_> = done.iter().map(|d| (d.id, d.status, d.op, d.byte_len)).collect();
        wrong.push(format!("completions: want {:?}, got {done:?}", expect.completions));
    }
    let mut drops = expect.drops.clone();
    drops.sort_by_key(|&(reason, _)| reason.index());
    let dropped: Vec<_> = world.engine.counters().drops().collect();
    compare(&mut wrong, "drops", &drops, &dropped);
    world.take_events();
    compare(&mut wrong, "retries", &expect.retries, &world.retries);
    compare(&mut wrong, "events", &expect.events, &world.events);
    let state = expect.state.unwrap_or(case.given.state);
    if world.engine.qp_state(world.qp.qpn()).is_some() {
        compare(&mut wrong, "state", &state, &world.qp.state());
    }
    world.check_memory(case, &mut wrong);
    if !world.other_cq.is_empty() {
        wrong.push("a completion came to the other shared queue's CQ".into());
    }
    if wrong.is_empty() && !expect.no_probe {
        world.probe(case, state, &mut wrong);
    }
    let overflowed = world.events.contains(&Async::CqOverflow);
    wrong.extend(world.bystander.check(overflowed, &world.buffer).map(String::from));
    wrong
}

fn compare<T: PartialEq + Debug>(wrong: &mut Vec<String>, what: &str, want: &T, got: &T) {
    if want != got {
        wrong.push(format!("{what}: want {want:?}, got {got:?}"));
    }
}

struct World<'r> {
    road: &'r mut dyn Road,
    engine: Engine,
    memory: Arc<Memory>,
    buffer: Buffer,
    cq: Arc<CompletionQueue>,
    srq: Option<Arc<SharedReceiveQueue>>,
    /// The completion queue of the second shared receive queue.
    other_cq: Arc<CompletionQueue>,
    qp: Arc<QpHandle>,
    bystander: Bystander,
    /// The network header of the peer's packets.
    net: NetHeader,
    now: Time,
    answers: Vec<Answer>,
    requests: Vec<(Opcode, i32)>,
    retries: Vec<RetryCause>,
    events: Vec<Async>,
    wrong: Vec<String>,
}

impl<'r> World<'r> {
    fn new(given: &Given, road: &'r mut dyn Road) -> Self {
        let memory = Arc::new(Memory::new());
        let size = usize::try_from(MEMORY).expect("a small number");
        let buffer = Buffer::zeroed(size);
        buffer.span(0, MEMORY).expect("all of it").write(&vec![FILL; size]).expect("mapped");
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        for (key, pd, access) in [
            (ALL, PD, all),
            (READ_ONLY, PD, Access::LOCAL_WRITE | Access::REMOTE_READ),
            (WRITE_ONLY, PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            (NO_ATOMIC, PD, all - Access::REMOTE_ATOMIC),
            (LOCAL_ONLY, PD, Access::LOCAL_WRITE),
            (OTHER_PD, PD2, all),
            (BINDABLE, PD, all | Access::MW_BIND),
            (DEREGISTERED, PD, all),
        ] {
            let made = memory.register(pd, buffer.clone(), BASE, access, || key.value());
            assert_eq!(made, Ok(key), "the catalogue chooses its keys");
        }
        assert!(memory.deregister(DEREGISTERED));
        make_windows(&memory);
        let (own, peer): (IpAddr, IpAddr) = if given.v6 {
            ("fd00::2".parse().unwrap(), "fd00::1".parse().unwrap())
        } else {
            ([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
        };
        let gids = vec![Gid::from(own)];
        let mut engine = Engine::new(Config { gids, ..Config::default() }, Arc::clone(&memory));
        let cq = Arc::new(CompletionQueue::new(given.cq_depth, None));
        let other_cq = Arc::new(CompletionQueue::new(16, None));
        let is_xrc = given.service == QpType::XrcRecv;
        let shared = |number, pd, cq| Arc::new(SharedReceiveQueue::new_xrc(number, pd, 16, 2, cq));
        let xrcd = is_xrc.then(|| Arc::new(XrcDomain::new()));
        let srq = (given.srq.is_some() || is_xrc).then(|| {
            let other_pd = given.srq.is_some_and(|srq| srq.other_pd);
            shared(SRQ, if other_pd { PD2 } else { PD }, Arc::clone(&cq))
        });
        if let (Some(domain), Some(srq)) = (&xrcd, &srq) {
            let other = shared(OTHER_SRQ, PD2, Arc::clone(&other_cq));
            let sge = Sge { addr: BASE + recv_at(14), length: 4096, lkey: OTHER_PD };
            let sges = [sge].into_iter().collect();
            other.post_recv(RecvRequest { id: 14, sges }).expect("posted");
            assert!(domain.add(Arc::clone(srq)) && domain.add(other));
        }
        let init = QpInit {
            service: given.service,
            pd: PD,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            cap: QpCap::default(),
            srq: srq.clone().filter(|_| !is_xrc),
            xrcd,
            sq_sig_all: false,
        };
        let qp = engine.create_qp(own_qpn(), init).expect("a QP");
        let net = NetHeader::outgoing(peer, own, 0xc000);
        let bystander = Bystander::new(&memory, &buffer, &cq, net);
        let mut world = Self {
            road,
            engine,
            bystander,
            memory,
            buffer,
            cq,
            srq,
            other_cq,
            qp,
            net,
            now: Time::ZERO,
            answers: Vec::new(),
            requests: Vec::new(),
            retries: Vec::new(),
            events: Vec::new(),
            wrong: Vec::new(),
        };
        world.connect(given, peer);
        if let Some(group) = given.group {
            let gid = Gid::from(group.parse::<IpAddr>().expect("a group"));
            world.engine.attach_multicast(own_qpn(), gid).expect("attached");
        }
        for &(id, len) in &given.receives {
            world.receive(id, len, ALL);
        }
        if let (Some(srq), Some(given)) = (&world.srq, given.srq) {
            srq.set_limit(given.limit).expect("a limit");
        }
        world.take_events();
        world
    }

    /// Brings the QP to the initial state of the case.
    fn connect(&mut self, given: &Given, peer: IpAddr) {
        let attr = QpAttr {
            qp_access_flags: given.access,
            path_mtu: given.mtu,
            timeout: AckTimeout::new(10).expect("4 ms"),
            retry_cnt: given.retry_cnt,
            rnr_retry: given.rnr_retry,
            max_rd_atomic: given.max_rd_atomic,
            max_dest_rd_atomic: given.max_dest_rd_atomic,
            min_rnr_timer: given.rnr_timer,
            qkey: Qkey::new(given.qkey),
            rq_psn: Psn::new(RQ_PSN),
            sq_psn: Psn::new(SQ_PSN),
            dest_qp_num: Qpn::from_wire(PEER_QPN),
            ah_attr: AddressVector { dgid: Gid::from(peer), ..QpAttr::default().ah_attr },
            ..QpAttr::default()
        };
        let common = AttrMask::PKEY_INDEX | AttrMask::PORT;
        let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let requester = AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        let (init, rtr, rts) = match given.service {
            QpType::Ud => (common | AttrMask::QKEY, AttrMask::empty(), AttrMask::SQ_PSN),
            QpType::Uc => (common | AttrMask::ACCESS_FLAGS, path, AttrMask::SQ_PSN),
            QpType::XrcRecv => (
                common | AttrMask::ACCESS_FLAGS,
                path | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
                AttrMask::SQ_PSN | AttrMask::TIMEOUT,
            ),
            QpType::XrcSend => (common | AttrMask::ACCESS_FLAGS, path, requester),
            _ => (
                common | AttrMask::ACCESS_FLAGS,
                path | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
                requester,
            ),
        };
        let empty = AttrMask::empty();
        let way: &[(QpState, AttrMask)] = match given.state {
            QpState::Reset => &[],
            QpState::Init => &[(QpState::Init, init)],
            QpState::Rtr => &[(QpState::Init, init), (QpState::Rtr, rtr)],
            QpState::Rts => &[(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)],
            state => {
                &[(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts), (state, empty)]
            }
        };
        for &(qp_state, mask) in way {
            let attr = QpAttr { qp_state, ..attr };
            let mask = mask | AttrMask::STATE;
            self.engine.modify_qp(self.now, self.qp.qpn(), &attr, mask).expect("a transition");
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Packet(packet) => self.arrive([packet]),
            Step::Burst(packets) => self.arrive(packets),
            Step::Flood(times, packet) => self.arrive(std::iter::repeat_n(packet, *times)),
            Step::Post { id, op, list, .. } => {
                let payload = Payload::Sges(list.iter().map(sge).collect());
                let xrc_srq = (self.qp.init().service == QpType::XrcSend).then_some(SRQ);
                let flags = SendFlags::SIGNALED;
                let request = SendRequest::new(*id, *op, payload);
                let request = SendRequest { flags, xrc_srq, ..request };
                self.qp.post_send(request).expect("posted");
            }
            Step::Scatter { id, list } => {
                self.post_receive(RecvRequest { id: *id, sges: list.iter().map(sge).collect() });
            }
            &Step::Receive { id, len } => self.receive(id, len, ALL),
            &Step::ReceiveInto { id, len, key, .. } => self.receive(id, len, key),
            &Step::Wait(time) => self.wait(time),
            &Step::Deregister(key, _) => assert!(self.memory.deregister(key), "registered before"),
            &Step::Modify(qp_state) => {
                let attr = QpAttr { qp_state, ..QpAttr::default() };
                let mask = AttrMask::STATE;
                self.engine.modify_qp(self.now, self.qp.qpn(), &attr, mask).expect("a transition");
            }
            Step::Destroy => self.engine.destroy_qp(self.qp.qpn()).expect("destroyed"),
        }
        self.transmit();
    }

    /// Delivers packets before the QP may answer.
    fn arrive<'p>(&mut self, packets: impl IntoIterator<Item = &'p Pkt>) {
        let Self { road, engine, net, now, retries, events, .. } = self;
        let mut rendered = packets.into_iter().map(|packet| packet.render(*net, own_qpn()));
        road.bring(&mut rendered, &mut |frame| {
            engine.handle_frame(*now, frame);
            // The engine keeps only the newest 1,024 events.
            take_events(engine, retries, events);
        });
    }

    /// Posts a receive, to the shared receive queue if there is one.
    fn receive(&self, id: u64, length: u32, lkey: Key) {
        let sge = Sge { addr: BASE + recv_at(id), length, lkey };
        self.post_receive(RecvRequest { id, sges: [sge].into_iter().collect() });
    }

    fn post_receive(&self, request: RecvRequest) {
        match &self.srq {
            Some(srq) => srq.post_recv(request).expect("posted"),
            None => self.qp.post_recv(request).expect("posted"),
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.engine.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
            self.transmit();
        }
        self.now = end;
    }

    /// Lets the QP send everything that it may, and separates responses from requests.
    fn transmit(&mut self) {
        let mut sent = Vec::new();
        self.road.transmit(self.now, &mut self.engine, &mut |net, bytes| {
            sent.push((*net, bytes.to_vec()));
        });
        sent.iter().for_each(|(net, bytes)| self.sent(net, bytes));
        self.take_events();
    }

    fn sent(&mut self, net: &NetHeader, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return self.wrong.push("the QP sent something malformed".into());
        };
        let addressed = (net.src, net.dst) == (self.net.dst, self.net.src);
        if !addressed || packet.dest_qp().value() != PEER_QPN || icrc::check(net, bytes).is_err() {
            self.wrong.push(format!("the QP sent to somebody else, or damaged: {packet:?}"));
        }
        let relative = |base| packet.psn().diff(Psn::new(base));
        if packet.info().is_request {
            return self.requests.push((packet.opcode(), relative(SQ_PSN)));
        }
        let psn = relative(RQ_PSN);
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        let answer = match (packet.info().kind, syndrome) {
            (OpKind::Acknowledge, Some(Syndrome::Ack { .. })) => Answer::Ack(psn),
            (OpKind::Acknowledge, Some(Syndrome::Nak(code))) => Answer::Nak(code, psn),
            (OpKind::Acknowledge, Some(Syndrome::RnrNak { .. })) => Answer::Rnr(psn),
            (OpKind::ReadResponse, None | Some(Syndrome::Ack { .. })) => {
                Answer::Read(packet.info().position, psn, packet.payload().len())
            }
            (OpKind::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                Answer::Atomic(psn, packet.atomic_ack().unwrap_or_default())
            }
            (OpKind::Cnp, _) => Answer::Cnp,
            _ => Answer::Other(packet.opcode(), psn),
        };
        self.answers.push(answer);
    }

    fn take_events(&mut self) {
        take_events(&mut self.engine, &mut self.retries, &mut self.events);
    }

    /// Compares all of memory with what the case expects.
    fn check_memory(&self, case: &Case, wrong: &mut Vec<String>) {
        let size = usize::try_from(MEMORY).expect("a small number");
        let mut want = vec![FILL; size];
        let mut got = vec![0; size];
        self.buffer.span(0, MEMORY).expect("all of it").read(&mut got).expect("mapped");
        let range = |offset: u64, len: usize| {
            let start = usize::try_from(offset).expect("inside");
            start..start + len
        };
        for (offset, bytes) in &case.expect.wrote {
            want[range(*offset, bytes.len())].copy_from_slice(bytes);
        }
        for &(offset, len) in &case.expect.ignored {
            let range = range(offset, len);
            want[range.clone()].copy_from_slice(&got[range]);
        }
        let differs = want.iter().zip(&got).filter(|(want, got)| want != got).count();
        if let Some(at) = want.iter().zip(&got).position(|(want, got)| want != got) {
            let (want, got) = (want[at], got[at]);
            wrong.push(format!(
                "memory: {differs} bytes differ, the first at +0x{at:x}: want 0x{want:02x}, got \
                 0x{got:02x}"
            ));
        }
    }

    /// Checks that a QP that is not in the error state still executes a correct request at the next
    /// expected PSN.
    fn probe(&mut self, case: &Case, state: QpState, wrong: &mut Vec<String>) {
        let open = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let writes = case.given.access.contains(Access::REMOTE_WRITE);
        let ud = case.given.service == QpType::Ud;
        // An initiator accepts no requests.
        let takes = case.given.service != QpType::XrcSend && (writes || ud);
        if !open || !takes {
            return;
        }
        self.answers.clear();
        if ud {
            self.receive(
                15,
                100,
                if case.given.srq.is_some_and(|s| s.other_pd) { OTHER_PD } else { ALL },
            );
            self.arrive([&packet::datagram(4).qkey(case.given.qkey)]);
            if self.cq.poll().is_none_or(|done| done.status != rxe_core::queue::Status::Success) {
                wrong.push("afterwards: a good datagram is not received".into());
            }
            return;
        }
        let opcode = match case.given.service {
            QpType::Uc => Opcode::UC_WRITE_ONLY,
            QpType::XrcRecv => Opcode::XRC_WRITE_ONLY,
            _ => Opcode::RC_WRITE_ONLY,
        };
        let packet = packet::rdma(opcode, case.expect.next, 4, PROBE, 4).ask();
        self.arrive([&packet]);
        self.transmit();
        let mut got = [0; 4];
        self.buffer.span(PROBE, 4).expect("inside").read(&mut got).expect("mapped");
        if got[..] != packet::pattern(4) {
            wrong.push("afterwards: a good WRITE is not carried out".into());
        }
        let answers: &[Answer] = match case.given.service {
            QpType::Uc => &[],
            _ => &[Answer::Ack(case.expect.next)],
        };
        if self.answers != answers {
            wrong.push(format!("afterwards: want {answers:?} to a WRITE, got {:?}", self.answers));
        }
    }
}

fn own_qpn() -> Qpn {
    Qpn::from_wire(QPN)
}

fn take_events(engine: &mut Engine, retries: &mut Vec<RetryCause>, events: &mut Vec<Async>) {
    while let Some(event) = engine.poll_event() {
        match event {
            Event::Retry { cause, .. } => retries.push(cause),
            Event::CommunicationEstablished { .. } => events.push(Async::Established),
            Event::SrqLimitReached { .. } => events.push(Async::SrqLimit),
            Event::LastWqeReached { .. } => events.push(Async::LastWqe),
            Event::CqOverflow { .. } => events.push(Async::CqOverflow),
            _ => {}
        }
    }
}

fn sge(piece: &Piece) -> Sge {
    Sge { addr: BASE + piece.offset, length: piece.len, lkey: piece.key }
}

fn make_windows(memory: &Memory) {
    let (other, own) = (Qpn::from_wire(0x77), own_qpn());
    let create = |kind, key: Key| {
        let unbound = key.value() & !0xff;
        assert_eq!(memory.create_window(PD, kind, || unbound).value(), unbound);
        Key::new(unbound)
    };
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let binding = Binding { region: BINDABLE, addr: BASE + WINDOW_AT, length: 256, access };
    for (key, kind, qpn) in [
        (WINDOW_1, WindowType::Type1, own),
        (WINDOW_2, WindowType::Type2, own),
        (WINDOW_OTHER_QP, WindowType::Type2, other),
    ] {
        let window = create(kind, key);
        memory.guard().bind(PD, qpn, window, 1, binding).expect("bound");
        assert_eq!(memory.window_key(window), Some(key));
    }
    create(WindowType::Type2, WINDOW_UNBOUND);
}

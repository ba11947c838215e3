//! The engine with its queue pairs and memory, the steps, and the checks after each step.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Access, Binding, Buffer, Memory, PdId, WindowType};
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    AddressHandle, CompletionQueue, Datagram, Payload, Placement, RecvRequest, Remote, SendFlags,
    SendOp, SendRequest, Sge, SgeList, SharedReceiveQueue, Status, XrcDomain,
};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Psn, Qkey, Qpn, Time};
use rxe_core::wire::{Frame, Packet, TxBatch, TxLimits};

use crate::fuzz::input::Input;
use crate::fuzz::ladder::ladder;

pub(super) const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(super) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// The multicast group that the UD queue pair is attached to.
pub(super) const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
pub(super) const QKEY: Qkey = Qkey::new(0x1111);
pub(super) const SRQ: u32 = 7;
/// The first PSN of the peer's requests, close to the wraparound.
const THEIRS: Psn = Psn::new(0xff_fff8);
/// The first PSN of the engine's requests.
const OURS: Psn = Psn::new(0x00_1000);
pub(super) const MTU: usize = 256;
const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);

/// The length of a region in bytes: enough for READs of several packets.
pub(super) const LEN: u64 = 1600;
/// The range of a region to which the windows give access.
const WINDOW: std::ops::Range<u64> = 400..1200;

/// The regions, by the rights of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    /// All rights.
    Open,
    /// Only READ.
    ReadOnly,
    /// All rights, in another protection domain.
    Foreign,
    /// No rights, except through windows to a part of the region.
    Windowed,
    /// All rights, until the region is deregistered.
    Victim,
}

impl Area {
    const ALL: [Self; 5] =
        [Self::Open, Self::ReadOnly, Self::Foreign, Self::Windowed, Self::Victim];

    pub(super) const fn base(self) -> u64 {
        (self as u64 + 1) << 32
    }

    pub(super) const fn key(self) -> Key {
        Key::new((self as u32 + 1) << 16)
    }

    /// Returns whether the byte at `at` must never change.
    fn is_sealed(self, at: u64) -> bool {
        match self {
            Self::Open | Self::Victim => false,
            Self::ReadOnly | Self::Foreign => true,
            Self::Windowed => !WINDOW.contains(&at),
        }
    }
}

/// The keys of the windows: type 1 and type 2.
pub(super) const WINDOWS: [Key; 2] = [Key::new(0x0a_0001), Key::new(0x0b_0001)];

/// The initial value of every byte.
const FILL: u8 = 0x5a;

/// A queue pair of the engine, and what the peer knows of it.
pub(super) struct Target {
    pub(super) service: QpType,
    pub(super) qpn: Qpn,
    handle: Arc<QpHandle>,
    shared: bool,
    /// The PSN that an honest peer would send next.
    pub(super) theirs: Psn,
    /// The newest PSNs of the engine's requests.
    pub(super) ours: Vec<Psn>,
}

/// The queue that a request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Done,
    Qp(usize),
    Srq,
}

pub(super) struct World {
    engine: Engine,
    memory: Arc<Memory>,
    buffers: Vec<Buffer>,
    cqs: [Arc<CompletionQueue>; 2],
    srq: Arc<SharedReceiveQueue>,
    xrcd: Arc<XrcDomain>,
    ah: Arc<AddressHandle>,
    pub(super) targets: Vec<Target>,
    now: Time,
    batch: TxBatch,
    /// The queue of each request, by the request's ID.
    posted: Vec<Owner>,
}

impl World {
    pub(super) fn new() -> Self {
        let memory = Arc::new(Memory::new());
        let open = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let mut buffers = Vec::new();
        for area in Area::ALL {
            // The allocation has exactly this length, so AddressSanitizer detects any access beyond it.
            let buffer = Buffer::zeroed(LEN as usize);
            buffer.span(0, LEN).expect("all of it").write(&[FILL; LEN as usize]).expect("mapped");
            let (pd, access) = match area {
                Area::Open | Area::Victim => (PD, open),
                Area::ReadOnly => (PD, Access::REMOTE_READ),
                Area::Foreign => (OTHER_PD, open),
                Area::Windowed => (PD, Access::LOCAL_WRITE | Access::MW_BIND),
            };
            register(&memory, area, pd, access, &buffer);
            buffers.push(buffer);
        }
        let gids = vec![Gid::from(OWN)];
        let engine = Engine::new(Config { gids, ..Config::default() }, Arc::clone(&memory));
        let cqs = [256, 24].map(|depth| Arc::new(CompletionQueue::new(depth, None)));
        let srq = Arc::new(SharedReceiveQueue::new_xrc(SRQ, PD, 16, 3, Arc::clone(&cqs[0])));
        let xrcd = Arc::new(XrcDomain::new());
        assert!(xrcd.add(Arc::clone(&srq)));
        let av = AddressVector { dgid: Gid::from(PEER), ..QpAttr::default().ah_attr };
        let ah = engine.create_ah(PD, &av).expect("an address");
        let mut world = Self {
            engine,
            memory,
            buffers,
            cqs,
            srq,
            xrcd,
            ah,
            targets: Vec::new(),
            now: Time::from_nanos(1),
            batch: TxBatch::new(TxLimits { batch_bytes: 1 << 13, ..TxLimits::default() }),
            posted: Vec::new(),
        };
        for (service, shared) in [
            (QpType::Rc, false),
            (QpType::Rc, true),
            (QpType::Uc, false),
            (QpType::Ud, false),
            (QpType::XrcRecv, false),
            (QpType::XrcSend, false),
        ] {
            let index = world.targets.len();
            let handle = world.create(index, service, shared);
            let (qpn, theirs, ours) = (handle.qpn(), THEIRS, Vec::new());
            world.targets.push(Target { service, qpn, handle, shared, theirs, ours });
            world.connect(index);
        }
        let group = world.targets[3].qpn;
        assert_eq!(world.engine.attach_multicast(group, Gid::from(GROUP)), Ok(()));
        world.bind_windows();
        world
    }

    fn create(&mut self, index: usize, service: QpType, shared: bool) -> Arc<QpHandle> {
        let is_target = service == QpType::XrcRecv;
        let cq = &self.cqs[usize::from(service == QpType::Uc)];
        let init = QpInit {
            service,
            pd: if is_target { PdId(0) } else { PD },
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            cap: QpCap { max_send_wr: 12, max_recv_wr: 12, ..QpCap::default() },
            srq: shared.then(|| Arc::clone(&self.srq)),
            xrcd: is_target.then(|| Arc::clone(&self.xrcd)),
            sq_sig_all: false,
        };
        let qpn = Qpn::from_wire(0x100 + index as u32);
        self.engine.create_qp(qpn, init).expect("the number is free")
    }

    /// Brings a queue pair from RESET to RTS.
    fn connect(&mut self, index: usize) {
        let target = &mut self.targets[index];
        (target.theirs, target.ours) = (THEIRS, vec![OURS]);
        let mut attr = QpAttr {
            qp_access_flags: Access::all() - Access::ZERO_BASED,
            path_mtu: Mtu::M256,
            timeout: AckTimeout::new(8).expect("1 ms"),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            retry_cnt: 3,
            rnr_retry: 3,
            qkey: QKEY,
            rq_psn: THEIRS,
            sq_psn: OURS,
            dest_qp_num: Qpn::from_wire(0x200 + index as u32),
            ..QpAttr::default()
        };
        attr.ah_attr.dgid = Gid::from(PEER);
        let qpn = target.qpn;
        for (state, mask) in ladder(target.service) {
            attr.qp_state = state;
            assert_eq!(self.engine.modify_qp(self.now, qpn, &attr, mask), Ok(()));
        }
    }

    fn bind_windows(&mut self) {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let (region, addr) = (Area::Windowed.key(), Area::Windowed.base() + WINDOW.start);
        let length = WINDOW.end - WINDOW.start;
        for (key, kind) in WINDOWS.into_iter().zip([WindowType::Type1, WindowType::Type2]) {
            self.memory.destroy_window(key);
            let made = self.memory.create_window(PD, kind, || key.value());
            let binding = Binding { region, addr, length, access };
            let guard = self.memory.guard();
            assert_eq!(guard.bind(PD, self.targets[0].qpn, made, 1, binding), Ok(()));
        }
    }

    /// Does the next step, which the bytes choose.
    pub(super) fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=4 => {
                let arrival = self.packet(input);
                self.arrive(&arrival.frame());
            }
            5..=6 => self.message(input),
            7 => self.merged(input),
            8..=9 => self.send(input),
            10 => self.receive(input),
            11 => {
                let nanos = input.pick(&[1_000, 100_000, 1_100_000, 5_000_000, 100_000_000]);
                self.now = self.now + Duration::from_nanos(nanos);
                self.engine.handle_timeout(self.now);
                let next = self.engine.poll_timeout();
                assert!(next.is_none_or(|at| at > self.now), "what is due has been done");
            }
            12 => self.poll(),
            13 => self.modify(input),
            14 => self.memory(input),
            // Nothing: the engine does not send yet.
            _ => return,
        }
        if !input.chance(48) {
            self.transmit();
        }
    }

    pub(super) fn arrive(&mut self, frame: &Frame<'_>) {
        self.engine.handle_frame(self.now, frame);
    }

    /// Lets the engine send, and learns PSNs from its packets as a peer would.
    fn transmit(&mut self) {
        // The windows of all requesters, and the complete answers to all outstanding READs of all
        // responders.
        const LIMIT: usize = 6 * 256 + 2 * 6 * 4 * 8 + 100;
        let mut packets = 0;
        loop {
            self.engine.poll_transmit(self.now, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            for frame in self.batch.frames() {
                for (_, bytes) in frame.packets() {
                    packets += 1;
                    let packet = Packet::parse(bytes).expect("engines send well-formed packets");
                    learn(&mut self.targets, &packet);
                }
            }
            self.batch.clear();
            assert!(packets <= LIMIT, "{packets} packets for one step");
        }
        let events = std::iter::from_fn(|| self.engine.poll_event()).count();
        assert!(events <= 1024);
    }

    fn sges(input: &mut Input<'_>) -> SgeList {
        let mut list = SgeList::new();
        for _ in 0..input.pick(&[1, 1, 2, 0, 3, 5]) {
            let area = input.pick(&[Area::Open, Area::Open, Area::Victim, Area::Foreign]);
            let length = input.pick(&[8, 0, 1, 100, 256, 257, 700, LEN as u32, u32::MAX]);
            let at = input.pick(&[0, 0, 8, 3, LEN - 8]);
            let addr = if input.chance(8) { input.bits() } else { area.base() + at };
            let lkey = if input.chance(8) { Key::new(input.word()) } else { area.key() };
            list.push(Sge { addr, length, lkey });
        }
        list
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let index = input.index(self.targets.len());
        let remote = Remote { addr: input.pick(&[0x9000, 0, 0x9004, u64::MAX]), rkey: Key::new(1) };
        let window = input.pick(&WINDOWS);
        let binding = Binding {
            region: Area::Windowed.key(),
            addr: Area::Windowed.base() + WINDOW.start + input.pick(&[0, 100]),
            length: input.pick(&[100, 0, 300]),
            access: input.pick(&[Access::REMOTE_WRITE, Access::REMOTE_READ, Access::ZERO_BASED]),
        };
        let imm = input.chance(64).then_some(5);
        let op = match input.byte() % 10 {
            0 => SendOp::Send { imm },
            1 => SendOp::Write { remote, imm },
            2 => SendOp::Read { remote },
            3 => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            4 => SendOp::FetchAdd { remote, add: 1 },
            5 => SendOp::SendInvalidate { rkey: Key::new(input.word()) },
            6 => SendOp::AtomicWrite { remote },
            7 => {
                let (length, placement) = (8, Placement::GLOBAL);
                SendOp::Flush { remote, length, placement, whole_region: input.chance(128) }
            }
            8 => SendOp::BindWindow { window, new_key: input.byte(), binding },
            _ => SendOp::LocalInvalidate { key: window },
        };
        let payload = if op.is_atomic() {
            let sge = Sge { addr: Area::Open.base(), length: 8, lkey: Area::Open.key() };
            Payload::Sges([sge].into_iter().collect())
        } else if op.is_local() || matches!(op, SendOp::Flush { .. }) {
            Payload::Sges(SgeList::new())
        } else if input.chance(48) || matches!(op, SendOp::AtomicWrite { .. }) {
            Payload::Inline(input.pick(&[&b"12345678"[..], &[7; 256], &[]]).into())
        } else {
            Payload::Sges(Self::sges(input))
        };
        let target = &self.targets[index];
        let qpn = Qpn::from_wire(0x200 + index as u32);
        let ah = Arc::clone(&self.ah);
        let to = (target.service == QpType::Ud).then_some(Datagram { ah, qpn, qkey: QKEY });
        let request = SendRequest {
            id: self.posted.len() as u64,
            op,
            payload,
            flags: SendFlags::from_bits_truncate(u32::from(input.byte())),
            to,
            xrc_srq: (target.service == QpType::XrcSend).then_some(SRQ),
        };
        if target.handle.post_send(request).is_ok() {
            self.posted.push(Owner::Qp(index));
        }
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        for _ in 0..=input.byte() % 4 {
            let request = RecvRequest { id: self.posted.len() as u64, sges: Self::sges(input) };
            let index = input.index(self.targets.len() + 1);
            let (taken, owner) = match self.targets.get(index) {
                Some(target) => (target.handle.post_recv(request), Owner::Qp(index)),
                None => (self.srq.post_recv(request), Owner::Srq),
            };
            if taken.is_ok() {
                self.posted.push(owner);
            }
        }
    }

    fn poll(&mut self) {
        for cq in &self.cqs {
            while let Some(done) = cq.poll() {
                let id = usize::try_from(done.id).expect("an id that was given");
                let owner = std::mem::replace(&mut self.posted[id], Owner::Done);
                assert_ne!(owner, Owner::Done, "{done:?} completes a second time");
                if let Owner::Qp(index) = owner {
                    assert_eq!(done.qpn, self.targets[index].qpn, "{done:?}");
                }
                assert!(done.status != Status::Success || u64::from(done.byte_len) <= 1 << 31);
            }
        }
    }

    fn modify(&mut self, input: &mut Input<'_>) {
        let index = input.index(self.targets.len());
        let Target { qpn, service, shared, .. } = self.targets[index];
        let mut go = |qp_state| {
            let attr = QpAttr { qp_state, ..QpAttr::default() };
            self.engine.modify_qp(self.now, qpn, &attr, AttrMask::STATE)
        };
        match input.byte() % 6 {
            0 => assert_eq!(go(QpState::Err), Ok(())),
            1 => drop(go(QpState::Sqd)),
            2 => drop(go(QpState::Rts)),
            3 => {
                assert_eq!(self.engine.destroy_qp(qpn), Ok(()));
                self.forget(index);
                self.targets[index].handle = self.create(index, service, shared);
                self.connect(index);
            }
            _ => {
                assert_eq!(go(QpState::Reset), Ok(()));
                self.forget(index);
                self.connect(index);
            }
        }
    }

    /// Records that the requests posted to a queue pair must not complete any more.
    fn forget(&mut self, index: usize) {
        self.poll();
        for owner in &mut self.posted {
            if *owner == Owner::Qp(index) {
                *owner = Owner::Done;
            }
        }
    }

    fn memory(&mut self, input: &mut Input<'_>) {
        match input.byte() % 4 {
            0 => drop(self.memory.deregister(Area::Victim.key())),
            1 => {
                self.memory.deregister(Area::Victim.key());
                let buffer = &self.buffers[Area::Victim as usize];
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
                register(&self.memory, Area::Victim, PD, access, buffer);
            }
            2 => self.bind_windows(),
            _ => drop(self.srq.set_limit(u32::from(input.byte() % 20))),
        }
    }

    /// Checks the invariants at the end.
    pub(super) fn end(mut self) {
        self.transmit();
        self.poll();
        for (area, buffer) in Area::ALL.into_iter().zip(&self.buffers) {
            let mut bytes = [0; LEN as usize];
            buffer.span(0, LEN).expect("all of it").read(&mut bytes).expect("mapped");
            let changed = (0..).zip(&bytes).find(|&(at, &b)| b != FILL && area.is_sealed(at));
            assert_eq!(changed, None, "a byte of {area:?} has changed");
        }
    }
}

fn register(memory: &Memory, area: Area, pd: PdId, access: Access, buffer: &Buffer) {
    let made = memory.register(pd, buffer.clone(), area.base(), access, || area.key().value());
    assert_eq!(made, Ok(area.key()));
}

/// Updates what the peer knows from a packet: the expected PSN, and the PSNs to answer.
fn learn(targets: &mut [Target], packet: &Packet<'_>) {
    let to = packet.dest_qp().value();
    let Some(target) = targets.iter_mut().find(|t| t.qpn.value() + 0x100 == to) else { return };
    if packet.info().is_request {
        if target.ours.len() >= 8 {
            target.ours.remove(0);
        }
        target.ours.push(packet.psn());
    } else if let Some(aeth) = packet.aeth() {
        let done = matches!(aeth.syndrome, rxe_core::wire::Syndrome::Ack { .. });
        target.theirs = if done { packet.psn().next() } else { packet.psn() };
    }
}

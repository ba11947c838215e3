//! Two engines connected by a link, in virtual time, for the tests of this crate. The link carries
//! every packet unless a test's `fate` decides otherwise, and logs all packets.

#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized))))]
pub(crate) mod faults;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Config, Engine, Event, RetryCause};
use crate::mem::{Access, Buffer, Memory, PdId};
use crate::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use crate::queue::{
    Completion, CompletionQueue, Payload, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
    SharedReceiveQueue, XrcDomain,
};
use crate::types::{AckTimeout, Gid, Key, Mtu, Psn, Qpn, Time};
use crate::wire::{Frame, IpId, NetHeader, Opcode, Packet, TxBatch, TxLimits};

pub(crate) const PD: PdId = PdId(1);
/// The address of the first byte of each side's memory.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY: usize = 1 << 20;
/// All access rights that connections use.
pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// One end of the link: an engine with one QP.
pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) memory: Arc<Memory>,
    pub(crate) buffer: Buffer,
    pub(crate) key: Key,
    pub(crate) cq: Arc<CompletionQueue>,
    pub(crate) qp: Arc<QpHandle>,
    pub(crate) srq: Option<Arc<SharedReceiveQueue>>,
    events: Vec<Event>,
}

/// A packet that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Whether the packet goes from the first side (the requester in most tests) to the second.
    pub(crate) forward: bool,
    pub(crate) net: NetHeader,
    pub(crate) bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("engines send well-formed packets")
    }
}

/// Decides how many copies of a packet arrive.
pub(crate) type Fate = Box<dyn FnMut(&Sent) -> usize>;

/// May reorder packets that are sent together.
pub(crate) type Order = Box<dyn FnMut(&mut Vec<Sent>)>;

pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) now: Time,
    pub(crate) fate: Fate,
    pub(crate) order: Order,
    /// The limits of what an engine sends in one call.
    pub(crate) limits: TxLimits,
    pub(crate) log: Vec<Sent>,
}

impl Side {
    fn new(service: QpType, qpn: u32, gids: Vec<Gid>, cap: QpCap, srq: bool) -> Self {
        let memory = Arc::new(Memory::new());
        let buffer = Buffer::zeroed(MEMORY);
        let key = memory.register(PD, buffer.clone(), BASE, ALL, || (0x100 + qpn) << 8).unwrap();
        let config = Config { gids, ..Config::default() };
        let mut engine = Engine::new(config, Arc::clone(&memory));
        let cq = Arc::new(CompletionQueue::new(1 << 12, None));
        let xrcd = (service == QpType::XrcRecv).then(|| Arc::new(XrcDomain::new()));
        // No request completes in the completion queues of an XRC target QP itself.
        let unused = || Arc::new(CompletionQueue::new(1, None));
        let recv_cq = if xrcd.is_some() { unused() } else { Arc::clone(&cq) };
        let send_cq = Arc::clone(&recv_cq);
        let srq = (srq || xrcd.is_some())
            .then(|| Arc::new(SharedReceiveQueue::new_xrc(qpn, PD, 64, 4, Arc::clone(&cq))));
        if let Some((xrcd, srq)) = xrcd.as_ref().zip(srq.as_ref()) {
            assert!(xrcd.add(Arc::clone(srq)));
        }
        let own = srq.clone().filter(|_| xrcd.is_none());
        let init = QpInit {
            service,
            // An XRC target QP has no protection domain of its own.
            pd: if xrcd.is_some() { PdId(0) } else { PD },
            send_cq,
            recv_cq,
            cap,
            srq: own,
            xrcd,
            sq_sig_all: false,
        };
        let qp = engine.create_qp(Qpn::new(qpn).unwrap(), init).unwrap();
        Self { engine, memory, buffer, key, cq, qp, srq, events: Vec::new() }
    }

    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        self.buffer.span(offset, bytes.len() as u64).unwrap().write(bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.buffer.span(offset, len as u64).unwrap().read(&mut out).unwrap();
        out
    }

    pub(crate) fn sge(&self, offset: u64, len: usize) -> Sge {
        let length = u32::try_from(len).unwrap();
        Sge { addr: BASE + offset, length, lkey: self.key }
    }

    pub(crate) fn remote(&self, offset: u64) -> Remote {
        Remote { addr: BASE + offset, rkey: self.key }
    }

    pub(crate) fn post(&self, id: u64, op: SendOp, offset: u64, len: usize) {
        self.post_with(id, op, offset, len, SendFlags::SIGNALED);
    }

    pub(crate) fn post_with(&self, id: u64, op: SendOp, offset: u64, len: usize, flags: SendFlags) {
        let payload = Payload::Sges([self.sge(offset, len)].into_iter().collect());
        // The number of the peer's shared queue is the number of its QP.
        let is_xrc = self.qp.init().service == QpType::XrcSend;
        let xrc_srq = is_xrc.then_some(0x12);
        let request = SendRequest { flags, xrc_srq, ..SendRequest::new(id, op, payload) };
        self.qp.post_send(request).unwrap();
    }

    pub(crate) fn receive(&self, id: u64, offset: u64, len: usize) {
        let sges = [self.sge(offset, len)].into_iter().collect();
        let request = RecvRequest { id, sges };
        match &self.srq {
            Some(srq) => srq.post_recv(request).unwrap(),
            None => self.qp.post_recv(request).unwrap(),
        }
    }

    pub(crate) fn completions(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    /// Returns the ids and statuses of the completions.
    pub(crate) fn outcomes(&self) -> Vec<(u64, crate::queue::Status)> {
        self.completions().iter().map(|c| (c.id, c.status)).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.events.extend(std::iter::from_fn(|| self.engine.poll_event()));
        std::mem::take(&mut self.events)
    }

    pub(crate) fn modify(&mut self, now: Time, attr: &QpAttr, mask: AttrMask) {
        self.engine.modify_qp(now, self.qp.qpn(), attr, mask).unwrap();
    }
}

/// Returns the attributes of a connection in most tests.
pub(crate) fn attributes() -> QpAttr {
    QpAttr {
        qp_access_flags: ALL,
        path_mtu: Mtu::M1024,
        timeout: AckTimeout::new(10).unwrap(),
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..QpAttr::default()
    }
}

impl Pair {
    /// Creates two connected sides in RTS.
    pub(crate) fn new() -> Self {
        Self::with(&attributes(), QpCap::default())
    }

    /// Creates two connected sides in RTS with these attributes.
    pub(crate) fn with(attr: &QpAttr, cap: QpCap) -> Self {
        Self::of(QpType::Rc, attr, cap, false)
    }

    /// Creates two connected sides of a service, with shared receive queues if `srq` is true.
    pub(crate) fn of(service: QpType, attr: &QpAttr, cap: QpCap, srq: bool) -> Self {
        let other = if service == QpType::XrcSend { QpType::XrcRecv } else { service };
        let gid = |last| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last));
        let mut pair = Self {
            a: Side::new(service, 0x11, vec![gid(1)], cap, srq),
            b: Side::new(other, 0x12, vec![gid(2)], cap, srq),
            now: Time::ZERO,
            fate: Box::new(|_| 1),
            order: Box::new(|_| ()),
            limits: TxLimits::default(),
            log: Vec::new(),
        };
        // The PSNs of the first side wrap soon.
        let (psn_a, psn_b) = (Psn::new(0xff_fffd), Psn::new(0x00_0100));
        connect(&mut pair.a, attr, gid(2), 0x12, psn_a, psn_b);
        connect(&mut pair.b, attr, gid(1), 0x11, psn_b, psn_a);
        pair
    }

    /// Runs both engines until neither has anything to send. Time does not pass.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            let forward = self.carry(true);
            let back = self.carry(false);
            if !forward && !back {
                return;
            }
        }
        panic!("the engines never come to rest");
    }

    /// Lets the time `limit` pass, stopping at every timer.
    pub(crate) fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        self.run_until_idle();
        while let Some(next) = self.next_timer().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.a.engine.handle_timeout(self.now);
            self.b.engine.handle_timeout(self.now);
            self.run_until_idle();
        }
        self.now = end;
    }

    fn next_timer(&self) -> Option<Time> {
        let timers = [self.a.engine.poll_timeout(), self.b.engine.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Carries the packets of one side to the other. Returns whether there were any.
    fn carry(&mut self, forward: bool) -> bool {
        let (from, to) =
            if forward { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
        let mut batch = TxBatch::new(self.limits);
        from.engine.poll_transmit(self.now, &mut batch);
        let packets = batch.frames().flat_map(|frame| {
            let owned =
                |(net, bytes): (NetHeader, &[u8])| Sent { forward, net, bytes: bytes.into() };
            frame.packets().map(owned).collect::<Vec<_>>()
        });
        let mut packets: Vec<_> = packets.collect();
        (self.order)(&mut packets);
        let any = !packets.is_empty();
        for sent in packets {
            let copies = (self.fate)(&sent);
            for _ in 0..copies {
                // Every other packet arrives without an IP ID, as on a UDP socket.
                let hidden = NetHeader { id: IpId::Hidden, ..sent.net };
                let net = if self.log.len().is_multiple_of(2) { sent.net } else { hidden };
                to.engine.handle_frame(self.now, &Frame::single(net, &sent.bytes));
            }
            self.log.push(sent);
        }
        any
    }

    /// Returns the opcodes of the packets sent in one direction, in order.
    pub(crate) fn opcodes(&self, forward: bool) -> Vec<Opcode> {
        let sent = self.log.iter().filter(|sent| sent.forward == forward);
        sent.map(|sent| sent.packet().opcode()).collect()
    }

    /// Delivers a packet as if its sender had sent it again.
    pub(crate) fn inject(&mut self, sent: &Sent) {
        let to = if sent.forward { &mut self.b } else { &mut self.a };
        to.engine.handle_frame(self.now, &Frame::single(sent.net, &sent.bytes));
    }
}

fn connect(side: &mut Side, attr: &QpAttr, dgid: Gid, dest: u32, sq_psn: Psn, rq_psn: Psn) {
    let mut attr = *attr;
    attr.ah_attr.dgid = dgid;
    attr.dest_qp_num = Qpn::new(dest).unwrap();
    (attr.sq_psn, attr.rq_psn) = (sq_psn, rq_psn);
    let (init, rtr, rts) = match side.qp.init().service {
        QpType::XrcSend => (
            AttrMask::ACCESS_FLAGS,
            AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
            AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC,
        ),
        QpType::XrcRecv => (
            AttrMask::ACCESS_FLAGS,
            AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
            AttrMask::TIMEOUT | AttrMask::SQ_PSN,
        ),
        QpType::Rc => (
            AttrMask::ACCESS_FLAGS,
            AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
            AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC,
        ),
        QpType::Uc => (
            AttrMask::ACCESS_FLAGS,
            AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN,
            AttrMask::SQ_PSN,
        ),
        QpType::Ud => (AttrMask::QKEY, AttrMask::empty(), AttrMask::SQ_PSN),
    };
    let init = init | AttrMask::PKEY_INDEX | AttrMask::PORT;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.qp_state = state;
        side.modify(Time::ZERO, &attr, mask | AttrMask::STATE);
    }
}

/// Returns the causes of all retries.
pub(crate) fn causes(events: &[Event]) -> Vec<RetryCause> {
    let cause = |event: &Event| match event {
        Event::Retry { cause, .. } => Some(*cause),
        _ => None,
    };
    events.iter().filter_map(cause).collect()
}

//! One engine without a peer.
//! The test plays the peer: it delivers packets and checks the packets, completions and events of
//! the engine.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::engine::{Config, Engine, Event};
use rxe_core::mem::{Buffer, Memory};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    Completion, CompletionQueue, Payload, RecvRequest, SendFlags, SendOp, SendRequest, Sge,
    SharedReceiveQueue, XrcDomain,
};
use rxe_core::types::{Gid, Key, Mtu, Psn, Qpn, Time};
use rxe_core::wire::{
    Ext, Frame, NetHeader, Opcode, Packet, PacketRepr, Syndrome, TxBatch, TxLimits, emit,
};

pub use crate::sim::memory::{ALL, PD};
use crate::sim::world::bring_to_rts;

/// The address and the queue pair number of an endpoint.
pub type Place = (IpAddr, u32);

/// One engine with one connected queue pair (RC, UC or XRC) in RTS. The peer does not exist.
#[derive(Debug)]
pub struct End {
    /// The engine.
    pub engine: Engine,
    /// The memory regions of the engine.
    pub memory: Arc<Memory>,
    /// The completion queue of sends and receives.
    pub cq: Arc<CompletionQueue>,
    /// The queue pair.
    pub qp: Arc<QpHandle>,
    /// The shared receive queue of an XRC target.
    pub srq: Option<Arc<SharedReceiveQueue>>,
    /// The current virtual time.
    pub now: Time,
    peer: Place,
    attr: QpAttr,
}

impl End {
    /// Creates an RC queue pair. `psns`: the first PSNs that the queue pair sends and expects.
    pub fn new(own: Place, peer: Place, mtu: Mtu, psns: (Psn, Psn)) -> Self {
        Self::of(QpType::Rc, None, own, peer, mtu, psns)
    }

    /// Creates a UC queue pair.
    pub fn unreliable(own: Place, peer: Place, mtu: Mtu, psns: (Psn, Psn)) -> Self {
        Self::of(QpType::Uc, None, own, peer, mtu, psns)
    }

    /// Creates an XRC initiator.
    pub fn initiator(own: Place, peer: Place, mtu: Mtu, psns: (Psn, Psn)) -> Self {
        Self::of(QpType::XrcSend, None, own, peer, mtu, psns)
    }

    /// Creates an XRC target whose shared receive queue has the number `srq`.
    pub fn target(own: Place, peer: Place, mtu: Mtu, psns: (Psn, Psn), srq: u32) -> Self {
        Self::of(QpType::XrcRecv, Some(srq), own, peer, mtu, psns)
    }

    fn of(
        service: QpType,
        srq: Option<u32>,
        own: Place,
        peer: Place,
        mtu: Mtu,
        psns: (Psn, Psn),
    ) -> Self {
        let memory = Arc::new(Memory::new());
        let config = Config { gids: vec![Gid::from(own.0)], ..Config::default() };
        let mut engine = Engine::new(config, Arc::clone(&memory));
        let cq = Arc::new(CompletionQueue::new(1024, None));
        let new_srq =
            |number| Arc::new(SharedReceiveQueue::new_xrc(number, PD, 128, 4, Arc::clone(&cq)));
        let srq = srq.map(new_srq);
        let init = init(service, &cq, srq.as_ref());
        let qp = engine.create_qp(Qpn::from_wire(own.1), init).expect("the number is free");
        let mut attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: mtu,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            dest_qp_num: Qpn::from_wire(peer.1),
            sq_psn: psns.0,
            rq_psn: psns.1,
            ..QpAttr::default()
        };
        attr.ah_attr.dgid = Gid::from(peer.0);
        let now = Time::from_nanos(1);
        bring_up(&mut engine, now, service, qp.qpn(), attr);
        Self { engine, memory, cq, qp, srq, now, peer, attr }
    }

    /// Replaces the queue pair with a new one that has the same number and attributes.
    ///
    /// # Panics
    /// If the old queue pair cannot be destroyed or the new one cannot be created.
    pub fn renew(&mut self) {
        let qpn = self.qp.qpn();
        assert_eq!(self.engine.destroy_qp(qpn), Ok(()));
        let service = self.qp.init().service;
        let init = init(service, &self.cq, self.srq.as_ref());
        self.qp = self.engine.create_qp(qpn, init).expect("the number is free");
        bring_up(&mut self.engine, self.now, service, qpn, self.attr);
    }

    /// Registers `len` zeroed bytes at address `start` with this key and all access rights.
    ///
    /// # Panics
    /// If the registration fails.
    pub fn register(&self, key: Key, start: u64, len: usize) -> Buffer {
        let buffer = Buffer::zeroed(len);
        let got = self.memory.register(PD, buffer.clone(), start, ALL, || key.value());
        assert_eq!(got, Ok(key));
        buffer
    }

    /// Posts a signaled send request.
    ///
    /// # Panics
    /// If the request is refused.
    pub fn send(&self, op: SendOp, sge: Sge) {
        self.send_to(op, sge, None);
    }

    /// Posts a signaled send request that names an XRC shared receive queue.
    ///
    /// # Panics
    /// If the request is refused.
    pub fn send_to(&self, op: SendOp, sge: Sge, xrc_srq: Option<u32>) {
        let payload = Payload::Sges([sge].into_iter().collect());
        let flags = SendFlags::SIGNALED;
        let request = SendRequest { id: 0, op, payload, flags, to: None, xrc_srq };
        self.qp.post_send(request).expect("there is room");
    }

    /// Posts a receive with one scatter/gather element.
    ///
    /// # Panics
    /// If the request is refused.
    pub fn receive(&self, id: u64, sge: Sge) {
        let sges = [sge].into_iter().collect();
        self.post_recv(RecvRequest { id, sges });
    }

    /// Posts a receive to the shared receive queue if there is one, otherwise to the queue pair.
    ///
    /// # Panics
    /// If the request is refused.
    pub fn post_recv(&self, request: RecvRequest) {
        let done = match &self.srq {
            Some(srq) => srq.post_recv(request),
            None => self.qp.post_recv(request),
        };
        done.expect("there is room");
    }

    /// Delivers a packet to the engine.
    pub fn take(&mut self, said: &Said) {
        self.engine.handle_frame(self.now, &Frame::single(said.net, &said.bytes));
    }

    /// Takes all packets that the engine sends now.
    pub fn sent(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        let mut batch = TxBatch::new(TxLimits::default());
        loop {
            self.engine.poll_transmit(self.now, &mut batch);
            if batch.is_empty() {
                return all;
            }
            for frame in batch.frames() {
                let packets = frame.packets();
                all.extend(packets.map(|(net, bytes)| Said { net, bytes: bytes.to_vec() }));
            }
            batch.clear();
        }
    }

    /// Polls all completions.
    pub fn completions(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.cq.poll()).collect()
    }

    /// Takes all events of the engine.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// Returns the network header of a packet from the peer.
    pub fn from_peer(&self) -> NetHeader {
        let own = self.engine.config().gids[0].to_ip();
        NetHeader::outgoing(self.peer.0, own, 0xc123)
    }

    /// Creates a packet from the peer, with a correct ICRC.
    pub fn said(&self, repr: &PacketRepr<'_>) -> Said {
        Said::new(self.from_peer(), repr)
    }
}

fn init(
    service: QpType,
    cq: &Arc<CompletionQueue>,
    srq: Option<&Arc<SharedReceiveQueue>>,
) -> QpInit {
    let xrcd = srq.map(|srq| {
        let domain = XrcDomain::new();
        assert!(domain.add(Arc::clone(srq)), "it is the only one");
        Arc::new(domain)
    });
    QpInit {
        service,
        pd: PD,
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        cap: QpCap::default(),
        sq_sig_all: true,
        srq: None,
        xrcd,
    }
}

/// Brings a queue pair from RESET to RTS with the attributes that its service type needs.
fn bring_up(engine: &mut Engine, now: Time, service: QpType, qpn: Qpn, mut attr: QpAttr) {
    let awaits =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let (answers, awaits) = match service {
        QpType::XrcSend => (AttrMask::empty(), awaits),
        QpType::XrcRecv => (answers, AttrMask::TIMEOUT),
        QpType::Uc => (AttrMask::empty(), AttrMask::empty()),
        _ => return bring_to_rts(engine, now, qpn, attr),
    };
    let to_rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    for (state, mask) in [
        (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
        (QpState::Rtr, to_rtr | answers),
        (QpState::Rts, AttrMask::SQ_PSN | awaits),
    ] {
        attr.qp_state = state;
        let done = engine.modify_qp(now, qpn, &attr, mask | AttrMask::STATE);
        assert_eq!(done, Ok(()), "to {}", state.name());
    }
}

/// A packet that was sent or is delivered.
#[derive(Clone, Debug)]
pub struct Said {
    /// The IP and UDP headers.
    pub net: NetHeader,
    /// The bytes from the BTH to the ICRC.
    pub bytes: Vec<u8>,
}

impl Said {
    /// Creates a packet with a correct ICRC.
    pub fn new(net: NetHeader, repr: &PacketRepr<'_>) -> Self {
        let mut bytes = Vec::new();
        emit::repr(&net, &mut bytes, repr);
        Self { net, bytes }
    }

    /// Parses the packet.
    ///
    /// # Panics
    /// If the packet is malformed.
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("each is well formed")
    }
}

/// Returns the fields of a packet that the specification determines.
///
/// # Panics
/// If the packet is malformed.
pub fn told(said: &Said) -> Told {
    let packet = said.packet();
    let mut ext = packet.ext();
    if let Some(aeth) = &mut ext.aeth
        && let Syndrome::Ack { credits } = &mut aeth.syndrome
    {
        *credits = 0;
    }
    Told {
        opcode: packet.opcode(),
        dest_qp: packet.dest_qp(),
        psn: packet.psn(),
        solicited: packet.solicited(),
        ext,
        pad: packet.pad(),
        payload: packet.payload().to_vec(),
    }
}

/// A packet without the fields that the specification leaves to the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The opcode.
    pub opcode: Opcode,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The PSN.
    pub psn: Psn,
    /// The solicited event bit.
    pub solicited: bool,
    /// The extension headers, with the credits of an AETH set to 0.
    pub ext: Ext,
    /// The number of pad bytes.
    pub pad: usize,
    /// The payload.
    pub payload: Vec<u8>,
}

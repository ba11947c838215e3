//! The devices of a plan's run, and the verbs that its programs call.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::Memory;
use rxe_core::qp::{AttrMask, QpAttr, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{CompletionQueue, Payload, Remote, SendOp, SendRequest, SgeList};
use rxe_core::types::{Gid, Key, Qpn, Time};

use crate::sim::memory::{Arena, PD};
use crate::sim::model::Look;
use crate::sim::plan::{End, Flaw, Link, Op, Plan, Receive, Verb};

/// All devices.
pub(super) struct Devices(pub(super) Vec<Device>);

/// One simulated device.
pub(super) struct Device {
    pub(super) engine: Engine,
    pub(super) memory: Arc<Memory>,
    pub(super) arena: Arena,
    pub(super) cqs: Vec<Arc<CompletionQueue>>,
    /// The link and end of each queue pair.
    pub(super) qps: HashMap<Qpn, (usize, usize)>,
}

impl Look for Devices {
    fn look(&self, side: usize, at: usize, out: &mut [u8]) {
        self.0[side].arena.read(at, out);
    }

    fn state(&self, link: usize, end: usize) -> QpState {
        let of = |device: &Device| {
            let (qpn, _) = device.qps.iter().find(|(_, place)| **place == (link, end))?;
            device.engine.qp_state(*qpn)
        };
        self.0.iter().find_map(of).unwrap_or_default()
    }
}

impl Device {
    pub(super) fn new(plan: &Plan, index: usize) -> Self {
        let side = &plan.sides[index];
        let memory = Arc::new(Memory::new());
        let arena = Arena::new(&side.layout, &side.layout.initial(), &memory);
        let config = Config {
            gids: vec![Gid::from(side.ip)],
            window_packets: side.window_packets,
            window_bytes: side.window_bytes,
            shared_window_bytes: side.window_bytes,
            ..Config::default()
        };
        let engine = Engine::new(config, Arc::clone(&memory));
        let cqs = (0..side.cqs).map(|_| Arc::new(CompletionQueue::new(4096, None))).collect();
        Self { engine, memory, arena, cqs, qps: HashMap::new() }
    }

    pub(super) fn create(&mut self, end: &End, place: (usize, usize)) -> Arc<QpHandle> {
        let [send_cq, recv_cq] = end.cqs.map(|cq| Arc::clone(&self.cqs[cq]));
        let init = QpInit {
            service: QpType::Rc,
            pd: PD,
            send_cq,
            recv_cq,
            cap: end.cap,
            sq_sig_all: end.sig_all,
            srq: None,
            xrcd: None,
        };
        let handle = self.engine.create_qp(end.qpn, init).expect("numbers differ");
        self.qps.insert(end.qpn, place);
        handle
    }
}

/// Brings a queue pair from RESET to RTS with these attributes.
pub fn bring_to_rts(engine: &mut Engine, now: Time, qpn: Qpn, mut attr: QpAttr) {
    for (state, mask) in [
        (QpState::Init, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS),
        (
            QpState::Rtr,
            AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER,
        ),
        (
            QpState::Rts,
            AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC,
        ),
    ] {
        attr.qp_state = state;
        let done = engine.modify_qp(now, qpn, &attr, mask | AttrMask::STATE);
        assert_eq!(done, Ok(()), "to {}", state.name());
    }
}

/// Returns a key that no region has.
fn spoiled(key: Key) -> Key {
    Key::new(key.value() ^ 0x8000_0000)
}

pub(super) fn receive_request(plan: &Plan, side: usize, receive: &Receive) -> SgeList {
    let layout = &plan.sides[side].layout;
    let mut sges: SgeList = receive.places.iter().map(|place| layout.sge(*place)).collect();
    if receive.bad_key {
        sges.iter_mut().for_each(|sge| sge.lkey = spoiled(sge.lkey));
    }
    sges
}

pub(super) fn send_request(
    plan: &Plan,
    link: &Link,
    end: usize,
    op: &Op,
    id: u64,
    read: impl Fn(usize, &mut [u8]),
) -> SendRequest {
    let [own, peer] = [end, 1 - end].map(|end| &plan.sides[link.ends[end].side].layout);
    let remote = op.remote.map(|place| {
        let (mut addr, mut rkey) = (peer.address(place), peer.key(place.area));
        match op.flaw {
            Some(Flaw::WrongKey) => rkey = spoiled(rkey),
            Some(Flaw::Below) => addr = peer.start(place.area) - 1,
            Some(Flaw::Beyond) => addr = peer.end(place.area) - u64::from(place.len) + 1,
            _ => {}
        }
        Remote { addr, rkey }
    });
    let remote = remote.unwrap_or(Remote { addr: 0, rkey: Key::new(0) });
    let payload = if op.inline {
        let mut bytes = Vec::new();
        for &place in &op.local {
            let range = own.range(place);
            let mut piece = vec![0; range.len()];
            read(range.start, &mut piece);
            bytes.extend(piece);
        }
        Payload::Inline(bytes.into())
    } else {
        let mut sges: SgeList = op.local.iter().map(|place| own.sge(*place)).collect();
        let spoil = sges.iter_mut().zip(&op.local).rfind(|(sge, _)| sge.length > 0);
        match (op.flaw, spoil) {
            (Some(Flaw::LocalKey), Some((sge, _))) => sge.lkey = spoiled(sge.lkey),
            (Some(Flaw::LocalBeyond), Some((sge, place))) => {
                sge.addr = own.end(place.area) - u64::from(place.len) + 1;
            }
            _ => {}
        }
        Payload::Sges(sges)
    };
    let op_of = match op.verb {
        Verb::Send { imm } => SendOp::Send { imm },
        Verb::Write { imm } => SendOp::Write { remote, imm },
        Verb::Read => SendOp::Read { remote },
        Verb::CompareSwap { compare, swap } => SendOp::CompareSwap { remote, compare, swap },
        Verb::FetchAdd { add } => SendOp::FetchAdd { remote, add },
    };
    SendRequest { flags: op.flags, ..SendRequest::new(id, op_of, payload) }
}

//! The devices and objects of a run, and the translation of steps into work requests.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Access, Binding, Memory};
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    CompletionQueue, Datagram, Payload, Placement, Remote, SendOp, SendRequest, SgeList,
    SharedReceiveQueue, XrcDomain,
};
use rxe_core::types::{Gid, Key, Qkey, Qpn, Time};
use rxe_core::wire::{BthView, Frame};

use super::Address;
use crate::sim::judge::Look;
use crate::sim::memory::{Arena, PD, Place};
use crate::sim::script::{By, Flaw, GROUP_KEY, Op, Queue, Script, To, Verb};

/// All devices and objects of a run.
pub(super) struct Objects<'s> {
    pub(super) script: &'s Script,
    pub(super) devices: Vec<Device>,
    pub(super) srqs: Vec<Arc<SharedReceiveQueue>>,
    /// The queue pairs; `None` for one that does not exist at the moment.
    pub(super) qps: Vec<Option<Arc<QpHandle>>>,
    /// The keys with which the windows were created.
    pub(super) windows: Vec<Key>,
}

/// One simulated device.
pub(super) struct Device {
    /// The engines, one or more, like the shards of a device.
    pub(super) engines: Vec<Engine>,
    pub(super) memory: Arc<Memory>,
    pub(super) arena: Arena,
    pub(super) cqs: Vec<Arc<CompletionQueue>>,
    pub(super) xrcd: Arc<XrcDomain>,
}

impl Look for Objects<'_> {
    fn look(&self, side: usize, at: usize, out: &mut [u8]) {
        self.devices[side].arena.read(at, out);
    }

    fn state(&self, qp: usize) -> QpState {
        self.qps[qp].as_ref().map_or(QpState::Reset, |handle| handle.state())
    }

    fn waiting(&self, queue: Queue) -> u32 {
        match queue {
            Queue::Own(qp) => self.qps[qp].as_ref().map_or(0, |qp| qp.receives_outstanding()),
            Queue::Shared(srq) => self.srqs[srq].len(),
        }
    }

    fn unseen(&self, side: usize) -> usize {
        self.devices[side].cqs.iter().map(|cq| cq.len()).sum()
    }

    fn cq(&self, side: usize, id: u64) -> Option<usize> {
        self.devices[side].cqs.iter().position(|cq| cq.id() == id)
    }

    fn overflowed(&self, side: usize, cq: usize) -> bool {
        self.devices[side].cqs[cq].is_overflowed()
    }

    fn key(&self, bind: usize) -> Key {
        let bind = self.script.bind(bind);
        Key::new(self.windows[bind.window].value() & !0xff | u32::from(bind.key))
    }
}

impl<'s> Objects<'s> {
    pub(super) fn new(script: &'s Script) -> Self {
        let devices: Vec<_> =
            (0..script.sides.len()).map(|side| Device::new(script, side)).collect();
        let mut srqs = Vec::new();
        for (number, srq) in (0..).zip(&script.srqs) {
            let device = &devices[srq.side];
            srqs.push(Arc::new(match srq.cq {
                Some(cq) => {
                    let cq = Arc::clone(&device.cqs[cq]);
                    SharedReceiveQueue::new_xrc(number, PD, srq.depth, 4, cq)
                }
                None => SharedReceiveQueue::new(number, PD, srq.depth, 4),
            }));
            if srq.cq.is_some() {
                assert!(device.xrcd.add(Arc::clone(&srqs[srqs.len() - 1])));
            }
        }
        let windows = (0..).zip(&script.windows).map(|(i, window)| {
            let mut number = 0x1_0000 * (i + 1);
            let next = || {
                number += 0x100;
                number
            };
            devices[window.side].memory.create_window(PD, window.kind, next)
        });
        let windows = windows.collect();
        let qps = vec![None; script.qps.len()];
        Self { script, devices, srqs, qps, windows }
    }

    /// Creates a queue pair with this number.
    pub(super) fn create(&mut self, qp: usize, qpn: Qpn) {
        let spec = &self.script.qps[qp];
        let device = &mut self.devices[spec.side];
        let [send_cq, recv_cq] = spec.cqs.map(|cq| Arc::clone(&device.cqs[cq]));
        let is_target = spec.service == QpType::XrcRecv;
        let init = QpInit {
            service: spec.service,
            pd: PD,
            send_cq,
            recv_cq,
            cap: spec.cap,
            sq_sig_all: spec.sig_all,
            srq: spec.srq.map(|srq| Arc::clone(&self.srqs[srq])),
            xrcd: is_target.then(|| Arc::clone(&device.xrcd)),
        };
        let handle = device.engines[spec.shard].create_qp(qpn, init).expect("numbers differ");
        if spec.deaf {
            handle.block_own_multicast();
        }
        self.qps[qp] = Some(handle);
    }

    /// Returns the engines of all devices.
    pub(super) fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.devices.iter().flat_map(|device| &device.engines)
    }

    /// Returns the engines of all devices, mutably.
    pub(super) fn engines_mut(&mut self) -> impl Iterator<Item = &mut Engine> {
        self.devices.iter_mut().flat_map(|device| &mut device.engines)
    }

    /// Returns the engine of a queue pair.
    pub(super) fn engine(&mut self, qp: usize) -> &mut Engine {
        let spec = &self.script.qps[qp];
        &mut self.devices[spec.side].engines[spec.shard]
    }

    /// Brings a queue pair from RESET to RTS.
    pub(super) fn connect(&mut self, now: Time, qp: usize, attr: QpAttr) -> Result<(), VerbsError> {
        let spec = &self.script.qps[qp];
        let Some(handle) = &self.qps[qp] else { return Ok(()) };
        let engine = &mut self.devices[spec.side].engines[spec.shard];
        for (state, mask) in way_to_rts(spec.service) {
            let attr = QpAttr { qp_state: state, ..attr };
            engine.modify_qp(now, handle.qpn(), &attr, mask | AttrMask::STATE)?;
        }
        Ok(())
    }

    /// Returns the work request of a step. `to`: the destination of a datagram.
    pub(super) fn request(&self, qp: usize, step: usize, to: Option<Address>) -> SendRequest {
        let op = self.script.op(step);
        let spec = &self.script.qps[qp];
        let layout = &self.script.sides[spec.side].layout;
        let payload = if op.inline {
            let mut bytes = Vec::new();
            for &place in &op.local {
                bytes.extend(self.devices[spec.side].arena.bytes(layout.range(place)));
            }
            Payload::Inline(bytes.into())
        } else {
            let mut sges: SgeList = op.local.iter().map(|place| layout.sge(*place)).collect();
            if op.flaw == Some(Flaw::LocalKey)
                && let Some(sge) = sges.iter_mut().rfind(|sge| sge.length > 0)
            {
                sge.lkey = spoiled(sge.lkey);
            }
            Payload::Sges(sges)
        };
        let remote = op.remote.map(|(place, by)| self.remote(qp, op, place, by));
        let remote = remote.unwrap_or(Remote { addr: 0, rkey: Key::new(0) });
        let send_op = match op.verb {
            Verb::Send(imm) => SendOp::Send { imm },
            Verb::SendInvalidate(bind) => SendOp::SendInvalidate { rkey: self.key(bind) },
            Verb::Write(imm) => SendOp::Write { remote, imm },
            Verb::Read => SendOp::Read { remote },
            Verb::CompareSwap(compare, swap) => SendOp::CompareSwap { remote, compare, swap },
            Verb::FetchAdd(add) => SendOp::FetchAdd { remote, add },
            Verb::AtomicWrite => SendOp::AtomicWrite { remote },
            Verb::Flush(whole_region) => {
                let length = op.remote.map_or(0, |(place, _)| place.len);
                SendOp::Flush { remote, length, placement: Placement::GLOBAL, whole_region }
            }
            Verb::Bind(bind) => {
                let window = self.windows[bind.window];
                let binding = self.binding(spec.side, op, bind.place, bind.access);
                SendOp::BindWindow { window, new_key: bind.key, binding }
            }
            Verb::Invalidate(bind) => SendOp::LocalInvalidate { key: self.key(bind) },
        };
        let srq = op.srq.and_then(|srq| u32::try_from(srq).ok());
        let xrc_srq = srq.map(|srq| if op.flaw == Some(Flaw::WrongSrq) { srq + 777 } else { srq });
        let xrc_srq = xrc_srq.or((spec.service == QpType::XrcSend).then_some(0));
        SendRequest {
            flags: op.flags,
            to: to.map(|to| self.datagram(qp, op, to)),
            xrc_srq,
            ..SendRequest::new(step as u64, send_op, payload)
        }
    }

    fn remote(&self, qp: usize, op: &Op, place: Place, by: By) -> Remote {
        let peer = self.script.qps[qp].peer.map_or(0, |peer| self.script.qps[peer].side);
        let layout = &self.script.sides[peer].layout;
        let (mut addr, mut rkey, start, end) = match by {
            By::Region => {
                let area = place.area;
                (layout.address(place), layout.key(area), layout.start(area), layout.end(area))
            }
            By::Window(bind) => {
                let (key, bind) = (self.key(bind), self.script.bind(bind));
                let start = layout.address(bind.place);
                let base = if bind.access.contains(Access::ZERO_BASED) { start } else { 0 };
                let end = start + u64::from(bind.place.len);
                (layout.address(place) - base, key, start - base, end - base)
            }
        };
        match op.flaw {
            Some(Flaw::WrongKey) => rkey = spoiled(rkey),
            Some(Flaw::Below) => addr = start.wrapping_sub(1),
            Some(Flaw::Beyond) => addr = end + 1 - u64::from(place.len),
            _ => {}
        }
        Remote { addr, rkey }
    }

    fn binding(&self, side: usize, op: &Op, place: Place, access: Access) -> Binding {
        let layout = &self.script.sides[side].layout;
        let region = layout.key(place.area);
        let (addr, length) = (layout.address(place), u64::from(place.len));
        let good = Binding { region, addr, length, access };
        match op.flaw {
            Some(Flaw::WrongKey) => Binding { region: spoiled(region), ..good },
            Some(Flaw::Beyond) => Binding { addr: layout.end(place.area) - length + 1, ..good },
            Some(Flaw::NoRight) => {
                // The open area does not permit window binds.
                let area = crate::sim::memory::Area::Open;
                Binding { region: layout.key(area), addr: layout.start(area), length: 1, ..good }
            }
            _ => good,
        }
    }

    fn datagram(&self, qp: usize, op: &Op, to: Address) -> Datagram {
        let spec = &self.script.qps[qp];
        let own = match op.to {
            Some(To::Group(_)) => GROUP_KEY,
            _ => self.script.qps[to.target].attr.qkey,
        };
        let qkey = match op.flaw {
            Some(Flaw::WrongQkey) => Qkey::new(own.value() ^ 0x4444),
            Some(Flaw::OwnQkey) => Qkey::new(0x8000_0007),
            _ => own,
        };
        let av = AddressVector { dgid: Gid::from(to.ip), ..QpAttr::default().ah_attr };
        let engine = &self.devices[spec.side].engines[spec.shard];
        let ah = engine.create_ah(PD, &av).expect("a good address");
        Datagram { ah, qpn: to.qpn, qkey }
    }

    /// Returns the scatter list of a receive.
    pub(super) fn scatter(&self, queue: Queue, places: &[Place]) -> SgeList {
        let layout = &self.script.sides[self.script.side_of(queue)].layout;
        places.iter().map(|place| layout.sge(*place)).collect()
    }
}

impl Device {
    fn new(script: &Script, index: usize) -> Self {
        let side = &script.sides[index];
        let memory = Arc::new(Memory::new());
        let arena = Arena::new(&side.layout, &side.layout.initial(), &memory);
        let config = Config {
            gids: vec![Gid::from(side.ip)],
            window_packets: side.window_packets,
            window_bytes: side.window_bytes,
            shared_window_bytes: side.window_bytes,
            ..Config::default()
        };
        let engine = |_| Engine::new(config.clone(), Arc::clone(&memory));
        let engines = (0..side.shards).map(engine).collect();
        let cqs = side.cqs.iter().map(|&depth| Arc::new(CompletionQueue::new(depth, None)));
        Self { engines, memory, arena, cqs: cqs.collect(), xrcd: Arc::new(XrcDomain::new()) }
    }

    /// Hands each packet to the engine of its queue pair, or to all engines that have joined its group.
    pub(super) fn receive(&mut self, now: Time, frame: &Frame<'_>) {
        if frame.net.dst.is_multicast() {
            for engine in &mut self.engines {
                // A real interface receives only the groups that a socket has joined.
                let mut groups = engine.multicast_groups();
                let heard = groups.any(|group| group.to_ip() == frame.net.dst);
                drop(groups);
                if heard {
                    engine.handle_frame(now, frame);
                }
            }
            return;
        }
        let count = self.engines.len();
        let shard =
            |bytes: &[u8]| BthView::new(bytes).map_or(0, |bth| shard_of(bth.dest_qp(), count));
        if !frame.coalesced.is_empty() {
            for packets in frame.coalesced.chunk_by(|a, b| shard(a.head()) == shard(b.head())) {
                let engine = &mut self.engines[shard(packets[0].head())];
                engine.handle_frame(now, &Frame { coalesced: packets, ..*frame });
            }
            return;
        }
        let first = shard(frame.payload);
        if frame.payloads().all(|bytes| shard(bytes) == first) {
            self.engines[first].handle_frame(now, frame);
        } else {
            for (net, bytes) in frame.packets() {
                self.engines[shard(bytes)].handle_frame(now, &Frame::single(net, bytes));
            }
        }
    }
}

/// Returns which of `count` engines the queue pair with this number belongs to.
pub(super) fn shard_of(qpn: Qpn, count: usize) -> usize {
    qpn.value() as usize % count
}

/// Returns a key that is not in use.
fn spoiled(key: Key) -> Key {
    Key::new(key.value() ^ 0x8000_0000)
}

/// Returns the transitions from RESET to RTS, each with its attribute mask.
fn way_to_rts(service: QpType) -> [(QpState, AttrMask); 3] {
    let mut init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let mut rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let mut rts = AttrMask::SQ_PSN;
    let responds = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let requests = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    match service {
        QpType::Rc => {
            rtr |= responds;
            rts |= requests | AttrMask::TIMEOUT;
        }
        QpType::XrcSend => rts |= requests | AttrMask::TIMEOUT,
        QpType::XrcRecv => {
            rtr |= responds;
            rts |= AttrMask::TIMEOUT;
        }
        QpType::Uc => {}
        QpType::Ud => {
            init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
            rtr = AttrMask::empty();
        }
    }
    [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
}

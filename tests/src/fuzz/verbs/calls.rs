//! The calls, and the network between the two devices.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::mem::{Access, WindowType};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};
use rxe_core::queue::Arm;
use rxe_core::types::{Gid, Qpn, Time};
use rxe_core::wire::Frame;

use super::node::{Node, PDS, Pair, RECEIVE, address};
use super::requests::{any_address, any_attributes, any_mask, attributes, receive, send};
use crate::fuzz::input::Input;
use crate::fuzz::ladder::ladder;

const SERVICES: [QpType; 5] =
    [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

pub(super) struct World {
    nodes: [Node; 2],
    now: Time,
}

impl World {
    /// Creates two devices with a connection of each kind.
    pub(super) fn new() -> Self {
        let mut world = Self { nodes: [0, 1].map(Node::new), now: Time::from_nanos(1) };
        for (a, b) in [
            (QpType::Rc, QpType::Rc),
            (QpType::Uc, QpType::Uc),
            (QpType::Ud, QpType::Ud),
            (QpType::XrcSend, QpType::XrcRecv),
        ] {
            let at = world.nodes[0].qps.len();
            for (node, service) in [a, b].into_iter().enumerate() {
                let init = world.init(node, service, QpCap { max_send_wr: 8, ..small() }, None);
                assert!(world.create(node, 0x20 + at as u32, init));
            }
            for node in 0..2 {
                world.connect(node, at, at);
            }
        }
        for node in 0..2 {
            let av = attributes(Gid::from(address(1 - node)), Qpn::GSI).ah_attr;
            let ah = world.nodes[node].engine.create_ah(PDS[0], &av).expect("an address");
            world.nodes[node].ahs.push(ah);
        }
        world
    }

    /// Makes the next call, which the bytes choose.
    pub(super) fn call(&mut self, input: &mut Input<'_>) {
        let node = usize::from(input.chance(100));
        match input.byte() % 32 {
            0..=5 => self.post_send(input, node),
            6..=9 => self.post_recv(input, node),
            10..=14 => return self.settle(input),
            15..=16 => self.wait(input),
            17 => self.create_qp(input, node),
            18..=20 => self.connect_some(input, node),
            21..=22 => self.modify(input, node),
            23 => self.destroy(input, node),
            24 => self.nodes[node].poll(),
            25 => self.register(input, node),
            26 => {
                let node = &mut self.nodes[node];
                // The first region is never deregistered.
                let index = input.index(node.regions.len());
                if index > 0 {
                    node.deregister(index);
                }
            }
            27 => self.window(input, node),
            28 => self.address(input, node),
            29 => self.multicast(input, node),
            30 => self.shared(input, node),
            _ => {
                let arm = input.pick(&[Arm::Any, Arm::Solicited]);
                self.nodes[node].cqs.iter().for_each(|cq| cq.arm(arm));
            }
        }
        if input.chance(128) {
            self.settle(input);
        }
    }

    fn init(&self, node: usize, service: QpType, cap: QpCap, srq: Option<usize>) -> QpInit {
        let node = &self.nodes[node];
        let cq = Arc::clone(&node.cqs[usize::from(srq == Some(1))]);
        QpInit {
            service,
            pd: PDS[0],
            send_cq: Arc::clone(&cq),
            recv_cq: cq,
            cap,
            srq: srq.and_then(|at| node.srqs.get(at)).map(|shared| Arc::clone(&shared.srq)),
            xrcd: (service == QpType::XrcRecv).then(|| Arc::clone(&node.xrcd)),
            sq_sig_all: srq.is_none(),
        }
    }

    fn create(&mut self, node: usize, number: u32, init: QpInit) -> bool {
        let node = &mut self.nodes[node];
        let before = node.engine.qp_count();
        match node.engine.create_qp(Qpn::from_wire(number), init) {
            Ok(handle) => {
                let (sends, receives) = (VecDeque::new(), VecDeque::new());
                node.qps.push(Pair { handle, alive: true, sends, receives });
                true
            }
            Err(_) => {
                assert_eq!(node.engine.qp_count(), before);
                false
            }
        }
    }

    fn create_qp(&mut self, input: &mut Input<'_>, node: usize) {
        let service = input.pick(&SERVICES);
        let mut cap = small();
        cap.max_send_wr = input.pick(&[4, 0, 1, 32, 33]);
        cap.max_recv_wr = input.pick(&[4, 0, 1, 32, 33]);
        cap.max_recv_sge = input.pick(&[4, 0, 5]);
        cap.max_inline_data = input.pick(&[200, 0, 512, 513]);
        let srq = input.chance(80).then(|| input.index(2));
        let mut init = self.init(node, service, cap, srq);
        init.pd = input.pick(&PDS);
        let fresh = 0x40 + self.nodes[node].qps.len() as u32;
        let number = input.pick(&[fresh, fresh, fresh, 0, 1, 0x20, 0xff_ffff]);
        self.create(node, number, init);
    }

    /// Brings a queue pair to RTS, or as far as the calls succeed.
    fn connect(&mut self, node: usize, at: usize, peer: usize) {
        let to = Gid::from(address(1 - node));
        let qpn = self.nodes[1 - node].qps[peer].handle.qpn();
        let attr = attributes(to, qpn);
        let pair = &self.nodes[node].qps[at];
        let (qpn, service, alive) = (pair.handle.qpn(), pair.handle.init().service, pair.alive);
        for (qp_state, mask) in ladder(service) {
            let attr = QpAttr { qp_state, ..attr };
            let done = self.nodes[node].engine.modify_qp(self.now, qpn, &attr, mask);
            assert!(done.is_ok() || !alive || qp_state == QpState::Init, "{service:?}: {done:?}");
            if done.is_err() {
                return;
            }
        }
    }

    fn connect_some(&mut self, input: &mut Input<'_>, node: usize) {
        let at = input.index(self.nodes[node].qps.len());
        let peer = if input.chance(200) { at } else { input.byte().into() };
        let peer = peer.min(self.nodes[1 - node].qps.len() - 1);
        for (node, at) in [(node, at), (1 - node, peer)] {
            self.go(node, at, QpState::Reset);
        }
        self.connect(node, at, peer);
        self.connect(1 - node, peer, at);
    }

    fn go(&mut self, node: usize, at: usize, qp_state: QpState) {
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        self.change(node, at, &attr, AttrMask::STATE);
    }

    /// Calls `modify_qp`. If the call is refused, it must not have changed anything.
    fn change(&mut self, node: usize, at: usize, attr: &QpAttr, mask: AttrMask) {
        let node = &mut self.nodes[node];
        node.poll();
        let qpn = node.qps[at].handle.qpn();
        let before = node.engine.query_qp(qpn);
        let done = node.engine.modify_qp(self.now, qpn, attr, mask);
        assert_eq!(before.is_ok(), node.qps.iter().any(|p| p.alive && p.handle.qpn() == qpn));
        if done.is_err() {
            assert_eq!(node.engine.query_qp(qpn), before);
        } else if mask.contains(AttrMask::STATE) {
            let state = node.engine.qp_state(qpn).expect("it was modified");
            // A completion queue that overflowed may have moved the queue pair to the error state.
            assert!(state == attr.qp_state || state == QpState::Err, "{state:?}");
            if attr.qp_state == QpState::Reset {
                let at = node.find(qpn);
                node.forget(at);
            }
        }
    }

    fn modify(&mut self, input: &mut Input<'_>, node: usize) {
        let at = input.index(self.nodes[node].qps.len());
        let service = self.nodes[node].qps[at].handle.init().service;
        let usual = input.chance(100);
        if usual {
            let state = input.pick(&[QpState::Err, QpState::Sqd, QpState::Rts, QpState::Reset]);
            return self.go(node, at, state);
        }
        let attr = any_attributes(input, Gid::from(address(1 - node)));
        let mask = any_mask(input, service);
        self.change(node, at, &attr, mask);
    }

    fn destroy(&mut self, input: &mut Input<'_>, node: usize) {
        let node = &mut self.nodes[node];
        let at = input.index(node.qps.len());
        node.forget(at);
        let pair = &mut node.qps[at];
        let qpn = pair.handle.qpn();
        if pair.alive {
            assert_eq!(node.engine.destroy_qp(qpn), Ok(()));
            pair.alive = false;
        }
        if !node.qps.iter().any(|pair| pair.alive && pair.handle.qpn() == qpn) {
            assert!(node.engine.destroy_qp(qpn).is_err());
            assert!(node.engine.query_qp(qpn).is_err());
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>, node: usize) {
        for _ in 0..input.pick(&[1, 1, 2, 9]) {
            let at = input.index(self.nodes[node].qps.len());
            let request = send(input, &self.nodes[node], &self.nodes[1 - node], at);
            let node = &mut self.nodes[node];
            let pair = &mut node.qps[at];
            let before = pair.handle.sends_outstanding();
            match pair.handle.post_send(request) {
                Ok(()) => {
                    assert_eq!(pair.handle.sends_outstanding(), before + 1);
                    pair.sends.push_back(node.ids);
                    node.ids += 1;
                }
                Err(_) => assert_eq!(pair.handle.sends_outstanding(), before),
            }
        }
    }

    fn post_recv(&mut self, input: &mut Input<'_>, node: usize) {
        for _ in 0..input.pick(&[1, 1, 2, 9]) {
            let request = receive(input, &self.nodes[node]);
            let node = &mut self.nodes[node];
            let id = node.ids | RECEIVE;
            let at = usize::from(input.byte() % 8);
            if let Some(pair) = node.qps.get_mut(at) {
                if pair.handle.post_recv(request).is_ok() {
                    pair.receives.push_back(id);
                }
            } else {
                let at = input.index(node.srqs.len());
                let shared = &mut node.srqs[at];
                if shared.srq.post_recv(request).is_ok() {
                    shared.receives.push(id);
                }
            }
            node.ids += 1;
        }
    }

    fn register(&mut self, input: &mut Input<'_>, node: usize) {
        let node = &mut self.nodes[node];
        if node.regions.len() < 6 {
            let access = Access::from_bits_truncate(input.word());
            let base = input.pick(&[0x2000, 0, 0x1001, u64::MAX - 900, u64::MAX]);
            let len = input.pick(&[1200, 0, 7, 900, 901]);
            let _ = node.register(input.pick(&PDS), access, base, len);
        }
    }

    fn window(&mut self, input: &mut Input<'_>, node: usize) {
        let node = &mut self.nodes[node];
        let some = node.windows.get(usize::from(input.byte() % 8)).copied();
        match some {
            Some(window) => {
                let known = node.memory.window_key(window).is_some();
                assert_eq!(node.memory.destroy_window(window), known);
                assert!(!node.memory.destroy_window(window));
            }
            None if node.windows.len() < 6 => {
                let kind = input.pick(&[WindowType::Type1, WindowType::Type2]);
                node.add_window(input.pick(&PDS), kind);
            }
            None => {}
        }
    }

    fn address(&mut self, input: &mut Input<'_>, node: usize) {
        let av = any_address(input, Gid::from(address(1 - node)));
        let node = &mut self.nodes[node];
        if let Ok(ah) = node.engine.create_ah(input.pick(&PDS), &av) {
            node.ahs.push(ah);
        }
    }

    fn multicast(&mut self, input: &mut Input<'_>, node: usize) {
        let engine = &mut self.nodes[node].engine;
        let at = input.index(self.nodes[node].qps.len());
        let qpn = self.nodes[node].qps[at].handle.qpn();
        let group: IpAddr = input.pick(&[[239, 0, 0, 1], [239, 0, 0, 2], [10, 0, 0, 1]]).into();
        let attach = input.chance(128);
        let before: Vec<_> = engine.multicast_groups().collect();
        let done = if attach {
            engine.attach_multicast(qpn, Gid::from(group))
        } else {
            engine.detach_multicast(qpn, Gid::from(group))
        };
        let is_member = engine.multicast_groups().any(|g| g == Gid::from(group));
        assert!(done.is_err() || is_member || !attach);
        assert!(done.is_ok() || engine.multicast_groups().count() == before.len());
    }

    fn shared(&mut self, input: &mut Input<'_>, node: usize) {
        let node = &mut self.nodes[node];
        match input.byte() % 4 {
            0 if node.srqs.len() < 3 => node.add_srq(input.pick(&PDS), input.pick(&[4, 0, 1])),
            1 => drop(node.xrcd.remove(input.within(0..=3))),
            2 => {
                let at = input.index(node.srqs.len());
                node.xrcd.add(Arc::clone(&node.srqs[at].srq));
            }
            _ => {
                let at = input.index(node.srqs.len());
                let srq = &node.srqs[at].srq;
                let limit = u32::from(input.byte() % 16);
                assert_eq!(srq.set_limit(limit).is_ok(), limit <= srq.depth());
            }
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        let nanos = input.pick(&[1_200_000, 1_000, 100_000, 50_000_000, 1_000_000_000]);
        self.now = self.now + Duration::from_nanos(nanos);
        for node in &mut self.nodes {
            node.engine.handle_timeout(self.now);
        }
    }

    /// Carries packets until there are none. Some are lost, but none after the input is used up.
    fn settle(&mut self, input: &mut Input<'_>) {
        const ROUNDS: usize = 3000;
        let lossy = input.chance(80);
        for _ in 0..ROUNDS {
            let mut any = false;
            for from in 0..2 {
                let [a, b] = &mut self.nodes;
                let (from, to) = if from == 0 { (a, b) } else { (b, a) };
                from.engine.poll_transmit(self.now, &mut from.batch);
                for frame in from.batch.frames() {
                    any = true;
                    for (net, bytes) in frame.packets() {
                        let copies = if lossy { input.pick(&[1, 1, 1, 0, 2]) } else { 1 };
                        for _ in 0..copies {
                            to.engine.handle_frame(self.now, &Frame::single(net, bytes));
                        }
                    }
                }
                from.batch.clear();
                while from.engine.poll_event().is_some() {}
            }
            if !any {
                self.nodes.iter().for_each(Node::check);
                return;
            }
        }
        panic!("the devices do not come to rest");
    }

    pub(super) fn end(mut self) {
        self.settle(&mut Input::new(&[]));
        for node in &mut self.nodes {
            node.poll();
            node.check_memory();
        }
    }
}

fn small() -> QpCap {
    QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() }
}

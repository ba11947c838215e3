//! Fuzzes two communication managers.
//! The bytes decide what the network between them loses, duplicates, reorders and forges, and what
//! their consumers do.
//!
//! Invariants: the memory that a remote sender can make a manager use is bounded; a consumer gets
//! no events for an object that it has destroyed; when all objects are destroyed and time has
//! passed, no state is left.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_core::cm::mad::{
    Drep, Dreq, LEN, Mad, Message, Mra, Rej, RejReason, Rep, Req, Rtu, SidrRep, SidrReq,
};
use rxe_core::cm::{CmConfig, CmEvent, ConnId, ListenerId, Manager, Outgoing, Route};
use rxe_core::types::{Gid, Qpn, Time};

use super::input::Input;

const SERVICE: u64 = 0x0106_1c06;
const BACKLOG: usize = 3;

/// Runs the steps that the bytes choose.
pub fn run(data: &[u8]) {
    const STEPS: usize = 300;
    let mut input = Input::new(data);
    let mut world = World { nodes: [Node::new(0), Node::new(1)], now: Time::from_nanos(1) };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}

struct World {
    nodes: [Node; 2],
    now: Time,
}

struct Node {
    manager: Manager,
    listener: Option<ListenerId>,
    /// The datagrams in flight to this node.
    wire: Vec<Outgoing>,
    /// The consumer's connections and address resolutions.
    known: Vec<ConnId>,
    destroyed: HashSet<ConnId>,
    /// The number of connections and resolutions that the consumer has started.
    own: usize,
}

fn gid(node: usize) -> Gid {
    Gid::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, if node == 0 { 1 } else { 2 })))
}

impl Node {
    fn new(index: u8) -> Self {
        let seed = 7 + u64::from(index);
        let mut manager = Manager::new(CmConfig { block: index, guid: seed, seed });
        let listener = manager.listen(Time::ZERO, SERVICE, BACKLOG).ok();
        let (wire, known, destroyed) = (Vec::new(), Vec::new(), HashSet::new());
        Self { manager, listener, wire, known, destroyed, own: 0 }
    }

    fn some(&self, input: &mut Input<'_>) -> ConnId {
        match self.known.get(usize::from(input.byte() % 16)) {
            Some(&id) => id,
            None => self.known.last().copied().unwrap_or(ConnId(1)),
        }
    }

    /// Takes the events of the manager and reacts as the bytes choose.
    fn events(&mut self, input: &mut Input<'_>) {
        while let Some(event) = self.manager.poll_event() {
            let id = event.id();
            assert!(!self.destroyed.contains(&id), "{event:?} of what is destroyed");
            match event {
                CmEvent::Request { .. } | CmEvent::Resolve { .. } => {
                    assert!(!self.known.contains(&id), "{event:?} again");
                    self.known.push(id);
                    if input.chance(200) {
                        self.manager.taken(id);
                        self.own += 1;
                    }
                }
                _ => assert!(self.known.contains(&id), "{event:?} of what nobody made"),
            }
        }
        let kept = self.manager.len();
        assert!(kept <= self.own + BACKLOG + self.known.len(), "{kept} connections");
    }
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.chance(110));
        let (now, remote, local) = (self.now, gid(1 - at), gid(at));
        let route = Route { local, remote, traffic_class: 0 };
        let node = &mut self.nodes[at];
        let id = node.some(input);
        let text = input.pick(&[&b""[..], &[7; 56], &[7; 300]]);
        match input.byte() % 24 {
            0 | 1 => {
                let req = self.request(input);
                let node = &mut self.nodes[at];
                let id = node.manager.connect(now, route, req).expect("there is room");
                node.known.push(id);
                node.own += 1;
            }
            2 => {
                let req = SidrReq { service_id: SERVICE, ..SidrReq::default() };
                let id = node.manager.resolve(now, route, req).expect("there is room");
                node.known.push(id);
                node.own += 1;
            }
            3 | 4 => {
                let local_qpn = Qpn::from_wire(input.byte().into());
                let _ = node.manager.accept(now, id, Rep { local_qpn, ..Rep::default() });
            }
            5 => _ = node.manager.reject(id, RejReason(input.byte().into()), text, text),
            6 | 7 => _ = node.manager.establish(id, text),
            8 => _ = node.manager.disconnect(now, id, text),
            9 => {
                node.manager.destroy(now, id);
                node.destroyed.insert(id);
            }
            10 => _ = node.manager.answer_sidr(now, id, SidrRep::default()),
            11 => node.manager.communication_established(id),
            12 => match node.listener.take() {
                Some(listener) => _ = node.manager.unlisten(now, listener),
                None => node.listener = node.manager.listen(now, SERVICE, BACKLOG).ok(),
            },
            13 | 14 => {
                self.wait(input.pick(&[1_000_000, 70_000_000, 2_000_000_000, 60_000_000_000]))
            }
            15 | 16 => self.forge(input, at),
            17..=19 => self.deliver(input, at, false),
            _ => self.deliver(input, at, true),
        }
        for node in &mut self.nodes {
            node.events(input);
        }
    }

    fn request(&self, input: &mut Input<'_>) -> Req {
        Req {
            service_id: input.pick(&[SERVICE, SERVICE, 5]),
            local_qpn: Qpn::from_wire(input.byte().into()),
            path_mtu: input.pick(&[3, 1, 0, 9]),
            transport_service_type: input.pick(&[0, 0, 1, 2, 3]),
            extended_transport_type: input.pick(&[1, 0]),
            ..Req::default()
        }
    }

    fn wait(&mut self, nanos: u64) {
        self.now = self.now + Duration::from_nanos(nanos);
        for node in &mut self.nodes {
            node.manager.handle_timeout(self.now);
            let next = node.manager.poll_timeout();
            assert!(next.is_none_or(|at| at > self.now), "what is due has been done");
        }
    }

    /// Forges a message that claims to belong to a connection of the receiver.
    fn forge(&mut self, input: &mut Input<'_>, at: usize) {
        let theirs = self.nodes[1 - at].some(input).0;
        let node = &self.nodes[at];
        let (remote_comm_id, local_comm_id) = (node.some(input).0, theirs);
        let message = match input.byte() % 9 {
            0 => Message::Req(Req { local_comm_id, ..self.request(input) }),
            1 => {
                let message = input.byte() % 4;
                let service_timeout = input.byte() % 32;
                let mra = Mra {
                    local_comm_id,
                    remote_comm_id,
                    message,
                    service_timeout,
                    ..Mra::default()
                };
                Message::Mra(mra)
            }
            2 => {
                let (message, reason) = (input.byte() % 4, RejReason(input.byte().into()).0);
                let rej = Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() };
                Message::Rej(rej)
            }
            3 => Message::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() }),
            4 => Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
            5 => {
                let remote_qpn = Qpn::from_wire(input.byte().into());
                Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() })
            }
            6 => Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
            7 => {
                let (request_id, service_id) = (local_comm_id, SERVICE);
                Message::SidrReq(SidrReq { request_id, service_id, ..SidrReq::default() })
            }
            _ => Message::SidrRep(SidrRep { request_id: remote_comm_id, ..SidrRep::default() }),
        };
        let mut mad = Box::new(message.emit(input.byte().into()));
        if input.chance(100) {
            let at = input.index(LEN);
            mad[at] = input.byte();
        }
        // Half of the forged messages have the peer's address, half another one.
        let remote = if input.chance(128) { gid(1 - at) } else { gid(at) };
        let route = Route { local: gid(at), remote, traffic_class: 0 };
        self.nodes[at].wire.push(Outgoing { route, mad });
    }

    /// Delivers datagrams to one node, after collecting those that both nodes send.
    fn deliver(&mut self, input: &mut Input<'_>, to: usize, all: bool) {
        for from in 0..2 {
            while let Some(sent) = self.nodes[from].manager.poll_transmit() {
                let Route { local, remote, traffic_class } = sent.route;
                let route = Route { local: remote, remote: local, traffic_class };
                self.nodes[1 - from].wire.push(Outgoing { route, ..sent });
            }
        }
        let node = &mut self.nodes[to];
        let mut left = if all { node.wire.len() } else { 1 };
        while left > 0 && !node.wire.is_empty() {
            left -= 1;
            // In order, unless the bytes choose otherwise.
            let at = usize::from(input.byte() >> 5).min(node.wire.len() - 1);
            let one = if input.chance(16) { node.wire[at].clone() } else { node.wire.remove(at) };
            if !input.chance(24) {
                let mad = Mad::new(&one.mad[..]).expect("256 bytes");
                node.manager.handle_mad(self.now, one.route, &mad);
            }
        }
    }

    fn end(mut self) {
        for node in &mut self.nodes {
            for &id in &node.known {
                node.manager.destroy(self.now, id);
                node.destroyed.insert(id);
            }
            node.manager.close(self.now);
            assert_eq!(node.manager.poll_event(), None, "after all is destroyed");
        }
        // Longer than all retries and waiting times together.
        for _ in 0..200 {
            self.wait(30_000_000_000);
            for node in &mut self.nodes {
                while node.manager.poll_transmit().is_some() {}
                assert_eq!(node.manager.poll_event(), None, "after all is destroyed");
            }
        }
        for node in &self.nodes {
            assert_eq!((node.manager.len(), node.manager.poll_timeout()), (0, None));
        }
    }
}

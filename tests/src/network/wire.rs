//! The packets in flight, and the ports that they pass.

use rxe_core::wire::NetHeader;
use rxe_net::{Egress, Passage, Rng};

use super::Settings;
use super::events::{Event, Events};
use super::figures::Recorder;
use super::host::of_address;
use super::topology::{Node, Topology};
use crate::sim::rng;

/// A packet in flight.
#[derive(Debug)]
struct Packet {
    net: NetHeader,
    bytes: Vec<u8>,
    /// The node where the packet arrives next.
    at: Node,
    to: u32,
    /// The hash by which switches assign the packet's flow to a spine.
    hash: u32,
}

/// Everything between the hosts.
#[derive(Debug)]
pub(super) struct Wire {
    topology: Topology,
    pub(super) ports: Vec<Egress>,
    packets: Vec<Packet>,
    /// The free indices of `packets`.
    free: Vec<u32>,
    rng: Rng,
}

impl Wire {
    pub(super) fn new(settings: &Settings) -> Self {
        let Settings { topology, gigabits, delay, queue, .. } = *settings;
        Self {
            topology,
            ports: topology.ports(gigabits, delay * 1000, queue),
            packets: Vec::new(),
            free: Vec::new(),
            // Neighbouring seeds must give unrelated numbers.
            rng: Rng::new(Rng::new(settings.seed).next()),
        }
    }

    /// Stores a packet that leaves a host. Returns its number.
    pub(super) fn take(&mut self, net: NetHeader, bytes: &[u8], from: u32) -> u32 {
        let to = of_address(net.dst);
        let hash = flow_hash(from, to, net.src_port);
        let at = Node::Host(from);
        if let Some(number) = self.free.pop() {
            let packet = &mut self.packets[number as usize];
            packet.bytes.clear();
            packet.bytes.extend_from_slice(bytes);
            (packet.net, packet.at, packet.to, packet.hash) = (net, at, to, hash);
            return number;
        }
        self.packets.push(Packet { net, bytes: bytes.to_vec(), at, to, hash });
        u32::try_from(self.packets.len() - 1).expect("as many as queues can hold")
    }

    /// Forwards a packet from its node, or drops it if the queue of the port is full.
    pub(super) fn forward(
        &mut self,
        now: u64,
        number: u32,
        events: &mut Events,
        recorder: &mut Recorder,
    ) {
        let packet = &mut self.packets[number as usize];
        let (at, next) = self.topology.next(packet.at, packet.to, packet.hash);
        let port = &mut self.ports[at];
        let bytes = Egress::size_on_link(packet.bytes.len());
        let capable = packet.net.tos & 0b11 != 0;
        recorder.queue(at, now, port);
        match port.send(now, bytes, capable, &mut self.rng) {
            Passage::Lost => self.free.push(number),
            Passage::Sent { arrives, marked } => {
                if marked {
                    packet.net.tos |= 0b11;
                }
                packet.at = next;
                events.schedule(arrives, Event::Arrival(number));
            }
        }
    }

    /// Returns the host that a packet has arrived at, or `None` if it is at a switch.
    pub(super) fn host(&self, number: u32) -> Option<u32> {
        match self.packets[number as usize].at {
            Node::Host(host) => Some(host),
            Node::Leaf(_) | Node::Spine(_) => None,
        }
    }

    /// Returns the network header and the bytes of a packet.
    pub(super) fn packet(&self, number: u32) -> (NetHeader, &[u8]) {
        let packet = &self.packets[number as usize];
        (packet.net, &packet.bytes)
    }

    /// Frees the number of a packet that has been delivered.
    pub(super) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Returns the most packets that were in flight simultaneously.
    pub(super) fn most(&self) -> usize {
        self.packets.len()
    }
}

/// Returns a hash of the fields by which switches spread flows.
fn flow_hash(from: u32, to: u32, port: u16) -> u32 {
    let flow = u64::from(from) << 40 ^ u64::from(to) << 16 ^ u64::from(port);
    rng::Rng::new(flow).word()
}

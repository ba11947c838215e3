//! The simulation loop: events, hosts, and the messages that hosts post.

use rxe_core::queue::{Completion, Immediate, Status};
use rxe_core::types::{Psn, Qpn, Time};
use rxe_core::wire::{Frame, TxBatch, TxLimits};

use super::Settings;
use super::events::{Event, Events};
use super::figures::{Figures, Recorder};
use super::host::{Connection, Host, of_qpn};
use super::topology::Topology;
use super::traffic::{Posts, Traffic};
use super::wire::Wire;

/// The limit of bytes that an engine puts into one batch for its link.
const BATCH: usize = 8 << 10;

/// How long requests may take after the end, in nanoseconds. All retries of a connection take half
/// a second.
const LONGEST: u64 = 30_000_000_000;

/// A running network.
pub(super) struct Network<'a> {
    settings: &'a Settings,
    wire: Wire,
    hosts: Vec<Host>,
    connections: Vec<Connection>,
    events: Events,
    batch: TxBatch,
    /// The virtual time in nanoseconds since the start.
    now: u64,
    /// Requests that have not completed.
    outstanding: u64,
    /// Whether posting has ended.
    is_over: bool,
    recorder: Recorder,
}

impl<'a> Network<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        let Settings { topology, traffic, .. } = settings;
        let mut ends = vec![0; topology.hosts() as usize];
        for &(from, to) in &traffic.pairs {
            ends[from as usize] += 1;
            ends[to as usize] += 1;
        }
        let mut hosts: Vec<_> = (0..)
            .zip(ends)
            .map(|(i, ends)| Host::new(i, ends, traffic.message, settings.congestion_control))
            .collect();
        let connect = |(number, &pair): (u32, _)| {
            Connection::new(&mut hosts, number, pair, traffic.message, settings.mtu)
        };
        let connections: Vec<_> = (0..).zip(&traffic.pairs).map(connect).collect();
        let limits = TxLimits { batch_bytes: BATCH, ..TxLimits::default() };
        Self {
            wire: Wire::new(settings),
            recorder: Recorder::new(settings, connections.len()),
            hosts,
            connections,
            events: Events::default(),
            batch: TxBatch::new(limits),
            now: 0,
            outstanding: 0,
            is_over: false,
            settings,
        }
    }

    /// Runs until posting has ended and all requests have completed.
    pub(super) fn run(&mut self) {
        if self.settings.warm == 0 {
            self.recorder.begin(&mut self.wire.ports, &self.hosts, &self.connections);
        }
        self.start();
        let [warm, end] = [self.settings.warm, self.settings.end].map(|micros| micros * 1000);
        let mut is_warm = warm == 0;
        while let Some(at) = self.events.next_at() {
            if !is_warm && at >= warm {
                is_warm = true;
                self.recorder.begin(&mut self.wire.ports, &self.hosts, &self.connections);
            }
            if !self.is_over && at >= end {
                self.is_over = true;
                self.recorder.end(&self.wire.ports, &self.hosts, &self.connections);
            }
            if self.is_over && self.outstanding == 0 {
                return;
            }
            assert!(at < end + LONGEST, "{} requests never complete", self.outstanding);
            let Some((at, event)) = self.events.pop() else { break };
            self.now = at;
            match event {
                Event::Arrival(packet) => self.arrive(packet),
                Event::Turn(host) => self.turn(host),
                Event::Idle(host) => {
                    self.hosts[host as usize].is_sending = false;
                    self.transmit(host);
                }
                Event::Timer(host) => {
                    if self.hosts[host as usize].timer.take_if(|timer| *timer == at).is_some() {
                        self.turn(host);
                    }
                }
            }
        }
        assert_eq!(self.outstanding, 0, "requests that nothing is going to complete");
        if !self.is_over {
            self.recorder.end(&self.wire.ports, &self.hosts, &self.connections);
        }
    }

    fn start(&mut self) {
        let Traffic { posts, .. } = self.settings.traffic;
        for host in 0..self.settings.topology.hosts() {
            match posts {
                Posts::Stream(count) | Posts::Once(count) => {
                    for at in 0..self.hosts[host as usize].sends.len() {
                        let connection = self.hosts[host as usize].sends[at];
                        (0..count).for_each(|_| self.post(connection));
                    }
                }
                Posts::InTurn(count) => (0..count).for_each(|_| self.post_in_turn(host)),
            }
            self.transmit(host);
        }
    }

    fn post(&mut self, connection: u32) {
        self.connections[connection as usize].post(self.now);
        self.outstanding += 1;
    }

    /// Posts on the host's next connection that has room and has not failed.
    fn post_in_turn(&mut self, host: u32) {
        let host = &mut self.hosts[host as usize];
        for _ in 0..host.sends.len() {
            let number = host.sends[host.turn];
            host.turn = (host.turn + 1) % host.sends.len();
            if self.connections[number as usize].has_room() {
                return self.post(number);
            }
        }
    }

    /// Handles the arrival of a packet at a host or a switch.
    fn arrive(&mut self, packet: u32) {
        let Some(number) = self.wire.host(packet) else {
            return self.wire.forward(self.now, packet, &mut self.events, &mut self.recorder);
        };
        let host = &mut self.hosts[number as usize];
        host.inbox.push(packet);
        if !host.has_turn {
            host.has_turn = true;
            self.events.schedule(self.now + self.settings.turn * 1000, Event::Turn(number));
        }
    }

    /// Lets a host handle the packets that have arrived and the timers that are due.
    fn turn(&mut self, number: u32) {
        let now = Time::from_nanos(self.now);
        let host = &mut self.hosts[number as usize];
        host.has_turn = false;
        for packet in host.inbox.drain(..) {
            let (net, bytes) = self.wire.packet(packet);
            host.engine.handle_frame(now, &Frame::single(net, bytes));
            self.wire.release(packet);
        }
        host.engine.handle_timeout(now);
        while host.engine.poll_event().is_some() {}
        while let Some(completion) = self.hosts[number as usize].cq.poll() {
            self.completed(number, &completion);
        }
        self.transmit(number);
    }

    fn completed(&mut self, host: u32, completion: &Completion) {
        let (number, is_sender) = of_qpn(completion.qpn);
        let connection = &mut self.connections[number];
        if !is_sender {
            // A receive that was flushed when its queue pair failed carries no message.
            if completion.status == Status::Success {
                let Some(Immediate::Data(imm)) = completion.imm else {
                    panic!("no immediate data")
                };
                connection.deliver(imm, completion.byte_len);
            }
            return;
        }
        let posted = connection.complete(completion.id, completion.status);
        self.outstanding -= 1;
        if completion.status == Status::Success {
            self.recorder.completed(posted, self.now);
        }
        if self.is_over {
            return;
        }
        match self.settings.traffic.posts {
            Posts::Stream(_) if connection.failure.is_none() => {
                self.post(u32::try_from(number).expect("it was one"));
            }
            Posts::InTurn(_) => self.post_in_turn(host),
            Posts::Stream(_) | Posts::Once(_) => {}
        }
    }

    /// Hands the next packets to a host's link if the link is idle, and sets the host's timer.
    fn transmit(&mut self, number: u32) {
        let host = &mut self.hosts[number as usize];
        if !host.is_sending {
            host.engine.poll_transmit(Time::from_nanos(self.now), &mut self.batch);
            for (net, bytes) in self.batch.frames().flat_map(|frame| frame.packets()) {
                if let Some((connection, psn)) = request(bytes) {
                    let again = self.connections[connection].sends(psn);
                    self.recorder.sent(again);
                }
                let packet = self.wire.take(net, bytes, number);
                self.wire.forward(self.now, packet, &mut self.events, &mut self.recorder);
            }
            if !self.batch.is_empty() {
                host.is_sending = true;
                let idle_at = self.wire.ports[Topology::of_host(number)].idle_at();
                self.events.schedule(idle_at, Event::Idle(number));
            }
            self.batch.clear();
        }
        if let Some(due) = host.engine.poll_timeout() {
            let due = due.as_nanos().max(self.now + 1);
            if host.timer.is_none_or(|timer| due < timer) {
                host.timer = Some(due);
                self.events.schedule(due, Event::Timer(number));
            }
        }
    }

    /// Checks all connections and returns the figures of the run.
    pub(super) fn finish(mut self) -> Figures {
        for connection in &self.connections {
            connection.check();
        }
        self.recorder.figures(self.wire.most(), &self.connections)
    }
}

/// Returns the connection and the PSN of a request packet; `None` for a response packet.
fn request(bytes: &[u8]) -> Option<(usize, Psn)> {
    let word = |at: usize| u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
    // BTH: the destination queue pair at byte 5, the PSN at byte 9.
    let (connection, to_sender) = of_qpn(Qpn::from_wire(word(5)));
    (!to_sender).then(|| (connection, Psn::new(word(9))))
}

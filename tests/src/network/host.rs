//! A simulated host: an engine with its memory, and its ends of connections.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Buffer, Memory};
use rxe_core::qp::{QpAttr, QpCap, QpHandle, QpInit, QpType};
use rxe_core::queue::{
    CompletionQueue, Payload, RecvRequest, Remote, SendOp, SendRequest, Sge, Status,
};
use rxe_core::types::{Gid, Key, Mtu, Psn, Qpn, Time};

use crate::sim::memory::{ALL, PD};
use crate::sim::world::bring_to_rts;

const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x10_0000;
/// Receives posted on each connection. A message uses one, because it is a WRITE with immediate data.
const RECEIVES: u32 = 16;
/// The first queue pair number. Connection `i` has `FIRST + 2 * i` (sender) and `FIRST + 2 * i + 1`
/// (receiver).
const FIRST: u32 = 0x100;

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) cq: Arc<CompletionQueue>,
    /// Packets that have arrived since the host's last turn.
    pub(super) inbox: Vec<u32>,
    /// Whether the host's next turn is scheduled.
    pub(super) has_turn: bool,
    /// Whether the link is busy. Then an [`Event::Idle`](super::events::Event::Idle) is scheduled.
    pub(super) is_sending: bool,
    /// The time of the scheduled timer event.
    pub(super) timer: Option<u64>,
    /// The connections on which the host is the sender.
    pub(super) sends: Vec<u32>,
    /// The index in `sends` of the connection that is posted to next, with
    /// [`Posts::InTurn`](super::traffic::Posts::InTurn).
    pub(super) turn: usize,
}

/// Returns the address of a host.
pub(super) fn address(host: u32) -> IpAddr {
    let [_, a, b, c] = (host + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(10, a, b, c))
}

/// Returns the host that has this address.
pub(super) fn of_address(address: IpAddr) -> u32 {
    let IpAddr::V4(address) = address else { unreachable!("all have IPv4 addresses") };
    (u32::from(address) & 0xff_ffff) - 1
}

/// Returns the connection of a queue pair, and whether the queue pair is the sender's.
pub(super) fn of_qpn(qpn: Qpn) -> (usize, bool) {
    let number = qpn.value() - FIRST;
    ((number / 2) as usize, number.is_multiple_of(2))
}

impl Host {
    /// Creates a host with `ends` ends of connections.
    pub(super) fn new(host: u32, ends: u32, message: u32, congestion_control: bool) -> Self {
        let memory = Arc::new(Memory::new());
        let buffer = Buffer::zeroed(message as usize);
        assert_eq!(memory.register(PD, buffer, BASE, ALL, || KEY.value()), Ok(KEY));
        let config = Config {
            gids: vec![Gid::from(address(host))],
            congestion_control,
            ..Config::default()
        };
        Self {
            engine: Engine::new(config, memory),
            cq: Arc::new(CompletionQueue::new((ends + 1) * 2 * RECEIVES, None)),
            inbox: Vec::new(),
            has_turn: false,
            is_sending: false,
            timer: None,
            sends: Vec::new(),
            turn: 0,
        }
    }

    /// Creates one end of a connection.
    fn connect(&mut self, own: u32, peer: u32, peer_host: u32, mtu: Mtu) -> Arc<QpHandle> {
        let cap = QpCap {
            max_send_wr: RECEIVES,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit {
            service: QpType::Rc,
            pd: PD,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            cap,
            srq: None,
            xrcd: None,
            sq_sig_all: true,
        };
        let qpn = Qpn::from_wire(own);
        let handle = self.engine.create_qp(qpn, init).expect("the number is free");
        let mut attr = QpAttr {
            path_mtu: mtu,
            qp_access_flags: ALL,
            dest_qp_num: Qpn::from_wire(peer),
            ..QpAttr::default()
        };
        attr.ah_attr.dgid = Gid::from(address(peer_host));
        bring_to_rts(&mut self.engine, Time::ZERO, qpn, attr);
        handle
    }
}

/// A connection from one host to another.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Arc<QpHandle>,
    receiver: Arc<QpHandle>,
    /// The length of a message in bytes.
    pub(super) message: u32,
    /// When each outstanding message was posted, in nanoseconds.
    posted: VecDeque<u64>,
    /// Messages posted.
    begun: u32,
    /// Messages that completed with success.
    completed: u32,
    /// Messages that completed with an error.
    failed: u32,
    /// Messages that the receiver has got.
    pub(super) delivered: u32,
    /// One past the highest PSN sent.
    high: Psn,
    /// The status of the first request that failed.
    pub(super) failure: Option<Status>,
}

impl Connection {
    /// Connects two of the hosts, as connection `number`.
    pub(super) fn new(
        hosts: &mut [Host],
        number: u32,
        (from, to): (u32, u32),
        message: u32,
        mtu: Mtu,
    ) -> Self {
        let [a, b] = [0, 1].map(|end| FIRST + 2 * number + end);
        let sender = hosts[from as usize].connect(a, b, to, mtu);
        let receiver = hosts[to as usize].connect(b, a, from, mtu);
        hosts[from as usize].sends.push(number);
        let connection = Self {
            sender,
            receiver,
            message,
            posted: VecDeque::new(),
            begun: 0,
            completed: 0,
            failed: 0,
            delivered: 0,
            high: Psn::ZERO,
            failure: None,
        };
        (0..RECEIVES).for_each(|_| connection.post_receive());
        connection
    }

    fn post_receive(&self) {
        let request = RecvRequest::default();
        self.receiver.post_recv(request).expect("there is room");
    }

    /// Posts the next message. Its immediate data is the number of the message.
    pub(super) fn post(&mut self, now: u64) {
        let imm = Some(self.begun);
        let op = SendOp::Write { remote: Remote { addr: BASE, rkey: KEY }, imm };
        let sge = Sge { addr: BASE, length: self.message, lkey: KEY };
        let payload = Payload::Sges([sge].into_iter().collect());
        let request = SendRequest::new(self.begun.into(), op, payload);
        self.sender.post_send(request).expect("there is room");
        self.posted.push_back(now);
        self.begun += 1;
    }

    /// Records that a packet of a request is sent. Returns whether it is a retransmission.
    pub(super) fn sends(&mut self, psn: Psn) -> bool {
        let again = psn.before(self.high);
        if !again {
            self.high = psn.next();
        }
        again
    }

    /// Records the completion of a message. Returns when the message was posted, in nanoseconds.
    ///
    /// # Panics
    /// If it is not the oldest outstanding message.
    pub(super) fn complete(&mut self, id: u64, status: Status) -> u64 {
        assert_eq!(id, u64::from(self.completed + self.failed), "each completes once, in order");
        match status {
            Status::Success => {
                assert_eq!(self.failed, 0, "nothing succeeds after a failure");
                self.completed += 1;
            }
            _ => {
                self.failed += 1;
                self.failure.get_or_insert(status);
            }
        }
        self.posted.pop_front().expect("it was outstanding")
    }

    /// Records that a message has arrived, and posts another receive.
    ///
    /// # Panics
    /// If it is not the next message, or has another length.
    pub(super) fn deliver(&mut self, number: u32, len: u32) {
        assert_eq!((number, len), (self.delivered, self.message), "each arrives once, in order");
        self.delivered += 1;
        self.post_receive();
    }

    /// Returns whether one more message may be posted.
    pub(super) fn has_room(&self) -> bool {
        self.failure.is_none() && self.posted.len() < RECEIVES as usize
    }

    /// Checks, after all requests have completed, that the deliveries fit the completions.
    ///
    /// # Panics
    /// If a request has not completed, or a successful message was not delivered.
    pub(super) fn check(&self) {
        assert_eq!(self.begun, self.completed + self.failed, "each request completes");
        // A failed message may have been delivered: perhaps only its acknowledgement was lost.
        let delivered = self.completed..=self.completed + self.failed;
        assert!(delivered.contains(&self.delivered), "what completed has arrived");
    }
}

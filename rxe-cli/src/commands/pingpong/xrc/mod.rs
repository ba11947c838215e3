//! `--transport xrc`: the exchange of ibv_xsrq_pingpong.
//! The server has an initiator and a target for each client. Each side has one shared receive
//! queue, which the other side's messages name. The server sends first. An end that has received
//! all messages from all peers sends "END", the server last.
//!
//! The clients of ibv_xsrq_pingpong share one XRC domain through a file in /tmp, so its server
//! reaches its clients over all their connections in turn. The clients of rxe have their own
//! domains, so each is reached over its own connection.

mod message;

use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::mem::Access;
use rxe_core::qp::QpCap;
use rxe_core::queue::CompletionOp;
use rxe_core::types::Mtu;
use rxe_verbs::{
    ConnectOptions, Endpoint, MemoryRegion, ProtectionDomain, QpType, QueuePair,
    SharedReceiveQueue, XrcDomain,
};
use serde::Serialize;

use self::message::Destination;
use super::peer::{PeerConnection, PeerState};
use super::wait::{self, Waiter};
use super::{Args, in6};
use crate::common::{Error, Opened, ack_timeout, check_peer, print, print_json, rendezvous};

/// Connects, exchanges the messages and reports the result.
pub(super) fn run(
    args: &Args,
    opened: &Opened,
    mtu: Mtu,
    hosts: &[SocketAddr],
) -> Result<(), Error> {
    let mut side = Side::new(args, opened, mtu)?;
    let mut peers = Vec::new();
    if args.host.is_some() {
        let mut stream = rendezvous::connect(hosts, &rendezvous::start_first(&args.command()))?;
        let own = side.connections[0].own;
        own.send(&mut stream)?;
        side.say("local", &own)?;
        let peer = Destination::receive(&mut stream)?;
        side.say("remote", &peer)?;
        side.connect(0, peer, &stream)?;
        peers.push(PeerConnection::new(stream)?);
    } else {
        let listener = rendezvous::listen(args.port)?;
        for at in 0..side.connections.len() {
            let mut stream = rendezvous::accept(&listener)?;
            let own = side.connections[at].own;
            let peer = Destination::receive(&mut stream).inspect_err(|_| {
                // This answer tells the client that the services differ.
                let _ = own.send(&mut stream);
            })?;
            side.say("remote", &peer)?;
            side.connect(at, peer, &stream)?;
            side.say("local", &own)?;
            own.send(&mut stream)?;
            peers.push(PeerConnection::new(stream)?);
        }
    }
    let time = side
        .exchange(args.host.is_none(), &mut peers)
        .and_then(|time| part(args.host.is_some(), &mut peers).map(|()| time))
        .inspect_err(|why| peers.iter_mut().for_each(|peer| peer.failed(why)))?;
    side.report(time)
}

/// One side: a server with a connection per client, or a client with one to the server.
struct Side<'a> {
    args: &'a Args,
    opened: &'a Opened,
    mtu: Mtu,
    waiter: Waiter,
    mr: MemoryRegion,
    srq: SharedReceiveQueue,
    connections: Vec<Connection>,
}

struct Connection {
    target: QueuePair,
    initiator: QueuePair,
    own: Destination,
    /// The peer's address, known once connected.
    peer: Option<Destination>,
    posted: u32,
}

impl<'a> Side<'a> {
    fn new(args: &'a Args, opened: &'a Opened, mtu: Mtu) -> Result<Self, Error> {
        let device = &opened.device;
        let count = args.clients.unwrap_or(1);
        // Each connection has one receive and up to [`SENDS`] sends.
        let waiter = Waiter::new(device, count * (1 + SENDS), args.events)?;
        let pd = device.create_pd()?;
        let size = args.transport.size(args.size, device.active_mtu())? as usize;
        let mr = pd.register(size, Access::LOCAL_WRITE)?;
        let domain = device.create_xrc_domain()?;
        let srq = pd.create_xrc_srq(&domain, &waiter.cq, count, 1)?;
        let connection = |_| Connection::new(&pd, &domain, &waiter, &srq, opened);
        let connections = (0..count).map(connection).collect::<Result<_, _>>()?;
        let side = Self { args, opened, mtu, waiter, mr, srq, connections };
        (0..count).try_for_each(|_| side.post_receive())?;
        Ok(side)
    }

    fn post_receive(&self) -> Result<(), Error> {
        Ok(self.srq.recv(0, &[self.mr.slice(..)])?)
    }

    /// Connects to a peer. `stream` is the TCP connection of the exchange.
    fn connect(&mut self, at: usize, peer: Destination, stream: &TcpStream) -> Result<(), Error> {
        let (_, host) = rendezvous::addresses(stream)?;
        check_peer(self.opened.gid, peer.gid, host)?;
        let connection = &mut self.connections[at];
        let options = ConnectOptions {
            mtu: Some(self.mtu),
            timeout: ack_timeout(),
            access: Access::empty(),
            ..ConnectOptions::default()
        };
        let Destination { recv_qpn, send_qpn, psn, gid, .. } = peer;
        let end = |qpn| Endpoint { qpn, psn, gid, mtu: self.mtu };
        connection.target.connect(&end(send_qpn), &options)?;
        connection.initiator.connect(&end(recv_qpn), &options)?;
        connection.peer = Some(peer);
        Ok(())
    }

    /// Sends and receives all messages. Returns the time this took.
    fn exchange(&mut self, starts: bool, peers: &mut [PeerConnection]) -> Result<Duration, Error> {
        let each = self.args.iters();
        let total = u64::from(each) * self.connections.len() as u64;
        let mut progress = Progress { sent: 0, received: 0, total };
        let begin = Instant::now();
        if starts {
            for connection in &mut self.connections {
                connection.send(&self.mr)?;
            }
        }
        while progress.sent < total || progress.received < total {
            let done = self.waiter.next(peers, &progress)?;
            wait::check(&done, &self.opened.device)?;
            if done.op != CompletionOp::Recv {
                progress.sent += 1;
                continue;
            }
            progress.received += 1;
            self.post_receive()?;
            if let Some(from) = self.connections.iter_mut().find(|c| c.target.qpn() == done.qpn)
                && from.posted < each
            {
                from.send(&self.mr)?;
            }
        }
        Ok(begin.elapsed())
    }

    /// Prints an address like ibv_xsrq_pingpong.
    fn say(&self, whose: &str, address: &Destination) -> Result<(), Error> {
        if self.args.wire.json {
            return Ok(());
        }
        print(&format!("{whose:>8}: {address}\n"))
    }

    fn report(&self, time: Duration) -> Result<(), Error> {
        if !self.args.wire.json {
            return print("success\n");
        }
        let device = &self.opened.device;
        let ends = self.connections.iter().filter_map(|c| Some((c.own, c.peer?)));
        print_json(&Report {
            device: device.name(),
            backend: device.backend_name(),
            transport: self.args.transport.name(),
            mtu: self.mtu.bytes(),
            size: self.mr.len(),
            connections: ends.map(|(own, peer)| [End::from(own), End::from(peer)]).collect(),
            iters: self.args.iters(),
            seconds: time.as_secs_f64(),
        })
    }
}

/// The depth of a send queue. Each send follows the answer to the last one, but the acknowledgement
/// may arrive after that answer, so several sends may be outstanding.
const SENDS: u32 = 4;

impl Connection {
    fn new(
        pd: &ProtectionDomain,
        domain: &XrcDomain,
        waiter: &Waiter,
        srq: &SharedReceiveQueue,
        opened: &Opened,
    ) -> Result<Self, Error> {
        let target = domain.qp().gid_index(opened.gid_index).build()?;
        target.to_init(Access::empty())?;
        let cap = QpCap { max_send_wr: SENDS, max_send_sge: 1, ..QpCap::default() };
        let initiator = pd.qp(&waiter.cq).service(QpType::XrcSend).cap(cap);
        let initiator = initiator.gid_index(opened.gid_index).build()?;
        initiator.to_init(Access::empty())?;
        let Endpoint { qpn: send_qpn, psn, gid, .. } = initiator.endpoint();
        let (recv_qpn, srqn) = (target.qpn(), srq.number());
        let own = Destination { lid: 0, recv_qpn, send_qpn, psn, srqn, gid };
        Ok(Self { target, initiator, own, peer: None, posted: 0 })
    }

    fn send(&mut self, mr: &MemoryRegion) -> Result<(), Error> {
        let srqn = self.peer.map_or(0, |peer| peer.srqn);
        self.posted += 1;
        Ok(self.initiator.send(0, &[mr.slice(..)]).to_srq(srqn).post()?)
    }
}

/// The time that a client may take to end after the server has received all messages.
const AFTER_ALL: Duration = Duration::from_secs(5);

/// Ends the exchange. Each client reports that it has finished, then the server does, so no side
/// ends while the other needs it.
fn part(client: bool, peers: &mut [PeerConnection]) -> Result<(), Error> {
    if client {
        peers.iter_mut().for_each(PeerConnection::finished);
    }
    let begin = Instant::now();
    for peer in peers.iter_mut() {
        loop {
            match peer.look() {
                // A client may have to wait for other clients.
                PeerState::Running if !client && begin.elapsed() > AFTER_ALL => {
                    let what = "a client has had all messages and does not end";
                    return Err(Error::new(what, "give the same -n on both ends"));
                }
                PeerState::Running => thread::sleep(Duration::from_millis(1)),
                PeerState::Finished => break,
                PeerState::Failed(why) => return Err(wait::gave_up(why)),
                PeerState::Gone => {
                    let what = "the peer has gone without an end, after all messages";
                    return Err(Error::new(what, "look at what it says"));
                }
            }
        }
    }
    if !client {
        peers.iter_mut().for_each(PeerConnection::finished);
    }
    Ok(())
}

/// The progress with all peers together.
struct Progress {
    sent: u64,
    received: u64,
    total: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received, total } = self;
        write!(f, "after {sent} messages sent and {received} of {total} received")
    }
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    backend: &'a str,
    transport: &'static str,
    mtu: usize,
    size: usize,
    /// The addresses of both sides of each connection.
    connections: Vec<[End; 2]>,
    /// The number of exchanges with each client.
    iters: u32,
    seconds: f64,
}

#[derive(Serialize)]
struct End {
    recv_qpn: u32,
    send_qpn: u32,
    psn: u32,
    srqn: u32,
    gid: std::net::Ipv6Addr,
}

impl From<Destination> for End {
    fn from(d: Destination) -> Self {
        let Destination { recv_qpn, send_qpn, psn, srqn, gid, .. } = d;
        Self {
            recv_qpn: recv_qpn.value(),
            send_qpn: send_qpn.value(),
            psn: psn.value(),
            srqn,
            gid: in6(gid),
        }
    }
}

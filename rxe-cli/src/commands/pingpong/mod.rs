//! `rxe pingpong`: ibv_rc_pingpong and its variants for other services.
//! Options, output and exchange are the same, so the other side may be one of those programs.

mod exchange;
mod peer;
mod run;
mod stamps;
mod transport;
mod wait;
mod xrc;

use std::net::Ipv6Addr;

use rxe_core::types::{Gid, Mtu};
use serde::Serialize;

use self::exchange::Address;
use self::peer::PeerConnection;
use self::run::{Outcome, Pingpong};
use self::stamps::Stamps;
use self::transport::Transport;
use crate::common::rendezvous::{self, PORT};
use crate::common::{DeviceArgs, Error, Opened, WireArgs, check_peer, print, print_json};

/// Exchange messages with a peer that runs this or ibv_rc_pingpong
///
/// Without HOST it waits for a peer. Options, output and the exchange over TCP are those of
/// ibv_rc_pingpong (with --transport: of ibv_uc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong or
/// ibv_xsrq_pingpong). So either side may be that program on a kernel device, which needs its option
/// -g. On one host: `rxe pingpong -d lo`, then `rxe pingpong 127.0.0.1`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The host where the other side waits; without it, wait here
    host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    #[command(flatten)]
    device: DeviceArgs,
    /// Transport service, the same on both ends
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    /// Bytes in a message [default: 4096; ud: 2048, or the path MTU if that is less]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Option<u32>,
    /// srq: number of queue pairs, the same on both ends [default: 16]
    #[arg(short = 'q', long = "num-qp", value_parser = clap::value_parser!(u32).range(1..=256))]
    num_qp: Option<u32>,
    /// xrc: number of clients to wait for [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096, the same on both ends [default: 1024]
    #[arg(short, long)]
    mtu: Option<usize>,
    /// Receives to post at a time [default: 500]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=32766))]
    rx_depth: Option<u32>,
    /// Number of exchanges, the same on both ends [default: 1000; xrc: 5, with each client]
    #[arg(short = 'n', long, alias = "num_tests", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    iters: Option<u32>,
    /// Service level, 0 to 15: accepted, but without effect if the Ethernet has no priorities
    #[arg(short = 'l', long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,
    /// Sleep until there is a completion (default: poll)
    #[arg(short, long)]
    events: bool,
    /// Check the received data
    #[arg(short, long)]
    chk: bool,
    /// On demand paging: accepted and ignored, because all memory of a process has it
    #[arg(short, long)]
    odp: bool,
    /// Implicit on demand paging: accepted and ignored too
    #[arg(short = 'O', long)]
    iodp: bool,
    /// Prefetch pages: accepted and ignored
    #[arg(short = 'P', long)]
    prefetch: bool,
    /// Show the times between received messages, by the timestamps of their completions
    #[arg(short, long)]
    ts: bool,
    /// Device memory: not supported
    #[arg(short = 'j', long)]
    dm: bool,
    /// The newer API for posting: accepted and ignored, because both do the same here
    #[arg(short = 'N', long = "new_send")]
    new_send: bool,
    #[command(flatten)]
    wire: WireArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        self.refuse_what_is_not_there()?;
        self.wire.check()?;
        let hosts = match &self.host {
            Some(host) => rendezvous::resolve(host, self.port)?,
            None => Vec::new(),
        };
        let peer = hosts.first().map(|a| a.ip().to_canonical());
        let opened = self.wire.open(&self.device, peer, self.mtu)?;
        let mtu = match self.mtu {
            Some(asked) => opened.check_mtu(asked)?,
            None => opened.device.active_mtu().min(Mtu::M1024),
        };
        if self.transport == Transport::Xrc {
            xrc::run(&self, &opened, mtu, &hosts)?;
            return opened.finish_capture();
        }
        let pingpong = Pingpong::new(&opened, mtu, &self)?;
        let own = pingpong.addresses();
        self.say("local address: ", &own)?;
        let mut stream = match &self.host {
            Some(_) => rendezvous::connect(&hosts, &rendezvous::start_first(&self.command()))?,
            None => rendezvous::accept(&rendezvous::listen(self.port)?)?,
        };
        let (_, host) = rendezvous::addresses(&stream)?;
        let connect = |peers: &[Address]| {
            check_number(own.len(), peers)?;
            for peer in peers.iter().take(own.len()) {
                check_peer(opened.gid, peer.gid, host)?;
            }
            pingpong.connect(peers)
        };
        let peer = if self.host.is_some() {
            let peer = exchange::as_client(&mut stream, &own, self.transport)?;
            self.say("remote address:", &peer)?;
            connect(&peer)?;
            peer
        } else {
            let peer = exchange::as_server(&mut stream, &own, self.transport, connect)?;
            self.say("remote address:", &peer)?;
            peer
        };
        let keeps_it = peer.first().is_some_and(|address| address.told.is_some());
        let mut peers = Vec::new();
        if keeps_it {
            peers.push(PeerConnection::new(stream)?);
        } else {
            drop(stream);
        }
        let outcome = pingpong
            .run(self.host.is_some(), &opened.device, &mut peers)
            .inspect_err(|why| peers.iter_mut().for_each(|peer| peer.failed(why)))?;
        self.report(&opened, mtu, &own, &peer, &outcome)?;
        pingpong.linger(&mut peers);
        opened.finish_capture()
    }

    /// Returns the command that the other side should run.
    fn command(&self) -> String {
        match self.transport {
            Transport::Rc => "rxe pingpong".into(),
            other => format!("rxe pingpong --transport {}", other.name()),
        }
    }

    fn rx_depth(&self) -> u32 {
        self.rx_depth.unwrap_or(500)
    }

    fn iters(&self) -> u32 {
        self.iters.unwrap_or(self.transport.iters())
    }

    fn refuse_what_is_not_there(&self) -> Result<(), Error> {
        let xrc = self.transport == Transport::Xrc;
        let (option, why) = match self {
            Self { num_qp: Some(_), transport, .. } if *transport != Transport::Srq => {
                ("-q", "only --transport srq has several queue pairs")
            }
            Self { clients: Some(_), .. } if !xrc => {
                ("--clients", "only --transport xrc has several clients")
            }
            Self { clients: Some(_), host: Some(_), .. } => {
                ("--clients", "the server says how many clients there are, and this is one")
            }
            Self { mtu: Some(_), transport: Transport::Ud, .. } => {
                ("-m", "datagrams have no path MTU of their own: the link's limits them")
            }
            // In ibv_xsrq_pingpong, this option is the number of clients.
            Self { chk: true, host, .. } if xrc => {
                let what = "-c looks at what was received, which xrc does not do";
                let number = host.as_ref().filter(|host| host.parse::<u32>().is_ok());
                let number = number.map_or("N", String::as_str);
                let todo = format!("leave it out; --clients {number} is the number of clients");
                return Err(Error::new(what, todo));
            }
            Self { rx_depth: Some(_), .. } if xrc => {
                ("-r", "with xrc there is one receive for each client")
            }
            Self { ts: true, .. } if xrc => ("-t", "xrc has no timestamps to show"),
            Self { dm: true, .. } => ("-j", "a software device has no memory of its own"),
            _ => return Ok(()),
        };
        Err(Error::new(why, format!("leave {option} out")))
    }

    /// Prints addresses like ibv_rc_pingpong.
    fn say(&self, whose: &str, addresses: &[Address]) -> Result<(), Error> {
        if self.wire.json {
            return Ok(());
        }
        let shown = addresses.iter().take(self.queue_pairs() as usize);
        print(&shown.map(|address| format!("  {whose} {address}\n")).collect::<String>())
    }

    fn queue_pairs(&self) -> u32 {
        match self.transport {
            Transport::Srq => self.num_qp.unwrap_or(16),
            _ => 1,
        }
    }

    fn report(
        &self,
        opened: &Opened,
        mtu: Mtu,
        own: &[Address],
        peer: &[Address],
        outcome: &Outcome,
    ) -> Result<(), Error> {
        let size = outcome.size;
        let iters = self.iters();
        let bytes = u64::from(size) * u64::from(iters) * 2;
        let seconds = outcome.time.as_secs_f64();
        let mbit = mbit_per_second(bytes, seconds);
        let each = seconds * 1e6 / f64::from(iters);
        if !self.wire.json {
            let stamps = outcome.stamps.unwrap_or_default();
            return print(&format!(
                "{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec\n\
                 {iters} iters in {seconds:.2} seconds = {each:.2} usec/iter\n{stamps}"
            ));
        }
        print_json(&Report {
            device: opened.device.name(),
            backend: opened.device.backend_name(),
            transport: self.transport.name(),
            mtu: mtu.bytes(),
            size,
            local: own.first().map(End::from),
            remote: peer.first().map(End::from),
            qps: own.len(),
            bytes,
            iters,
            seconds,
            mbit_per_sec: mbit,
            usec_per_iter: each,
            checked: outcome.checked,
            receive_completions: outcome.stamps,
        })
    }
}

/// Fails if the peer has another number of queue pairs.
fn check_number(own: usize, peers: &[Address]) -> Result<(), Error> {
    let there = |at: usize| peers.get(at).filter(|address| address.qpn.value() != 0);
    // Only `rxe pingpong` is certain to send zeros after its last address.
    let more = there(own).is_some_and(|address| address.told.is_some());
    let what = match (there(own - 1), more) {
        (None, _) => "the peer has fewer queue pairs",
        (_, true) => "the peer has more queue pairs",
        _ => return Ok(()),
    };
    Err(Error::new(what, "give the same -q on both ends"))
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits after the point")]
fn mbit_per_second(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 * 8.0 / 1e6 / seconds
}

#[derive(Serialize)]
struct Report<'a> {
    device: &'a str,
    backend: &'a str,
    transport: &'static str,
    mtu: usize,
    size: u32,
    /// The address of the first queue pair.
    local: Option<End>,
    remote: Option<End>,
    qps: usize,
    bytes: u64,
    iters: u32,
    seconds: f64,
    mbit_per_sec: f64,
    usec_per_iter: f64,
    /// Whether `-c` was given, so the received data was checked.
    checked: bool,
    /// The times between received messages, if `-t` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_completions: Option<Stamps>,
}

#[derive(Serialize)]
struct End {
    lid: u16,
    qpn: u32,
    psn: u32,
    gid: Ipv6Addr,
}

impl From<&Address> for End {
    fn from(a: &Address) -> Self {
        let gid = in6(a.gid);
        Self { lid: a.lid, qpn: a.qpn.value(), psn: a.psn.value(), gid }
    }
}

fn in6(gid: Gid) -> Ipv6Addr {
    Ipv6Addr::from(*gid.as_bytes())
}

//! The local endpoint, which has no engine.
//! It sends packets that were built byte by byte, and receives the packets that the peer sends to
//! its queue pair numbers. Other programs may share the address, so the numbers come from a range
//! that this process leases.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Qpn;
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};
use rxe_net::{
    Backend, BackendKind, Interface, NetError, Pcap, PcapHandle, PcapOptions, PcapStatus, Rng,
    SendStatus, open,
};
use rxe_sys::SharedFd;

use super::{Error, Peer};
use crate::common::{check_loopback, select};

/// An open endpoint.
pub(crate) struct Endpoint {
    backend: Box<dyn Backend>,
    capture: Option<PcapHandle>,
    fds: Vec<SharedFd>,
    batch: TxBatch,
    net: NetHeader,
    /// Packets to queue pair 1 (`mads`) and to all other queue pairs (`arrived`).
    mads: VecDeque<Arrived>,
    arrived: VecDeque<Arrived>,
}

/// A packet from the peer's address.
pub(crate) struct Arrived {
    pub(crate) at: Instant,
    pub(crate) net: NetHeader,
    /// The bytes from BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
}

/// The most packets that one queue holds. Later ones are discarded.
const MOST: usize = 4096;

impl Endpoint {
    /// Opens an endpoint for the address `peer`, with a capture if a path is given.
    pub(crate) fn open(way: &Way, peer: IpAddr, capture: Option<&Path>) -> Result<Self, Error> {
        let own = way.own;
        let backend = open(BackendKind::Udp, &way.netdev, &[own])?;
        let (backend, capture): (Box<dyn Backend>, _) = match capture {
            None => (backend, None),
            Some(path) => {
                let pcap = Pcap::new(backend, &PcapOptions::new(path)).map_err(|e| match e {
                    NetError::File { path, source } => {
                        let what = format!("cannot write the capture {path}: {source}");
                        Error::new(what, "name another place with -w")
                    }
                    other => other.into(),
                })?;
                let handle = pcap.handle();
                (Box::new(pcap), Some(handle))
            }
        };
        let mut fds = Vec::new();
        backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
        let batch = TxBatch::new(backend.capabilities().tx);
        let net = NetHeader::outgoing(own, peer, UDP_PORT);
        let (mads, arrived) = (VecDeque::new(), VecDeque::new());
        Ok(Self { backend, capture, fds, batch, net, mads, arrived })
    }

    /// Starts to receive packets to queue pair 1.
    /// These are replies to communication IDs whose high 8 bits are [`Endpoint::block`], and
    /// requests for the services of [`Endpoint::listen`].
    pub(crate) fn open_gsi(&mut self) -> Result<(), Error> {
        if let Some(sharing) = self.backend.sharing() {
            sharing.set_gsi(true)?;
        }
        Ok(())
    }

    /// Starts to receive connection requests for this service ID.
    pub(crate) fn listen(&mut self, service: u64) -> Result<(), Error> {
        let own = self.net.src;
        if let Some(groups) = self.backend.sharing().and_then(|sharing| sharing.port_groups()) {
            groups.listen(service, Some(own))?;
        }
        Ok(())
    }

    /// Returns the leased prefix of queue pair numbers and communication IDs.
    pub(crate) fn block(&self) -> u8 {
        self.backend.capabilities().qpn_block.unwrap_or(0)
    }

    /// Returns the network headers of packets to the peer.
    pub(crate) fn net(&self) -> &NetHeader {
        &self.net
    }

    /// Returns the leased queue pair number with these low 16 bits.
    pub(crate) fn qpn(&self, low: u16) -> Qpn {
        Qpn::from_wire(u32::from(self.block()) << 16 | u32::from(low))
    }

    /// Sends a packet.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.batch.push(self.net, bytes.len(), |_, buf| buf.extend_from_slice(bytes));
        while self.backend.send(&mut self.batch)? != SendStatus::Done {
            self.sleep(PollFlags::OUT, Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// Returns the next packet from the peer to `qpn` that arrives before `until`. Packets to other
    /// queue pairs are discarded, except those to queue pair 1.
    pub(crate) fn receive(&mut self, qpn: Qpn, until: Instant) -> Result<Option<Arrived>, Error> {
        loop {
            let queue = if qpn == Qpn::GSI { &mut self.mads } else { &mut self.arrived };
            if let Some(packet) = queue.pop_front() {
                if packet.is_to(qpn) {
                    return Ok(Some(packet));
                }
                continue;
            }
            if self.take()? {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(PollFlags::IN, left)?;
        }
    }

    /// Receives packets until `other` is readable. Each packet is stamped as it arrives, in the
    /// capture as well.
    pub(crate) fn take_until(
        &mut self,
        other: BorrowedFd<'_>,
        until: Instant,
    ) -> Result<(), Error> {
        loop {
            while self.take()? {}
            let mut fds = vec![PollFd::from_borrowed_fd(other, PollFlags::IN)];
            fds.extend(self.fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let left = until.saturating_duration_since(Instant::now());
            wait(&mut fds, left)?;
            if left.is_zero() || !fds[0].revents().is_empty() {
                return self.take().map(drop);
            }
        }
    }

    /// Receives packets that have arrived. Returns whether there were any.
    fn take(&mut self) -> Result<bool, Error> {
        let (peer, mads, arrived) = (self.net.dst, &mut self.mads, &mut self.arrived);
        let got = self.backend.receive(64, &mut |frame| {
            let at = Instant::now();
            for (net, bytes) in frame.packets() {
                let packet = Arrived { at, net, bytes: bytes.to_vec() };
                let queue = if packet.is_to(Qpn::GSI) { &mut *mads } else { &mut *arrived };
                if net.src == peer && queue.len() < MOST {
                    queue.push_back(packet);
                }
            }
        })?;
        Ok(got > 0)
    }

    /// Returns the capture, if there is one.
    pub(crate) fn capture(&self) -> Option<PcapHandle> {
        self.capture.clone()
    }

    /// Flushes the capture, and returns its state.
    pub(crate) fn finish_capture(&self) -> PcapStatus {
        self.capture.as_ref().map(PcapHandle::finish).unwrap_or_default()
    }

    fn sleep(&self, events: PollFlags, time: Duration) -> Result<(), Error> {
        let mut fds: Vec<_> = self.fds.iter().map(|fd| PollFd::new(fd, events)).collect();
        wait(&mut fds, time)
    }
}

fn wait(fds: &mut [PollFd<'_>], time: Duration) -> Result<(), Error> {
    let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(fds, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::new(format!("cannot wait for packets: {e}"), "try again")),
    }
}

impl Arrived {
    fn is_to(&self, qpn: Qpn) -> bool {
        self.bytes.first_chunk::<12>().is_some_and(|bth| {
            qpn == Qpn::from_wire(u32::from_be_bytes([0, bth[5], bth[6], bth[7]]))
        })
    }
}

/// The options by which a user chooses where packets to a peer leave from.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct WayArgs {
    /// Send from this device (or interface), with its best address for the peer
    #[arg(short = 'd', long = "device", value_name = "DEV")]
    device: Option<String>,
    /// Send from this address of the device, or of this host; without both options, from the one that leads
    /// to the peer
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
}

/// The source of packets to a peer.
pub(crate) struct Way {
    pub(crate) netdev: String,
    pub(crate) own: IpAddr,
}

impl Way {
    /// Resolves the options. Without any, the source is the local address of the TCP connection to
    /// the peer.
    pub(crate) fn to(peer: &Peer, chosen: &WayArgs) -> Result<Self, Error> {
        let other = peer.address;
        let device = chosen.device.as_deref().map(select::interface_device).transpose()?;
        let own = match (chosen.address, &device) {
            (Some(address), _) => address,
            (None, Some(device)) => select::best_address(device, other)?,
            (None, None) => peer.own,
        };
        let netdev = match &device {
            None => interface_of(own)?,
            Some(device) if has(device.interface(), own) => device.interface().name.clone(),
            Some(device) => {
                let what = format!("{} does not have the address {own}", device.name());
                let todo = format!("choose one that `rxe gids {}` lists", device.name());
                return Err(Error::new(what, todo));
            }
        };
        if own.is_ipv4() != other.is_ipv4() {
            let what =
                format!("own address {own} and the peer's GID {other} differ in address family");
            let todo = "start the peer with -g INDEX, or name --address IP here";
            return Err(Error::new(what, todo));
        }
        check_loopback(own, other, peer.host)?;
        if peer.active_mtu < 256 {
            let what = format!("the port of {} is not active", peer.device);
            return Err(Error::new(what, "bring its link up on the peer's host"));
        }
        Ok(Self { netdev, own })
    }
}

/// Returns the name of the interface that has this address.
fn interface_of(ip: IpAddr) -> Result<String, Error> {
    let all = Interface::list()
        .map_err(|e| Error::new(format!("cannot list the interfaces: {e}"), "try again"))?;
    all.iter().find(|i| has(i, ip)).map(|i| i.name.clone()).ok_or_else(|| {
        let what = format!("no interface of this host has the address {ip}");
        Error::new(what, "choose one that `rxe gids` lists with --address")
    })
}

/// Returns whether an interface has this address.
fn has(interface: &Interface, ip: IpAddr) -> bool {
    interface.addresses.iter().any(|a| a.ip == ip)
        || interface.loopback && ip.is_ipv4() && ip.is_loopback()
}

/// Random low 16 bits of queue pair numbers and communication IDs.
/// They are random so that a late packet to one queue pair is not taken for a packet to the next.
/// No number repeats before all were used: a peer takes a request from a recently seen queue pair
/// or communication ID for a duplicate of that connection's, and does not report it to its program.
pub(crate) struct Numbers {
    rng: Rng,
    given: HashSet<u16>,
}

impl Numbers {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut seed = [0; 8];
        let got = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        got.map_err(|e| {
            Error::new(format!("the system gives no random numbers: {e}"), "try again")
        })?;
        Ok(Self { rng: Rng::new(u64::from_ne_bytes(seed)), given: HashSet::new() })
    }

    /// Returns a number from 0x100 to 0xffff.
    pub(crate) fn next(&mut self) -> u16 {
        const MANY: usize = 0xff00;
        if self.given.len() == MANY {
            self.given.clear();
        }
        loop {
            let number = u16::try_from(0x100 + self.rng.below(MANY as u64)).unwrap_or(0x100);
            if self.given.insert(number) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn no_number_comes_twice_before_all_have_come() {
        let mut numbers = Numbers::new().unwrap();
        for _ in 0..2 {
            let all: HashSet<_> = (0..0xff00).map(|_| numbers.next()).collect();
            assert_eq!(all.len(), 0xff00);
            assert!(all.iter().all(|number| *number >= 0x100));
        }
    }

    #[test]
    fn what_comes_before_the_answer_is_taken_before_it() {
        let [own, peer] = ["127.80.0.1", "127.80.0.2"].map(|ip| ip.parse().unwrap());
        let way = Way { netdev: "lo".into(), own };
        let mut end = Endpoint::open(&way, peer, None).unwrap();
        let qpn = end.qpn(0x123);
        let mut packet = [0; 16];
        packet[5..8].copy_from_slice(&qpn.value().to_be_bytes()[1..]);
        let (program, mut answer) = UnixStream::pair().unwrap();
        let sender = UdpSocket::bind((peer, 0)).unwrap();
        sender.send_to(&packet, (own, UDP_PORT)).unwrap();
        answer.write_all(b"ok\n").unwrap();
        let long = Instant::now() + Duration::from_secs(60);
        end.take_until(program.as_fd(), long).unwrap();
        assert_eq!(end.arrived.len(), 1);
        // Without an answer, the call returns at the deadline.
        let (silent, _open) = UnixStream::pair().unwrap();
        end.take_until(silent.as_fd(), Instant::now()).unwrap();
    }
}

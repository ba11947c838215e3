//! The own end: sends packets that were made byte by byte, and receives what the peer sends to the queue
//! pair number that stands for it. The address may be shared with other programs: the numbers are taken
//! from a block that this process leases.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Qpn;
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};
use rxe_net::{
    Backend, BackendKind, NetError, Pcap, PcapHandle, PcapOptions, SendStatus, SharedFd, open,
};

use crate::common::Error;

/// An open endpoint.
pub(super) struct Wire {
    backend: Box<dyn Backend>,
    capture: Option<PcapHandle>,
    fds: Vec<SharedFd>,
    batch: TxBatch,
    net: NetHeader,
    arrived: VecDeque<Arrived>,
}

/// A packet from the peer's address.
pub(super) struct Arrived {
    pub(super) at: Instant,
    pub(super) net: NetHeader,
    /// From BTH to ICRC.
    pub(super) bytes: Vec<u8>,
}

/// The most packets that wait to be looked at: more than a peer sends in a case.
const MOST: usize = 4096;

impl Wire {
    /// Opens the address `own` of `netdev`, with a capture if there is a path for it.
    pub(super) fn open(
        netdev: &str,
        own: IpAddr,
        peer: IpAddr,
        capture: Option<&Path>,
    ) -> Result<Self, Error> {
        let backend = open(BackendKind::Udp, netdev, &[own])?;
        let (backend, capture): (Box<dyn Backend>, _) = match capture {
            None => (backend, None),
            Some(path) => {
                let pcap = Pcap::new(backend, &PcapOptions::new(path)).map_err(|e| match e {
                    NetError::File { path, source } => {
                        let what = format!("cannot write the capture {path}: {source}");
                        Error::new(what, "name another directory with -w")
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
        Ok(Self { backend, capture, fds, batch, net, arrived: VecDeque::new() })
    }

    /// The headers of packets to the peer.
    pub(super) fn net(&self) -> &NetHeader {
        &self.net
    }

    /// The queue pair number of this block with these low 16 bits.
    pub(super) fn qpn(&self, low: u16) -> Qpn {
        let block = self.backend.capabilities().qpn_block.unwrap_or(0);
        Qpn::from_wire(u32::from(block) << 16 | u32::from(low))
    }

    /// Sends a packet.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.batch.push(self.net, bytes.len(), |_, buf| buf.extend_from_slice(bytes));
        while self.backend.send(&mut self.batch)? != SendStatus::Done {
            self.sleep(PollFlags::OUT, Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// The next packet from the peer to `qpn` that arrives before `until`.
    pub(super) fn receive(&mut self, qpn: Qpn, until: Instant) -> Result<Option<Arrived>, Error> {
        loop {
            if let Some(packet) = self.arrived.pop_front() {
                if packet.is_to(qpn) {
                    return Ok(Some(packet));
                }
                continue;
            }
            let (peer, arrived) = (self.net.dst, &mut self.arrived);
            let got = self.backend.receive(64, &mut |frame| {
                let at = Instant::now();
                for (net, bytes) in frame.packets() {
                    if net.src == peer && arrived.len() < MOST {
                        arrived.push_back(Arrived { at, net, bytes: bytes.to_vec() });
                    }
                }
            })?;
            if got > 0 {
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(PollFlags::IN, left)?;
        }
    }

    /// Writes the rest of the capture.
    pub(super) fn flush(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
    }

    fn sleep(&self, events: PollFlags, time: Duration) -> Result<(), Error> {
        let mut fds: Vec<_> = self.fds.iter().map(|fd| PollFd::new(fd, events)).collect();
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::new(format!("cannot wait for packets: {e}"), "try again")),
        }
    }
}

impl Arrived {
    fn is_to(&self, qpn: Qpn) -> bool {
        self.bytes.first_chunk::<12>().is_some_and(|bth| {
            qpn == Qpn::from_wire(u32::from_be_bytes([0, bth[5], bth[6], bth[7]]))
        })
    }
}

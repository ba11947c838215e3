//! The packet socket of one interface, with the addresses that it receives for.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use libc::sock_filter;
use rxe_core::wire::{Burst, Frame, NetHeader, TxBatch, frame};
use smallvec::SmallVec;

use super::filter;
use super::headers::{ETHERNET, Headers, ethertype};
use super::raw::{outgoing, singles};
use super::socket::{Arrived, PacketSocket, PacketSocketConfig, unmerged};
use crate::error::NetError;
use crate::host::Blocks;
use rxe_sys::NetDev;
use rxe_sys::SharedFd;
use rxe_sys::addr::RawAddr;
use rxe_sys::mmsg::{BATCH, Outgoing, Received, sendmmsg};

/// A packet socket and its interface.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: PacketSocket,
    pub(super) interface: u32,
    mac: [u8; 6],
    /// Frames have Ethernet headers. Otherwise they begin with IP, and the kernel sends them.
    pub(super) ethernet: bool,
}

impl Link {
    /// Opens a socket that receives packets to the QPNs of `blocks` on `addresses` of `device`.
    pub(super) fn open(
        device: &NetDev,
        addresses: &[IpAddr],
        blocks: Blocks,
        buffer: usize,
    ) -> Result<Self, NetError> {
        let NetDev { index: interface, mac, ethernet, .. } = *device;
        let socket = PacketSocket::open(&PacketSocketConfig {
            interface,
            ethernet,
            filter: &filter(ethernet, addresses, blocks),
            outgoing: false,
            buffer,
            keep: SharedFd::new,
        })?;
        Ok(Self { socket, interface, mac, ethernet })
    }

    /// Changes the addresses and the blocks of QPNs to receive for.
    pub(super) fn listen_to(&self, addresses: &[IpAddr], blocks: Blocks) -> Result<(), NetError> {
        self.socket.set_filter(&filter(self.ethernet, addresses, blocks))
    }

    /// Returns the descriptor if its number is intact.
    pub(super) fn intact(&self) -> Result<BorrowedFd<'_>, NetError> {
        self.socket.intact()
    }

    /// Returns the frame in a received datagram, and the number of frames lost before. The frame is
    /// `None` if it is not for this backend.
    pub(super) fn arrived<'a>(&mut self, received: &Received<'a>) -> (Option<Frame<'a>>, u32) {
        let arrived = self.socket.arrived(received);
        (self.frame(received, &arrived), arrived.lost)
    }

    fn frame<'a>(&self, received: &Received<'_>, arrived: &Arrived<'a>) -> Option<Frame<'a>> {
        // sll_pkttype: frames for other hosts and frames that this host has sent are skipped.
        const OTHERHOST: u8 = 3;
        if received.addr.bytes[10] >= OTHERHOST {
            return None;
        }
        let gso_size = arrived.vnet?.gso_size;
        let bytes = arrived.bytes;
        let packet = if self.ethernet { bytes.get(ETHERNET..)? } else { bytes };
        let frame = frame::parse_ip(packet).ok()?.frame().ok()?;
        (!frame.payload.is_empty()).then(|| unmerged(frame, gso_size))
    }

    /// Sends bursts from the front of the batch to this Ethernet address. Stops at [`BATCH`]
    /// bursts, or at one with another destination. Returns how many were sent. The outer error
    /// means that the socket cannot be used any more.
    pub(super) fn send_bursts(
        &self,
        batch: &TxBatch,
        mac: [u8; 6],
    ) -> Result<io::Result<usize>, NetError> {
        let dst = batch.pending()[0].net.dst;
        let same =
            |burst: &&Burst| burst.net.dst == dst && burst.net.src.is_ipv4() == dst.is_ipv4();
        let bursts: SmallVec<[_; 4]> =
            batch.pending().iter().take(BATCH).take_while(same).collect();
        let headers: SmallVec<[Headers; 4]> = bursts
            .iter()
            .map(|burst| {
                let segment = (burst.packets() > 1).then_some(burst.segment);
                self.headers(&burst.net, batch.bytes(burst), segment, mac)
            })
            .collect();
        let out: SmallVec<[Outgoing<'_>; 4]> = bursts
            .iter()
            .zip(&headers)
            .map(|(burst, h)| outgoing(self.destination(&burst.net), h, batch.bytes(burst)))
            .collect();
        Ok(sendmmsg(self.intact()?, &out))
    }

    /// Sends at most [`BATCH`] packets of a burst to this Ethernet address. Starts with index
    /// `skip`. Returns how many were sent, as [`Link::send_bursts`] does.
    pub(super) fn send_singles(
        &self,
        batch: &TxBatch,
        burst: &Burst,
        skip: usize,
        mac: [u8; 6],
    ) -> Result<io::Result<usize>, NetError> {
        let singles: SmallVec<[_; 4]> = singles(batch, burst, skip).collect();
        let headers: SmallVec<[Headers; 4]> =
            singles.iter().map(|(net, bytes)| self.headers(net, bytes, None, mac)).collect();
        let out: SmallVec<[Outgoing<'_>; 4]> = singles
            .iter()
            .zip(&headers)
            .map(|((_, bytes), h)| outgoing(self.destination(&burst.net), h, bytes))
            .collect();
        Ok(sendmmsg(self.intact()?, &out))
    }

    /// Returns the headers for a payload to this Ethernet address. Packets have `segment` bytes
    /// (`None`: a single packet).
    fn headers(
        &self,
        net: &NetHeader,
        payload: &[u8],
        segment: Option<usize>,
        mac: [u8; 6],
    ) -> Headers {
        if self.socket.vnet {
            Headers::offloaded(net, payload, segment, self.mac, mac)
        } else {
            Headers::plain(net, payload, self.mac, mac)
        }
    }

    /// Returns the address to pass to `sendmmsg` for a frame of this family.
    fn destination(&self, net: &NetHeader) -> RawAddr {
        RawAddr::link(self.interface, ethertype(net.dst))
    }
}

/// Returns a filter that accepts packets to these QPNs of these addresses.
fn filter(ethernet: bool, addresses: &[IpAddr], blocks: Blocks) -> Vec<sock_filter> {
    let ip = if ethernet { ETHERNET } else { 0 };
    filter::program(u32::try_from(ip).unwrap_or(0), addresses, blocks)
}

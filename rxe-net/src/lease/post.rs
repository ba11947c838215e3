//! The post between the processes of an address: packets that reached one of them and are for
//! another.
//!
//! They are few. What comes to QP1 comes to whoever looks first. And a receiving interface merges
//! packets from one sender into one buffer before anybody looks for whom they are: where these are
//! two processes, one gets both. Where a box is full, they wait a little ([`Outbox`]). Whatever the
//! post can not take is lost, or left to this process's own engine, which counts it.

use std::net::IpAddr;
use std::os::fd::AsFd;

use rxe_core::wire::Frame;

use super::letter;
use super::mad::{self, For};
use super::name::Place;
use super::outbox::Outbox;
use super::{Blocks, Station};
use crate::NetError;
use crate::backend::Counters;
use crate::sharing::CLOSED_SERVICE;
use crate::sys::unix::{UnixSocket, abstract_name, own_uid};

/// Where this process's post comes in, and how it sends some.
pub(crate) struct Post {
    /// This process's.
    own: Blocks,
    scope: u32,
    out: Outbox,
    boxes: Vec<Letterbox>,
    /// What this process listens to, and on which addresses (see [`covers`]).
    services: Vec<(u64, Option<IpAddr>)>,
    buf: Box<[u8]>,
}

struct Letterbox {
    address: IpAddr,
    /// What comes is for who listens to this.
    service: Option<u64>,
    socket: UnixSocket,
}

impl Post {
    /// On the interface with index `scope`.
    pub(crate) fn new(scope: u32) -> Result<Self, NetError> {
        let out = Outbox::new()?;
        let buf = vec![0; letter::LEN + (64 << 10)].into();
        Ok(Self {
            own: Blocks::default(),
            scope,
            out,
            boxes: Vec::new(),
            services: Vec::new(),
            buf,
        })
    }

    /// Post comes to this station too.
    pub(crate) fn add(&mut self, station: Station) -> Result<(), NetError> {
        let address = station.place.address;
        let listens = self.has(address);
        self.own.insert(station.block);
        self.boxes.push(Letterbox { address, service: None, socket: station.letterbox });
        for (service, at) in self.services.clone() {
            if !listens && at.is_none_or(|at| at.is_unspecified()) && covers(at, address) {
                self.open(service, address)?;
            }
        }
        Ok(())
    }

    /// Whether post comes to this address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.boxes.iter().any(|b| b.address == address)
    }

    /// No more post comes to this address.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        self.boxes.retain(|b| b.address != address);
    }

    /// Takes what is sent to a service: on this address, on all of a family, or on all.
    pub(crate) fn listen(&mut self, service: u64, address: Option<IpAddr>) -> Result<(), NetError> {
        let mut addresses: Vec<_> = self.boxes.iter().map(|b| b.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.retain(|own| covers(address, *own));
        let before = self.boxes.len();
        for address in addresses {
            if let Err(e) = self.open(service, address) {
                self.boxes.truncate(before);
                return Err(e);
            }
        }
        self.services.push((service, address));
        Ok(())
    }

    /// Undoes [`Post::listen`].
    pub(crate) fn unlisten(&mut self, service: u64, address: Option<IpAddr>) {
        self.services.retain(|listened| *listened != (service, address));
        self.boxes.retain(|b| b.service != Some(service) || !covers(address, b.address));
    }

    fn open(&mut self, service: u64, address: IpAddr) -> Result<(), NetError> {
        let name = Place::new(address, self.scope).service(service);
        let socket = UnixSocket::bind(&name).map_err(|e| match e.kind() {
            std::io::ErrorKind::AddrInUse => NetError::ServiceTaken { service, address },
            _ => NetError::os("bind a unix socket", e),
        })?;
        self.boxes.push(Letterbox { address, service: Some(service), socket });
        Ok(())
    }

    /// The descriptors that become readable when there is post, or some that can go on.
    pub(crate) fn for_each_box(&self, f: &mut dyn FnMut(&dyn AsFd)) {
        f(self.out.timer());
        self.boxes.iter().for_each(|b| f(&b.socket));
    }

    /// Hands over what has come by post; how many packets.
    pub(crate) fn collect(
        &mut self,
        counters: &mut Counters,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> usize {
        /// Letters from one box before the next one's turn.
        const TURN: usize = 16;
        self.out.try_again();
        let mut packets = 0;
        for letterbox in &self.boxes {
            for _ in 0..TURN {
                let Ok(Some(letter)) = letterbox.socket.receive(&mut self.buf) else { break };
                let frame = letter::parse(&self.buf[..letter.len]);
                // Any user can write to the box.
                let (Some(frame), true) = (frame, letter.uid == Some(own_uid())) else {
                    counters.rx_unusable += 1;
                    continue;
                };
                let count = frame.payloads().count();
                packets += count;
                counters.rx_packets += count as u64;
                counters.rx_bytes += frame.payload.len() as u64;
                sink(&frame);
            }
        }
        packets
    }

    /// Hands over what is this process's of a frame that has arrived, and posts the rest.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        let own = self.own;
        if frame.net.dst.is_multicast() || frame.payloads().all(|p| own.has(block(p))) {
            return sink(frame);
        }
        let mut start = 0;
        let blocks: Vec<u8> = frame.payloads().map(block).collect();
        for stretch in blocks.chunk_by(|a, b| a == b && *a != 0) {
            let bytes = start * frame.segment..(start + stretch.len()) * frame.segment;
            let bytes = bytes.start..bytes.end.min(frame.payload.len());
            let net = frame.net.nth(u16::try_from(start).unwrap_or(0));
            let payload = &frame.payload[bytes];
            let segment = frame.segment.min(payload.len());
            let part = Frame { net, payload, segment, later: &[] };
            let posted = match stretch[0] {
                0 => self.post_mad(&part),
                block => !own.has(block) && self.post(&part, |place| place.letterbox(block)),
            };
            if !posted {
                sink(&part);
            }
            start += stretch.len();
        }
    }

    /// Whether a packet to QP1 is another process's, and on its way there.
    fn post_mad(&mut self, frame: &Frame<'_>) -> bool {
        match mad::destination(frame.payload) {
            For::Block(block) if !self.own.has(block) && block != 0 => {
                self.post(frame, |place| place.letterbox(block))
            }
            For::Service(service) => {
                let ours = |service| {
                    let mut all = self.services.iter();
                    all.any(|(s, at)| *s == service && covers(*at, frame.net.dst))
                };
                let closed = service | CLOSED_SERVICE;
                let (listened, was_listened) = (ours(service), ours(closed));
                !listened
                    && (self.post(frame, |place| place.service(service))
                        || (!was_listened && self.post(frame, |place| place.service(closed))))
            }
            For::Block(_) | For::Anybody => false,
        }
    }

    fn post(&mut self, frame: &Frame<'_>, to: impl Fn(&Place) -> String) -> bool {
        let place = Place::new(frame.net.dst, self.scope);
        let Ok(name) = abstract_name(&to(&place)) else { return false };
        let head = letter::emit(frame);
        self.out.send(name, &head, frame.payload)
    }
}

/// Whether who listens `at` this does so on an own address: `None` is all, an unspecified address all
/// of its family.
fn covers(at: Option<IpAddr>, own: IpAddr) -> bool {
    at.is_none_or(|at| at == own || (at.is_unspecified() && at.is_ipv4() == own.is_ipv4()))
}

/// The block of a packet's destination QPN; 0 where it is too short to have one.
fn block(packet: &[u8]) -> u8 {
    packet.get(5).copied().unwrap_or(0)
}

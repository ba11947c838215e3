//! Queue pair 1, the general services interface: management datagrams to and from the device itself.
//! IBTA 10.2.5, 13.5.
//!
//! Programs have no queues on it. Datagrams that arrive wait here until the driver hands them to the
//! communication manager. Datagrams of the manager are sent before everything else.

use std::collections::VecDeque;

use super::rx::check_pkey;
use super::{Config, Engine};
use crate::cm::mad::{self, Mad};
use crate::error::VerbsError;
use crate::qp::address;
use crate::types::{AddressVector, Gid, Psn, Qkey, Qpn};
use crate::wire::{Bth, Deth, DropReason, Ext, NetHeader, Opcode, Packet, Service, TxBatch, emit};

/// A management datagram that queue pair 1 received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMad {
    /// The sender's address.
    pub src: Gid,
    /// The local address that the datagram was sent to.
    pub dst: Gid,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// The datagram.
    pub mad: Box<[u8; mad::LEN]>,
}

impl Engine {
    /// Starts or stops receiving management datagrams.
    pub fn set_gsi(&mut self, open: bool) {
        self.gsi.open = open;
        self.events.first_packets = open.then(Vec::new);
        if !open {
            self.gsi.inbox.clear();
        }
    }

    /// Starts receiving management datagrams in an engine without a communication manager. Unlike
    /// [`Engine::set_gsi`], this does not record first packets.
    pub fn admit_mads(&mut self) {
        self.gsi.open = true;
    }

    /// Returns whether a received management datagram waits.
    pub fn has_mad(&self) -> bool {
        self.gsi.has_mail()
    }

    /// Takes the oldest received management datagram.
    pub fn poll_mad(&mut self) -> Option<ReceivedMad> {
        self.gsi.inbox.pop_front()
    }

    /// Takes the list of queue pairs in RTR or RTS whose first packet has arrived since the last call. A
    /// first packet proves, as an RTU does, that the peer is ready: see
    /// [`Manager::established_by`](crate::cm::Manager::established_by).
    pub fn take_first_packets(&mut self) -> Vec<Qpn> {
        self.events.first_packets.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Sends a management datagram from queue pair 1 to queue pair 1. It is dropped if too many wait
    /// already: the sender repeats it.
    ///
    /// # Errors
    /// `src` is not an address of this device, or the addresses are of different families.
    pub fn send_mad(
        &mut self,
        src: Gid,
        dst: Gid,
        traffic_class: u8,
        mad: &[u8; mad::LEN],
    ) -> Result<(), VerbsError> {
        let own = self.config.gids.iter().position(|gid| *gid == src);
        let sgid_index = own.and_then(|at| u16::try_from(at).ok()).unwrap_or(u16::MAX);
        let av =
            AddressVector { sgid_index, dgid: dst, flow_label: 0, traffic_class, hop_limit: 64 };
        let src_port = self.config.source_port.of(Qpn::GSI, 0);
        let net = address(&self.config, &av, src_port)?;
        if self.gsi.outbox.len() < CAPACITY {
            self.gsi.outbox.push_back((net, Box::new(*mad)));
            self.more_than_acks = true;
        }
        debug_assert!(self.gsi.outbox.len() <= CAPACITY, "what waits is bounded");
        Ok(())
    }
}

/// The most datagrams that wait in either direction.
const CAPACITY: usize = 1024;

/// Queue pair 1, with the datagrams that wait to be taken or to be sent.
#[derive(Debug, Default)]
pub(super) struct Gsi {
    open: bool,
    inbox: VecDeque<ReceivedMad>,
    outbox: VecDeque<(NetHeader, Box<[u8; mad::LEN]>)>,
    psn: Psn,
}

impl Gsi {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Checks a packet to queue pair 1, except for its ICRC, and returns its datagram.
    pub(super) fn admit<'a>(
        &self,
        config: &Config,
        net: &NetHeader,
        packet: &Packet<'a>,
    ) -> Result<&'a [u8; mad::LEN], DropReason> {
        debug_assert!(self.open, "a closed interface admits nothing");
        debug_assert_eq!(packet.dest_qp(), Qpn::GSI);
        let info = packet.info();
        let deth = packet.deth().filter(|_| info.service == Service::Ud);
        let deth = deth.ok_or(DropReason::WrongService)?;
        if deth.qkey != Qkey::GSI {
            return Err(DropReason::WrongQkey);
        }
        if !config.gids.contains(&Gid::from(net.dst)) {
            return Err(DropReason::WrongDestination);
        }
        check_pkey(packet)?;
        let mad: &[u8; mad::LEN] = packet.payload().try_into().map_err(|_| DropReason::BadMad)?;
        Mad::from_array(mad).recipient().ok_or(DropReason::BadMad)?;
        Ok(mad)
    }

    /// Stores a datagram whose packet has passed all checks.
    pub(super) fn take(&mut self, net: &NetHeader, mad: &[u8; mad::LEN]) -> Result<(), DropReason> {
        if self.inbox.len() >= CAPACITY {
            return Err(DropReason::NoRoom);
        }
        self.inbox.push_back(ReceivedMad {
            src: net.src.into(),
            dst: net.dst.into(),
            traffic_class: net.tos,
            mad: Box::new(*mad),
        });
        debug_assert!(self.inbox.len() <= CAPACITY, "what strangers send is bounded");
        Ok(())
    }

    /// Returns whether a datagram waits for the driver.
    pub(super) fn has_mail(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Appends datagrams to `batch` until it is full.
    pub(super) fn transmit(&mut self, batch: &mut TxBatch) {
        while !batch.is_full()
            && let Some((net, mad)) = self.outbox.pop_front()
        {
            let opcode = Opcode::UD_SEND_ONLY;
            let bth = Bth::new(opcode, Qpn::GSI, self.psn);
            self.psn = self.psn.next();
            let deth = Some(Deth::new(Qkey::GSI, Qpn::GSI));
            let ext = Ext { deth, ..Ext::default() };
            batch.push_to(net, Qpn::GSI, emit::len(opcode, mad.len()), |net, buf| {
                emit::packet_from(net, buf, &bth, &ext, &mad[..]);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::mad::{Message, Rtu};
    use crate::queue::SendOp;
    use crate::testing::Pair;
    use crate::types::Time;
    use crate::wire::{Frame, TxLimits};

    const A: Gid = gid(1);
    const B: Gid = gid(2);

    const fn gid(last: u8) -> Gid {
        Gid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last])
    }

    /// Returns a message from a to b as a packet. `alter` may change it before the ICRC is computed.
    fn packet(pair: &mut Pair, alter: impl Fn(&mut Bth, &mut Ext)) -> (NetHeader, Vec<u8>) {
        let mad = Message::Rtu(Rtu::default()).emit(7);
        pair.a.engine.send_mad(A, B, 0, &mad).unwrap();
        assert!(!pair.a.engine.can_wait());
        let mut batch = TxBatch::new(TxLimits::default());
        pair.a.engine.poll_transmit(Time::ZERO, &mut batch);
        let frame = batch.frames().next().expect("a packet");
        let packet = Packet::parse(frame.payload).unwrap();
        let (mut bth, mut ext) = (packet.bth(), packet.ext());
        alter(&mut bth, &mut ext);
        let mut bytes = Vec::new();
        emit::packet_from(&frame.net, &mut bytes, &bth, &ext, packet.payload());
        (frame.net, bytes)
    }

    fn deliver(pair: &mut Pair, (net, bytes): &(NetHeader, Vec<u8>)) -> Option<ReceivedMad> {
        pair.b.engine.handle_frame(Time::ZERO, &Frame::single(*net, bytes));
        pair.b.engine.poll_mad()
    }

    #[test]
    fn a_datagram_arrives_once_the_interface_is_open() {
        let mut pair = Pair::new();
        let sent = packet(&mut pair, |_, _| ());
        assert_eq!(deliver(&mut pair, &sent), None);
        assert_eq!(pair.b.engine.counters().dropped(DropReason::UnknownQp), 1);
        pair.b.engine.set_gsi(true);
        let got = deliver(&mut pair, &sent).expect("it is open");
        assert_eq!((got.src, got.dst), (A, B));
        assert_eq!(got.mad[..], Message::Rtu(Rtu::default()).emit(7));
        pair.b.engine.set_gsi(false);
        assert_eq!(deliver(&mut pair, &sent), None);
    }

    #[test]
    fn the_first_packet_of_each_queue_pair_is_told_once_the_interface_is_open() {
        for open in [false, true] {
            let mut pair = Pair::new();
            pair.b.engine.set_gsi(open);
            for id in 0..2 {
                pair.b.receive(id, 0, 8);
                pair.a.post(id, SendOp::Send { imm: None }, 0, 8);
                pair.run_until_idle();
                let told = if open && id == 0 { vec![pair.b.qp.qpn] } else { vec![] };
                assert_eq!(pair.b.engine.can_wait(), told.is_empty());
                assert_eq!(pair.b.engine.take_first_packets(), told);
            }
            // IBV_EVENT_COMM_EST is for RTR only.
            assert_eq!(pair.b.events(), []);
        }
    }

    #[test]
    fn what_is_no_management_datagram_is_dropped_and_counted() {
        let mut pair = Pair::new();
        pair.b.engine.set_gsi(true);
        let dropped = |pair: &Pair, reason| pair.b.engine.counters().dropped(reason);
        let wrong_key = packet(&mut pair, |_, ext| {
            ext.deth = Some(Deth::new(Qkey::new(1), Qpn::GSI));
        });
        assert_eq!(deliver(&mut pair, &wrong_key), None);
        assert_eq!(dropped(&pair, DropReason::WrongQkey), 1);
        let mut damaged = packet(&mut pair, |_, _| ());
        damaged.1[100] ^= 1;
        assert_eq!(deliver(&mut pair, &damaged), None);
        assert_eq!(dropped(&pair, DropReason::IcrcMismatch), 1);
        let mut short = Vec::new();
        let (net, right) = packet(&mut pair, |_, _| ());
        let right = Packet::parse(&right).unwrap();
        emit::packet_from(&net, &mut short, &right.bth(), &right.ext(), &right.payload()[..252]);
        assert_eq!(deliver(&mut pair, &(net, short)), None);
        assert_eq!(dropped(&pair, DropReason::BadMad), 1);
    }

    #[test]
    fn a_flood_fills_the_inbox_and_no_more() {
        let mut pair = Pair::new();
        pair.b.engine.set_gsi(true);
        let (net, bytes) = packet(&mut pair, |_, _| ());
        for _ in 0..CAPACITY + 5 {
            pair.b.engine.handle_frame(Time::ZERO, &Frame::single(net, &bytes));
        }
        assert_eq!(pair.b.engine.counters().dropped(DropReason::NoRoom), 5);
        assert_eq!(std::iter::from_fn(|| pair.b.engine.poll_mad()).count(), CAPACITY);
    }
}

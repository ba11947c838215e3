//! Receiving: validates the packets of a frame and finds their queue pairs. IBTA 9.6.
//!
//! Checks are in this order: the packet's form, the QP, its service and state, addresses and P_Key,
//! and last the ICRC, because it costs most. Until all checks have passed, a packet changes nothing
//! but counters.

use std::collections::HashMap;

use super::lookahead::PacketPrefetch;
use super::table::QpTable;
use super::{Config, Engine, Event, schedule};
use crate::event::EventSink;
use crate::mem::MemoryGuard;
use crate::prefetch;
use crate::qp::Qp;
use crate::service::{Ctx, SendLimits};
use crate::types::{Gid, Pkey, QpState, QpType, Qpn, Time};
use crate::wire::icrc::Prefix;
use crate::wire::{
    BthView, Coalesced, DropReason, Frame, NetHeader, OpInfo, Packet, Service, id_step,
};

impl Engine {
    /// Handles a buffer that has arrived. Its contents are untrusted.
    pub fn handle_frame(&mut self, now: Time, frame: &Frame<'_>) {
        let limits = self.send_limits();
        if frame.payload.is_empty() && frame.coalesced.is_empty() {
            self.drop_empty();
        }
        let Self {
            config,
            qps,
            groups,
            memory,
            events,
            ready,
            more_than_acks,
            timers,
            peers,
            gsi,
            frame_prefetch,
            prefix,
            ..
        } = self;
        frame_prefetch.advance(frame, qps);
        let guard = memory.guard();
        let prefix = frame.coalesced.is_empty().then(|| prefix.get(&frame.net));
        // Packets for one QP usually follow one another, so the QP is looked up once for all of them and
        // scheduled after the last.
        let mut current: Option<&mut Qp> = None;
        let mut packet_prefetch = PacketPrefetch::new(frame);
        let (mut whole, mut segments) = (frame.payloads(), frame.coalesced.iter());
        for index in (0..).map(id_step) {
            let mut coalesced = None;
            let (bytes, packet) = match whole.next() {
                Some(bytes) => (bytes, Packet::parse(bytes)),
                None => match segments.next() {
                    Some(packet) => {
                        coalesced = Some(packet).filter(|packet| packet.count() > 1);
                        (packet.head(), Packet::parse_coalesced(packet))
                    }
                    None => break,
                },
            };
            let psn = BthView::new(bytes).map(BthView::psn);
            events.psn = psn;
            let packet = match packet {
                Ok(packet) => packet,
                Err(reason) => {
                    events.counters.rcvd_pkts += 1;
                    events.counters.rcvd_bytes += bytes.len() as u64;
                    events.emit(Event::Dropped { reason, qpn: None, psn });
                    continue;
                }
            };
            debug_assert!(packet.count() > 0, "a segment has a packet");
            debug_assert_eq!(coalesced.is_some(), packet.count() > 1);
            events.counters.rcvd_pkts += u64::from(packet.count());
            events.counters.rcvd_bytes += packet.wire_len() as u64;
            let qpn = packet.dest_qp();
            if current.as_ref().is_none_or(|qp| qp.identity.qpn != qpn) {
                if let Some(before) = current {
                    *more_than_acks |= schedule(before, limits, ready, timers, peers);
                }
                packet_prefetch.advance(index, qps);
                let crowded = qps.is_crowded();
                current = qps.get_mut(qpn);
                if let (true, Some(qp)) = (crowded, &current) {
                    // With many QPs this one is probably in no cache: load all of its lines together.
                    prefetch::value(&**qp);
                }
            }
            // Only datagrams need the IP identification of each packet: the program sees it in the GRH.
            let own;
            let net = if packet.info().service == Service::Ud {
                own = frame.net.nth(index);
                &own
            } else {
                &frame.net
            };
            let icrc = prefix.as_ref().map(|prefix| (prefix, index));
            let arrival =
                Arrival { now, config, guard: &guard, limits, net, packet: &packet, icrc };
            let result = if let Some(qp) = &mut current {
                match coalesced {
                    None => arrival.deliver(qp, events),
                    Some(coalesced) => {
                        arrival.deliver_coalesced(qp, coalesced, events);
                        Ok(())
                    }
                }
            } else if qpn == Qpn::MULTICAST {
                current = None;
                arrival.deliver_to_group(groups, qps, events)
            } else if qpn == Qpn::GSI && gsi.is_open() {
                current = None;
                gsi.admit(config, net, &packet)
                    .and_then(|mad| arrival.check_icrc().map(|()| mad))
                    .and_then(|mad| gsi.take(net, mad))
            } else if qpn.value() == 0 {
                Err(DropReason::QpnZero)
            } else {
                Err(DropReason::UnknownQp)
            };
            if let Err(reason) = result {
                arrival.drop_all(reason, events);
            }
        }
        if let Some(last) = current {
            *more_than_acks |= schedule(last, limits, ready, timers, peers);
        }
        drop(guard);
        self.fail_behind_overflow(now);
    }

    /// Counts an empty datagram, which the loop over packets does not see.
    #[cold]
    fn drop_empty(&mut self) {
        self.events.counters.rcvd_pkts += 1;
        let reason = DropReason::Truncated;
        self.events.emit(Event::Dropped { reason, qpn: None, psn: None });
    }
}

/// A well-formed packet, and everything that is needed to check and deliver it.
struct Arrival<'a> {
    now: Time,
    config: &'a Config,
    guard: &'a MemoryGuard<'a>,
    limits: SendLimits,
    net: &'a NetHeader,
    packet: &'a Packet<'a>,
    /// The ICRC's state after the network headers, and the packet's index in its frame. `None` if the
    /// packet came through shared memory and has no ICRC.
    icrc: Option<(&'a Prefix, u16)>,
}

impl Arrival<'_> {
    /// Checks the packet and delivers it to `qp`, its destination.
    #[inline(always)]
    fn deliver(&self, qp: &mut Qp, events: &mut EventSink) -> Result<(), DropReason> {
        debug_assert_eq!(qp.identity.qpn, self.packet.dest_qp());
        admit(qp, self.config, self.net, self.packet)?;
        self.check_icrc()?;
        self.hand_over(qp, events);
        Ok(())
    }

    /// Checks a coalesced segment and delivers it to `qp`, its destination, as one or packet by packet.
    #[inline(never)]
    fn deliver_coalesced(&self, qp: &mut Qp, coalesced: &Coalesced<'_>, events: &mut EventSink) {
        debug_assert!(self.icrc.is_none(), "a segment came through memory");
        debug_assert_eq!(qp.identity.qpn, self.packet.dest_qp());
        if let Err(reason) = admit(qp, self.config, self.net, self.packet) {
            // All packets of a segment have the same addresses and the same kind.
            return self.drop_all(reason, events);
        }
        if qp.receive_coalesced(&mut self.ctx(events), self.net, self.packet) {
            return;
        }
        for one in coalesced.packets() {
            let Ok(packet) = Packet::parse_coalesced(&one) else { continue };
            debug_assert_eq!(packet.count(), 1, "one by one");
            let psn = Some(packet.psn());
            events.psn = psn;
            if let Err(reason) = (Arrival { packet: &packet, ..*self }).deliver(qp, events) {
                let qpn = Some(packet.dest_qp());
                events.emit(Event::Dropped { reason, qpn, psn });
            }
        }
    }

    /// Reports the packet, or each packet of the coalesced segment, as dropped.
    fn drop_all(&self, reason: DropReason, events: &mut EventSink) {
        let (qpn, first) = (Some(self.packet.dest_qp()), self.packet.psn());
        for index in 0..self.packet.count() {
            let psn = Some(first.add(index.into()));
            events.emit(Event::Dropped { reason, qpn, psn });
        }
    }

    /// Delivers a datagram to every QP that is attached to its group. IBTA 10.5.
    fn deliver_to_group(
        &self,
        groups: &Groups,
        qps: &mut QpTable,
        events: &mut EventSink,
    ) -> Result<(), DropReason> {
        let group = group(groups, self.net, self.packet)?;
        debug_assert!(!group.is_empty(), "a group without members is removed");
        self.check_icrc()?;
        for qpn in group {
            let lets_in = |qp: &&mut Qp| {
                is_open(qp, self.packet.info()) && !is_own(qp, self.config, self.net, self.packet)
            };
            if let Some(qp) = qps.get_mut(*qpn).filter(lets_in) {
                self.hand_over(qp, events);
            }
        }
        Ok(())
    }

    /// Checks the ICRC. Where the socket hides the IPv4 ID, the packet's index in its buffer is tried
    /// first, which is fast: a sender whose kernel segments counts IDs from 0 in each buffer. Any other
    /// ID is accepted too.
    #[inline]
    fn check_icrc(&self) -> Result<(), DropReason> {
        let check = |(prefix, index): (&Prefix, u16)| prefix.nth(index).check(self.packet.bytes());
        self.icrc.map_or(Ok(()), check)
    }

    /// Hands the packet to the QP ([`Qp::receive`]).
    #[inline]
    fn hand_over(&self, qp: &mut Qp, events: &mut EventSink) {
        qp.receive(&mut self.ctx(events), self.net, self.packet);
    }

    #[inline]
    fn ctx<'c>(&'c self, events: &'c mut EventSink) -> Ctx<'c> {
        Ctx::new(self.now, self.guard, events, self.limits)
    }
}

/// Returns the QPs that are attached to the group of a datagram.
fn group<'g>(
    groups: &'g Groups,
    net: &NetHeader,
    packet: &Packet<'_>,
) -> Result<&'g [Qpn], DropReason> {
    if packet.info().service != Service::Ud || !net.dst.is_multicast() {
        return Err(DropReason::BadMulticast);
    }
    let group = groups.get(&Gid::from(net.dst)).ok_or(DropReason::NoMulticast)?;
    check_pkey(packet).map(|()| &group[..])
}

/// Checks that a packet may reach this QP: service, state, addresses and P_Key.
#[inline(always)]
fn admit(qp: &Qp, config: &Config, net: &NetHeader, packet: &Packet<'_>) -> Result<(), DropReason> {
    let service = qp.identity.service;
    let fits = matches!(
        (service, packet.info().service),
        (QpType::Rc, Service::Rc) | (QpType::Uc, Service::Uc) | (QpType::Ud, Service::Ud)
    ) || match service {
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv
            if packet.info().service == Service::Cnp =>
        {
            true
        }
        QpType::XrcSend => packet.info().service == Service::Xrc && packet.info().is_response(),
        QpType::XrcRecv => packet.info().service == Service::Xrc && packet.info().is_request,
        _ => false,
    };
    if !fits {
        return Err(DropReason::WrongService);
    }
    if !is_open(qp, packet.info()) {
        return Err(DropReason::WrongQpState);
    }
    if service == QpType::Ud {
        if !config.gids.contains(&Gid::from(net.dst)) {
            return Err(DropReason::WrongDestination);
        }
    } else if net.src != qp.net().dst {
        return Err(DropReason::WrongSource);
    } else if net.dst != qp.net().src {
        return Err(DropReason::WrongDestination);
    }
    check_pkey(packet)
}

/// Returns whether a QP in its present state receives a packet of this kind.
fn is_open(qp: &Qp, info: &OpInfo) -> bool {
    match qp.state() {
        QpState::Rtr => info.is_request || info.service == Service::Cnp,
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
        QpState::Reset | QpState::Init | QpState::Err => false,
    }
}

/// Returns whether this QP has sent the datagram itself, and does not receive its own multicasts.
fn is_own(qp: &Qp, config: &Config, net: &NetHeader, packet: &Packet<'_>) -> bool {
    qp.handle.blocks_own_multicast()
        && packet.deth().is_some_and(|deth| deth.src_qp == qp.identity.qpn)
        && config.gids.contains(&Gid::from(net.src))
}

pub(super) fn check_pkey(packet: &Packet<'_>) -> Result<(), DropReason> {
    if packet.pkey().matches(Pkey::DEFAULT) { Ok(()) } else { Err(DropReason::WrongPkey) }
}

/// The QPs attached to multicast groups, by the group's address.
pub(super) type Groups = HashMap<Gid, Vec<Qpn>>;

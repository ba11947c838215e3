//! What happens to a frame before a queue pair sees it: validation and demultiplexing. IBTA 9.6.
//!
//! Order: the packet's form, the QP, its state and service, addresses and P_Key, and last, because
//! it costs most, the ICRC. Nothing of a packet has any effect before all of it holds, but counters.

use std::collections::HashMap;

use super::{Config, Engine, Event};
use crate::qp::{Ctx, Qp, QpState, QpType};
use crate::types::{Gid, Pkey, Qpn, Time};
use crate::wire::{BthView, DropReason, Frame, NetHeader, OpInfo, Packet, Service, icrc};

impl Engine {
    /// Takes a buffer that has arrived. Whatever is in it is hostile until checked.
    pub fn handle_frame(&mut self, now: Time, frame: &Frame<'_>) {
        for (index, (net, bytes)) in (0..).zip(frame.packets()) {
            self.events.counters.rcvd_pkts += 1;
            self.events.counters.rcvd_bytes += bytes.len() as u64;
            let psn = BthView::new(bytes).map(BthView::psn);
            self.events.psn = psn;
            let packet = match Packet::parse(bytes) {
                Ok(packet) => packet,
                Err(reason) => {
                    self.events.emit(Event::Dropped { reason, qpn: None, psn });
                    continue;
                }
            };
            let result = if packet.dest_qp() == Qpn::MULTICAST {
                self.multicast(now, &net, &packet, index)
            } else {
                self.unicast(now, &net, &packet, index)
            };
            if let Err(reason) = result {
                let qpn = Some(packet.dest_qp());
                self.events.emit(Event::Dropped { reason, qpn, psn });
            }
        }
    }

    fn unicast(
        &mut self,
        now: Time,
        net: &NetHeader,
        packet: &Packet<'_>,
        index: u16,
    ) -> Result<(), DropReason> {
        let qpn = packet.dest_qp();
        if qpn.value() == 0 {
            return Err(DropReason::QpnZero);
        }
        let window = self.window();
        let qp = self.qps.get_mut(&qpn).ok_or(DropReason::UnknownQp)?;
        admit(qp, &self.config, net, packet)?;
        check(net, packet, index)?;
        let guard = self.memory.guard();
        qp.receive(&mut Ctx::new(now, &guard, &mut self.events, window), net, packet);
        drop(guard);
        self.schedule(qpn);
        Ok(())
    }

    /// A datagram to a group goes to every QP that is attached to it. IBTA 10.5.
    fn multicast(
        &mut self,
        now: Time,
        net: &NetHeader,
        packet: &Packet<'_>,
        index: u16,
    ) -> Result<(), DropReason> {
        if packet.info().service != Service::Ud || !net.dst.is_multicast() {
            return Err(DropReason::BadMulticast);
        }
        let group = self.groups.get(&Gid::from(net.dst)).ok_or(DropReason::NoMulticast)?;
        check_pkey(packet)?;
        check(net, packet, index)?;
        let window = self.window();
        let guard = self.memory.guard();
        for qpn in group {
            let Some(qp) = self.qps.get_mut(qpn).filter(|qp| is_open(qp, packet.info())) else {
                continue;
            };
            qp.receive(&mut Ctx::new(now, &guard, &mut self.events, window), net, packet);
        }
        Ok(())
    }
}

/// Whether a packet may reach this QP at all.
fn admit(qp: &Qp, config: &Config, net: &NetHeader, packet: &Packet<'_>) -> Result<(), DropReason> {
    let service = qp.handle.init().service;
    let fits = matches!(
        (service, packet.info().service),
        (QpType::Rc, Service::Rc) | (QpType::Uc, Service::Uc) | (QpType::Ud, Service::Ud)
    );
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

/// Whether the QP's state lets it take such a packet.
fn is_open(qp: &Qp, info: &OpInfo) -> bool {
    match qp.state() {
        QpState::Rtr => info.is_request,
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
        QpState::Reset | QpState::Init | QpState::Err => false,
    }
}

fn check_pkey(packet: &Packet<'_>) -> Result<(), DropReason> {
    if packet.bth().pkey.matches(Pkey::DEFAULT) { Ok(()) } else { Err(DropReason::WrongPkey) }
}

/// The ICRC. A sender that lets the system segment counts IDs from 0 in each buffer: the first
/// guess where the ID is hidden.
fn check(net: &NetHeader, packet: &Packet<'_>, index: u16) -> Result<(), DropReason> {
    icrc::check_hint(net, packet.bytes(), index)
}

/// The QPs attached to multicast groups, by the group's address.
pub(super) type Groups = HashMap<Gid, Vec<Qpn>>;

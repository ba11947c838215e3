//! What happens to a frame before a queue pair sees it: validation and demultiplexing. IBTA 9.6.
//!
//! Order: the packet's form, the QP, its state and service, addresses and P_Key, and last, because
//! it costs most, the ICRC. Nothing of a packet has any effect before all of it holds, but counters.

use super::{Engine, Event};
use crate::qp::{Ctx, Qp, QpState, QpType};
use crate::types::{Pkey, Qpn, Time};
use crate::wire::{BthView, DropReason, Frame, NetHeader, Packet, Service, icrc};

impl Engine {
    /// Takes a buffer that has arrived. Whatever is in it is hostile until checked.
    pub fn handle_frame(&mut self, now: Time, frame: &Frame<'_>) {
        let window = self.window();
        for (index, (net, bytes)) in (0..).zip(frame.packets()) {
            self.events.counters.rcvd_pkts += 1;
            self.events.counters.rcvd_bytes += bytes.len() as u64;
            let psn = BthView::new(bytes).map(BthView::psn);
            self.events.psn = psn;
            let qpn = match admit(&mut self.qps, &net, bytes, index) {
                Ok((qp, packet)) => {
                    let guard = self.memory.guard();
                    let mut ctx = Ctx::new(now, &guard, &mut self.events, window);
                    qp.receive(&mut ctx, &packet);
                    qp.handle.qpn()
                }
                Err((reason, qpn)) => {
                    self.events.emit(Event::Dropped { reason, qpn, psn });
                    continue;
                }
            };
            self.schedule(qpn);
        }
    }
}

type Refused = (DropReason, Option<Qpn>);

/// The QP that a packet is for, if everything about it is in order.
fn admit<'q, 'p>(
    qps: &'q mut std::collections::HashMap<Qpn, Box<Qp>>,
    net: &NetHeader,
    bytes: &'p [u8],
    index: u16,
) -> Result<(&'q mut Qp, Packet<'p>), Refused> {
    let packet = Packet::parse(bytes).map_err(|reason| (reason, None))?;
    let qpn = packet.dest_qp();
    let refuse = |reason| (reason, Some(qpn));
    if qpn.value() == 0 {
        return Err(refuse(DropReason::QpnZero));
    }
    let qp = qps.get_mut(&qpn).ok_or_else(|| refuse(DropReason::UnknownQp))?;
    let service = packet.info().service;
    let fits = matches!((qp.handle.init().service, service), (QpType::Rc, Service::Rc));
    if !fits {
        return Err(refuse(DropReason::WrongService));
    }
    let can_receive = match qp.state() {
        QpState::Rtr => packet.info().is_request,
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
        QpState::Reset | QpState::Init | QpState::Err => false,
    };
    if !can_receive {
        return Err(refuse(DropReason::WrongQpState));
    }
    if net.src != qp.net().dst || net.dst != qp.net().src {
        return Err(refuse(DropReason::WrongSource));
    }
    if !packet.bth().pkey.matches(Pkey::DEFAULT) {
        return Err(refuse(DropReason::WrongPkey));
    }
    // A sender that lets the system segment counts IDs from 0 in each buffer: the first guess where
    // the ID is hidden.
    icrc::check_hint(net, bytes, index).map_err(refuse)?;
    Ok((qp, packet))
}

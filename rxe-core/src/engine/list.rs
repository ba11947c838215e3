//! What a person may want to know of each queue pair: `rdma resource show qp`.

use std::net::IpAddr;

use super::Engine;
use crate::event::QpCounters;
use crate::mem::PdId;
use crate::qp::SendProgress;
use crate::types::{Mtu, Psn, QpState, QpType, Qpn};

/// A queue pair at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub service: QpType,
    /// Its state.
    pub state: QpState,
    /// Its protection domain.
    pub pd: PdId,
    /// The peer's address and queue pair, once it is connected.
    pub peer: Option<(IpAddr, Qpn)>,
    /// The size of its packets.
    pub path_mtu: Mtu,
    /// How far it has sent.
    pub sent: SendProgress,
    /// The PSN that it expects; `None` for datagrams.
    pub rq_psn: Option<Psn>,
    /// Send requests that are posted and not complete.
    pub sends: u32,
    /// Receives that are posted to it and not complete.
    pub receives: u32,
    /// The rate that congestion control allows, in bytes per second; `None` if it does not limit.
    pub rate: Option<u64>,
    /// What has happened on it.
    pub counters: QpCounters,
}

/// Some of the queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpPage {
    /// These.
    pub qps: Vec<QpInfo>,
    /// Where to go on; `None` if there are no more.
    pub next: Option<usize>,
}

impl Engine {
    /// Up to `max` queue pairs, in no particular order, from place `from` on: 0, or [`QpPage::next`]. The
    /// time that this takes grows with `max` only. A queue pair that is there all the time is on exactly
    /// one page.
    pub fn list_qps(&self, from: usize, max: usize) -> QpPage {
        let (found, next) = self.qps.from(from, max);
        debug_assert!(next.is_none_or(|next| next > from || max == 0), "a list ends");
        let qps = found.map(|qp| {
            let init = qp.handle.init();
            let connected = qp.identity.service != QpType::Ud
                && !matches!(qp.state(), QpState::Reset | QpState::Init);
            QpInfo {
                qpn: qp.identity.qpn,
                service: qp.identity.service,
                state: qp.state(),
                pd: init.pd,
                peer: connected.then(|| (qp.net().dst, qp.attr().dest_qp_num)),
                path_mtu: qp.attr().path_mtu,
                sent: qp.send_progress(),
                rq_psn: qp.expected_psn(),
                sends: qp.handle.sends_outstanding(),
                receives: qp.handle.receives_outstanding(),
                rate: qp.rate_limit(),
                counters: self.events.of_qp(qp.identity.qpn),
            }
        });
        let qps: Vec<_> = qps.collect();
        debug_assert!(qps.len() <= max, "{} of at most {max}", qps.len());
        QpPage { qps, next }
    }
}

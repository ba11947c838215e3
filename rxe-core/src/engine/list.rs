//! A list of all queue pairs for people, as `rdma resource show qp` prints.

use std::net::IpAddr;

use super::Engine;
use crate::event::QpCounters;
use crate::mem::PdId;
use crate::qp::SendProgress;
use crate::types::{Mtu, Psn, QpState, QpType, Qpn};

/// A queue pair at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// The QP number.
    pub qpn: Qpn,
    /// The transport service.
    pub service: QpType,
    /// The state.
    pub state: QpState,
    /// The protection domain.
    pub pd: PdId,
    /// The peer's address and QP number; `None` before the QP is connected.
    pub peer: Option<(IpAddr, Qpn)>,
    /// The path MTU.
    pub path_mtu: Mtu,
    /// How far the QP has sent.
    pub sent: SendProgress,
    /// The PSN that the responder expects; `None` for UD.
    pub rq_psn: Option<Psn>,
    /// How many send requests are posted and not complete.
    pub sends: u32,
    /// How many receives are posted to the QP's own queue and not complete.
    pub receives: u32,
    /// The rate that congestion control allows, in bytes per second; `None` if it does not limit.
    pub rate: Option<u64>,
    /// The QP's counters.
    pub counters: QpCounters,
}

/// A page of the list of queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpPage {
    /// The queue pairs of this page.
    pub qps: Vec<QpInfo>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<usize>,
}

impl Engine {
    /// Returns up to `max` queue pairs in no particular order. `from` is 0 or [`QpPage::next`]. Takes
    /// time in proportion to `max`, however many queue pairs there are. A queue pair that exists from the
    /// first page to the last is on exactly one of them.
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

//! Prefetching for the receive path: of the queue pairs of packets that come next. With many queue
//! pairs, each packet would otherwise wait for its own cache misses.

use super::PREFETCH_DISTANCE;
use super::table::QpTable;
use crate::types::Qpn;
use crate::wire::{BthView, Frame};

/// Prefetches the QPs of buffers that will be handled soon: the QPs that their first packets name.
#[derive(Debug, Default)]
pub(super) struct FramePrefetch {
    qpns: [Option<Qpn>; PREFETCH_DISTANCE],
    at: usize,
}

impl FramePrefetch {
    /// Prefetches the index entry of a coming buffer's QP, and the QP whose entry was prefetched
    /// [`PREFETCH_DISTANCE`] buffers ago.
    pub(super) fn advance(&mut self, frame: &Frame<'_>, qps: &QpTable) {
        if !qps.is_crowded() {
            return;
        }
        debug_assert!(self.at < PREFETCH_DISTANCE);
        let next = BthView::new(frame.prefetch_next).map(BthView::dest_qp);
        if let Some(qpn) = next {
            qps.prefetch_index(qpn);
        }
        if let Some(qpn) = std::mem::replace(&mut self.qpns[self.at], next) {
            qps.prefetch(qpn);
        }
        self.at = (self.at + 1) % PREFETCH_DISTANCE;
    }
}

/// Prefetches the QPs of the next packets of a frame, and, as far ahead again, their index entries.
pub(super) struct PacketPrefetch<'a> {
    frame: &'a Frame<'a>,
    /// The index of the next packet whose QP is prefetched. It starts at 1: the QP of the first packet
    /// is needed immediately.
    at: usize,
    last: Option<Qpn>,
}

impl<'a> PacketPrefetch<'a> {
    pub(super) fn new(frame: &'a Frame<'a>) -> Self {
        Self { frame, at: 1, last: None }
    }

    /// Prefetches up to [`PREFETCH_DISTANCE`] packets beyond packet `index`.
    pub(super) fn advance(&mut self, index: u16, qps: &QpTable) {
        if !qps.is_crowded() {
            return;
        }
        while self.at <= usize::from(index) + PREFETCH_DISTANCE {
            let Some(qpn) = self.qpn(self.at) else { return };
            // Usually all packets of a frame are for one QP.
            if self.last.replace(qpn) != Some(qpn) {
                qps.prefetch(qpn);
                if let Some(next) = self.qpn(self.at + PREFETCH_DISTANCE) {
                    qps.prefetch_index(next);
                }
            }
            self.at += 1;
        }
    }

    fn qpn(&self, index: usize) -> Option<Qpn> {
        let packet = self.frame.payload.get(index * self.frame.segment..)?;
        BthView::new(packet).map(BthView::dest_qp)
    }
}

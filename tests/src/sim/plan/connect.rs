//! Draws the connections of a plan.

use std::time::Duration;

use rxe_core::mem::Access;
use rxe_core::qp::{QpAttr, QpCap};
use rxe_core::types::{AckTimeout, Mtu, Psn, Qpn, RnrTimer};

use super::{End, Family, Link, Plan};
use crate::sim::rng::Rng;

impl Plan {
    /// Draws one to four connections between sides.
    pub(super) fn draw_links(&mut self, rng: &mut Rng, bad: bool) {
        let count = rng.pick(&[1, 1, 1, 2, 2, 3, 4]);
        let timeout = self.draw_timeout(rng);
        // A retry may come after four timeouts, and the next one must succeed.
        self.calm = timeout.duration().unwrap_or_default() * 6;
        for _ in 0..count {
            let a = rng.index(self.sides.len());
            let b = (a + 1 + rng.index(self.sides.len() - 1)) % self.sides.len();
            let attr = self.draw_attr(rng, timeout, bad);
            let mut ends = [self.draw_end(rng, a, attr), self.draw_end(rng, b, attr)];
            // A responder accepts at least as many READs as its peer may have outstanding.
            for (from, to) in [(0, 1), (1, 0)] {
                let more = rng.pick(&[0, 0, 0, 3]);
                ends[to].attr.max_dest_rd_atomic = ends[from].attr.max_rd_atomic + more;
            }
            // Sometimes one end exists before the other: its first packets are dropped.
            if bad && rng.chance(1, 8) {
                ends[1].connected = timeout.duration().unwrap_or_default() * 3 / 2;
            }
            self.links.push(Link { ends });
        }
    }

    /// Draws a timeout so long that no answer arrives too late.
    fn draw_timeout(&self, rng: &mut Rng) -> AckTimeout {
        let one_way = self.network.longest();
        let mut least = (one_way * 8).max(Duration::from_micros(30));
        if self.network.marks() {
            // At the lowest rate a sender sends one packet every few milliseconds.
            least = least.max(Duration::from_millis(30));
        }
        let code = (1..31)
            .find(|&code| timeout(code).duration().is_some_and(|d| d >= least))
            .unwrap_or(31);
        timeout(code + rng.pick(&[0, 0, 1, 3]))
    }

    fn draw_attr(&self, rng: &mut Rng, timeout: AckTimeout, bad: bool) -> QpAttr {
        let impatient = self.family == Family::GiveUp;
        let retry_cnt = match (impatient, bad) {
            (true, _) => rng.pick(&[0, 1, 2, 4]),
            (false, true) => 7,
            // Without loss nothing is retransmitted, so any number of retries is enough.
            (false, false) => rng.pick(&[0, 3, 7]),
        };
        let mut access = Access::LOCAL_WRITE;
        access |= Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        QpAttr {
            qp_access_flags: access,
            path_mtu: rng.pick(&Mtu::ALL),
            timeout,
            retry_cnt,
            rnr_retry: if impatient { rng.pick(&[0, 1, 6, 7]) } else { 7 },
            min_rnr_timer: RnrTimer::from_wire(rng.pick(&[1, 1, 5, 12])),
            ..QpAttr::default()
        }
    }

    fn draw_end(&self, rng: &mut Rng, side: usize, attr: QpAttr) -> End {
        let taken = |qpn: Qpn| {
            let mut ends = self.links.iter().flat_map(|link| &link.ends);
            ends.any(|end| end.side == side && end.qpn == qpn)
        };
        let qpn = loop {
            let qpn = Qpn::from_wire(rng.word());
            if qpn.value() > 1 && qpn != Qpn::MULTICAST && !taken(qpn) {
                break qpn;
            }
        };
        let near_wrap = Psn::ZERO - rng.below32(64);
        let psn = if rng.chance(1, 2) { near_wrap } else { Psn::new(rng.word()) };
        let cqs = self.sides[side].cqs;
        End {
            side,
            qpn,
            psn,
            attr: QpAttr { max_rd_atomic: rng.pick(&[1, 1, 2, 3, 8, 16]), ..attr },
            cap: QpCap {
                max_send_wr: rng.pick(&[1, 2, 4, 16, 64]),
                max_recv_wr: rng.pick(&[1, 2, 4, 16, 64]),
                max_send_sge: 5,
                max_recv_sge: 5,
                max_inline_data: rng.pick(&[0, 64, 256]),
            },
            sig_all: rng.chance(1, 4),
            cqs: [rng.index(cqs), rng.index(cqs)],
            connected: Duration::ZERO,
            ops: Vec::new(),
            receives: Vec::new(),
        }
    }
}

fn timeout(code: u8) -> AckTimeout {
    AckTimeout::new(code.min(31)).unwrap_or_default()
}

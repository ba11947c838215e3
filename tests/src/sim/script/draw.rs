//! Draws the devices and objects of a script.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use rxe_core::mem::{Access, WindowType};
use rxe_core::qp::{QpAttr, QpCap, QpType};
use rxe_core::types::{AckTimeout, Mtu, Qkey, RnrTimer};
use rxe_net::FaultAction;

use super::{Qp, Script, Side, Srq, Window};
use crate::sim::memory::{ALL, Area, Layout};
use crate::sim::network::Network;
use crate::sim::rng::Rng;

impl Script {
    /// Draws the script of run number `run`.
    pub fn draw(run: u64) -> Self {
        let mut rng = Rng::new(run ^ 0x5c12_1000_0000_0000);
        let is_v6 = rng.chance(1, 3);
        let disturbed = rng.chance(1, 2);
        let mut network = Network::draw(&mut rng);
        match rng.below(10) {
            0..3 => {}
            // Loss alone keeps datagrams in order and makes no copies.
            3..6 => network.spoil_with(FaultAction::Drop, rng.below32(200)),
            _ => network.spoil(&mut rng),
        }
        let count = if rng.chance(1, 4) { 3 } else { 2 };
        let sides = (0..count).map(|i| draw_side(&mut rng, i, is_v6, disturbed)).collect();
        let mut script = Self {
            run,
            disturbed,
            network,
            sides,
            srqs: Vec::new(),
            qps: Vec::new(),
            windows: Vec::new(),
            groups: (1..=2).map(|i| group(i, is_v6)).collect(),
            longest: rng.pick(&[64, 600, 600, 1500, 1500, 4000, 9000]),
            steps: Vec::new(),
            closing: Duration::ZERO,
        };
        script.draw_srqs(&mut rng);
        script.draw_qps(&mut rng);
        for side in 0..script.sides.len() {
            for _ in 0..rng.pick(&[0, 1, 1, 2]) {
                let kind = rng.pick(&[WindowType::Type1, WindowType::Type2]);
                script.windows.push(Window { side, kind });
            }
        }
        script.draw_steps(&mut rng);
        script.draw_shards(&mut Rng::new(run ^ 0x5a4d_2000_0000_0000));
        script
    }

    /// Gives several engines to half of the devices.
    fn draw_shards(&mut self, rng: &mut Rng) {
        for side in &mut self.sides {
            side.shards = rng.pick(&[1, 1, 2, 3]);
        }
        for qp in &mut self.qps {
            qp.shard = rng.index(self.sides[qp.side].shards);
        }
    }

    fn draw_srqs(&mut self, rng: &mut Rng) {
        for side in 0..self.sides.len() {
            for _ in 0..rng.pick(&[0, 1, 1, 2]) {
                let depth = rng.pick(&[1, 3, 8, 64]);
                self.srqs.push(Srq { side, depth, cq: None });
            }
            for _ in 0..rng.pick(&[1, 2]) {
                let depth = rng.pick(&[1, 3, 8, 64]);
                let cq = Some(rng.index(self.sides[side].cqs.len()));
                self.srqs.push(Srq { side, depth, cq });
            }
        }
    }

    /// Draws one to three connections between sides, and sometimes queue pairs for datagrams.
    fn draw_qps(&mut self, rng: &mut Rng) {
        let timeout = self.draw_timeout(rng);
        for _ in 0..rng.pick(&[1, 1, 2, 2, 3]) {
            let a = rng.index(self.sides.len());
            let b = (a + 1 + rng.index(self.sides.len() - 1)) % self.sides.len();
            let attr = draw_attr(rng, timeout);
            let ends = match rng.below(10) {
                0..3 => [QpType::Rc; 2],
                3..6 => [QpType::Uc; 2],
                6..8 => [QpType::XrcSend, QpType::XrcRecv],
                _ => [QpType::Ud; 2],
            };
            let first = self.qps.len();
            for (service, side, peer) in [(ends[0], a, b), (ends[1], b, a)] {
                let qp = self.draw_qp(rng, service, (side, peer), attr);
                self.qps.push(qp);
            }
            if ends[0] != QpType::Ud {
                self.qps[first].peer = Some(first + 1);
                self.qps[first + 1].peer = Some(first);
            }
            let [x, y] = [self.qps[first].attr, self.qps[first + 1].attr];
            self.qps[first].attr.max_dest_rd_atomic = y.max_rd_atomic;
            self.qps[first + 1].attr.max_dest_rd_atomic = x.max_rd_atomic;
        }
        for _ in 0..rng.pick(&[0, 0, 0, 2, 3]) {
            let side = rng.index(self.sides.len());
            let attr = draw_attr(rng, timeout);
            let qp = self.draw_qp(rng, QpType::Ud, (side, side), attr);
            self.qps.push(qp);
        }
    }

    fn draw_qp(
        &mut self,
        rng: &mut Rng,
        service: QpType,
        (side, peer): (usize, usize),
        attr: QpAttr,
    ) -> Qp {
        let cqs = self.sides[side].cqs.len();
        let shared = self.srqs_of(side, false);
        let may_share = !matches!(service, QpType::XrcSend | QpType::XrcRecv);
        let srq = (may_share && !shared.is_empty() && rng.chance(1, 2)).then(|| rng.pick(&shared));
        let has_word = matches!(service, QpType::Rc | QpType::XrcSend);
        Qp {
            service,
            side,
            shard: 0,
            peer: None,
            attr: QpAttr { max_rd_atomic: rng.pick(&[1, 2, 3, 8]), ..attr },
            cap: QpCap {
                max_send_wr: rng.pick(&[1, 3, 16, 64]),
                max_recv_wr: rng.pick(&[1, 3, 16, 64]),
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: rng.pick(&[0, 64, 256]),
            },
            sig_all: rng.chance(1, 4),
            cqs: [rng.index(cqs), rng.index(cqs)],
            srq,
            deaf: service == QpType::Ud && rng.chance(1, 4),
            word: has_word.then(|| self.sides[peer].layout.allocate_word(rng)),
        }
    }

    /// Draws a timeout so long that no answer arrives too late.
    fn draw_timeout(&self, rng: &mut Rng) -> AckTimeout {
        let mut least = (self.network.longest() * 8).max(Duration::from_micros(30));
        if self.network.marks() {
            // At the lowest rate a sender sends one packet every few milliseconds.
            least = least.max(Duration::from_millis(30));
        }
        let long_enough = |code: &u8| {
            AckTimeout::new(*code).and_then(AckTimeout::duration).is_some_and(|d| d >= least)
        };
        let code = (1..31).find(long_enough).unwrap_or(31);
        AckTimeout::new((code + rng.pick(&[0, 0, 2])).min(31)).unwrap_or_default()
    }
}

fn draw_side(rng: &mut Rng, index: u16, is_v6: bool, disturbed: bool) -> Side {
    let [_, last] = (index + 1).to_be_bytes();
    let ip: IpAddr = if is_v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, last).into()
    };
    let small = disturbed && rng.chance(1, 3);
    let depths: &[u32] = if small { &[1, 4, 16] } else { &[4096] };
    let mut layout = Layout::new(rng);
    // No area is empty.
    for area in Area::ALL {
        layout.allocate(rng, area, 16, 8);
    }
    Side {
        ip,
        layout,
        window_packets: rng.pick(&[1, 2, 5, 16, 64, 256, 256]),
        window_bytes: rng.pick(&[256, 4096, 65_536, 262_144, 262_144]),
        cqs: (0..=rng.index(3)).map(|_| rng.pick(depths)).collect(),
        shards: 1,
    }
}

fn group(index: u16, is_v6: bool) -> IpAddr {
    let [_, last] = index.to_be_bytes();
    if is_v6 {
        Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(239, 1, 1, last).into()
    }
}

fn draw_attr(rng: &mut Rng, timeout: AckTimeout) -> QpAttr {
    QpAttr {
        qp_access_flags: ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
        path_mtu: rng.pick(&[Mtu::M256, Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M4096]),
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: RnrTimer::from_wire(rng.pick(&[1, 1, 5, 12])),
        // Two different Q_Keys are in use, so some datagrams have a wrong one.
        qkey: Qkey::new(rng.pick(&[0x1111, 0x1111, 0x1111, 0x2222])),
        ..QpAttr::default()
    }
}

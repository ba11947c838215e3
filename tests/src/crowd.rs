//! Two engines connected by any number of queue pairs.
//! Benchmarks measure with them how memory and time depend on that number.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Buffer, Memory};
use rxe_core::qp::{QpAttr, QpCap, QpHandle, QpInit, QpType};
use rxe_core::queue::{
    CompletionQueue, Payload, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
};
use rxe_core::types::{Gid, Key, Mtu, Qpn, Time};
use rxe_core::wire::{TxBatch, TxLimits};

use crate::sim::memory::{ALL, PD};
use crate::sim::world::bring_to_rts;

const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x10_0000;
const FIRST: u32 = 0x100;

/// Two engines with equally many RC queue pairs, connected one to one.
#[derive(Debug)]
pub struct Crowd {
    ends: [End; 2],
    now: Time,
    batch: TxBatch,
}

#[derive(Debug)]
struct End {
    engine: Engine,
    cq: Arc<CompletionQueue>,
    qps: Vec<Arc<QpHandle>>,
}

impl Crowd {
    /// Creates `connections` connections whose queues have the sizes in `cap`.
    ///
    /// # Panics
    /// If memory cannot be registered or a queue pair cannot be created.
    pub fn new(connections: u32, cap: QpCap) -> Self {
        let address = |end: u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, end + 1));
        let ends = [0, 1].map(|end| {
            let memory = Arc::new(Memory::new());
            let made = memory.register(PD, Buffer::zeroed(1 << 16), BASE, ALL, || KEY.value());
            assert_eq!(made, Ok(KEY));
            let config = Config { gids: vec![Gid::from(address(end))], ..Config::default() };
            let mut engine = Engine::new(config, memory);
            let cq = Arc::new(CompletionQueue::new(1024, None));
            let mut attr =
                QpAttr { path_mtu: Mtu::M1024, qp_access_flags: ALL, ..QpAttr::default() };
            attr.ah_attr.dgid = Gid::from(address(1 - end));
            let qps = (FIRST..FIRST + connections).map(|number| {
                let qpn = Qpn::from_wire(number);
                let init = QpInit {
                    service: QpType::Rc,
                    pd: PD,
                    send_cq: Arc::clone(&cq),
                    recv_cq: Arc::clone(&cq),
                    cap,
                    srq: None,
                    xrcd: None,
                    sq_sig_all: false,
                };
                let qp = engine.create_qp(qpn, init).expect("the number is free");
                bring_to_rts(&mut engine, Time::ZERO, qpn, QpAttr { dest_qp_num: qpn, ..attr });
                qp
            });
            let qps = qps.collect();
            End { engine, cq, qps }
        });
        Self { ends, now: Time::from_nanos(1), batch: TxBatch::new(TxLimits::default()) }
    }

    /// Sends 8 bytes on each of these connections and exchanges packets until all have completed.
    /// Each message is a WRITE if `write` is true, otherwise a SEND. All are posted before any is sent.
    ///
    /// # Panics
    /// If a message does not complete.
    pub fn exchange(&mut self, connections: impl Iterator<Item = usize>, write: bool) {
        let sge = Sge { addr: BASE, length: 8, lkey: KEY };
        let mut left = 0;
        for at in connections {
            left += 1;
            let remote = Remote { addr: BASE + 4096, rkey: KEY };
            let op = if write {
                SendOp::Write { remote, imm: None }
            } else {
                let sges = [Sge { addr: BASE + 8192, ..sge }].into_iter().collect();
                let receive = RecvRequest { id: 0, sges };
                self.ends[1].qps[at].post_recv(receive).expect("there is room");
                SendOp::Send { imm: None }
            };
            let payload = Payload::Sges([sge].into_iter().collect());
            let flags = SendFlags::SIGNALED;
            let request = SendRequest { flags, ..SendRequest::new(0, op, payload) };
            self.ends[0].qps[at].post_send(request).expect("there is room");
        }
        for _ in 0..1000 {
            if left == 0 {
                return;
            }
            self.now = self.now + std::time::Duration::from_micros(1);
            for from in 0..2 {
                let [a, b] = &mut self.ends;
                let (from, to) = if from == 0 { (a, b) } else { (b, a) };
                from.engine.handle_timeout(self.now);
                from.engine.poll_transmit(self.now, &mut self.batch);
                for frame in self.batch.frames() {
                    to.engine.handle_frame(self.now, &frame);
                }
                self.batch.clear();
            }
            while self.ends[0].cq.poll().is_some() {
                left -= 1;
            }
            while self.ends[1].cq.poll().is_some() {}
        }
        panic!("{left} do not complete");
    }
}

//! A second engine of the same device, as a second shard would have one.
//! It shares the memory and the completion queue of the engine under test, and has its own RC queue
//! pair. Nothing that happens to the engine under test may affect it, unless the shared completion
//! queue overflows.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Access, Buffer, Memory};
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::CompletionQueue;
use rxe_core::types::{Gid, Key, Psn, Qpn, Time};
use rxe_core::wire::{Frame, NetHeader, Opcode, TxBatch, TxLimits};

use super::packet::{pattern, rdma};
use super::world::{BASE, PD, PEER_QPN, RQ_PSN};

pub(super) struct Bystander {
    engine: Engine,
    qp: Arc<QpHandle>,
    net: NetHeader,
}

/// A number in another QPN range than that of the queue pair under test.
const QPN: u32 = 0x2_0012;
/// The offset that the final WRITE to this engine uses, and its key.
const AT: u64 = 0x3_e000;
const KEY: Key = Key::new(0x0e00_0001);

impl Bystander {
    pub(super) fn new(
        memory: &Arc<Memory>,
        buffer: &Buffer,
        cq: &Arc<CompletionQueue>,
        net: NetHeader,
    ) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let made = memory.register(PD, buffer.clone(), BASE, access, || KEY.value());
        assert_eq!(made, Ok(KEY), "the catalogue chooses its keys");
        let (own, peer): (IpAddr, IpAddr) = (net.dst, net.src);
        let config = Config { gids: vec![Gid::from(own)], ..Config::default() };
        let mut engine = Engine::new(config, Arc::clone(memory));
        let init = QpInit {
            service: QpType::Rc,
            pd: PD,
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            cap: QpCap::default(),
            srq: None,
            xrcd: None,
            sq_sig_all: false,
        };
        let qp = engine.create_qp(Qpn::from_wire(QPN), init).expect("a QP");
        let attr = QpAttr {
            qp_access_flags: Access::REMOTE_WRITE,
            rq_psn: Psn::new(RQ_PSN),
            dest_qp_num: Qpn::from_wire(PEER_QPN),
            ah_attr: AddressVector { dgid: Gid::from(peer), ..QpAttr::default().ah_attr },
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rtr = path | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        for (qp_state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr)] {
            let attr = QpAttr { qp_state, ..attr };
            let mask = mask | AttrMask::STATE;
            engine.modify_qp(Time::ZERO, qp.qpn(), &attr, mask).expect("a transition");
        }
        Self { engine, qp, net }
    }

    /// Checks that the QP is in the error state after an overflow, and otherwise executes a WRITE.
    /// Returns what is wrong, if anything.
    pub(super) fn check(&mut self, overflowed: bool, buffer: &Buffer) -> Option<&'static str> {
        let mut batch = TxBatch::new(TxLimits::default());
        self.engine.poll_transmit(Time::ZERO, &mut batch);
        if !batch.is_empty() {
            return Some("another engine of the device sends something");
        }
        if overflowed {
            let stopped = self.qp.state() == QpState::Err;
            return (!stopped).then_some("another engine goes on behind the overflowed queue");
        }
        let write = rdma(Opcode::RC_WRITE_ONLY, 0, 4, AT, 4).rkey(KEY, "").ask();
        let (net, bytes) = write.render(self.net, self.qp.qpn());
        self.engine.handle_frame(Time::ZERO, &Frame::single(net, &bytes));
        self.engine.poll_transmit(Time::ZERO, &mut batch);
        let mut got = [0; 4];
        buffer.span(AT, 4).expect("inside").read(&mut got).expect("mapped");
        let written = got[..] == pattern(4) && batch.frames().count() == 1;
        (!written).then_some("a good WRITE to another engine of the device is not carried out")
    }
}

//! The rule of the doorbells under contention, on a shard without a driver and without packets, so that
//! nothing but the rule itself can bring a request to its end.

use std::os::fd::BorrowedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rxe_core::engine::Config;
use rxe_core::mem::{Memory, PdId};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{CompletionQueue, Payload, SendOp, SendRequest, Status};
use rxe_core::types::Qpn;
use rxe_core::wire::{Frame, TxBatch, TxLimits};
use rxe_net::{Capabilities, SendStatus, SrcPort};

use super::*;

/// A wire that nothing comes from and that nothing is sent to.
struct Nowhere(Capabilities);

impl Backend for Nowhere {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        Ok(0)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        batch.clear();
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn counters(&self) -> rxe_net::Counters {
        rxe_net::Counters::default()
    }
}

fn shard() -> Shard {
    let capabilities = Capabilities {
        name: "nowhere",
        privileges: "",
        link_mtu: 1500,
        tx: TxLimits::default(),
        src_port: SrcPort::Any,
        sees_ip_id: true,
        recv_buffer: 0,
        qpn_block: None,
    };
    let asyncs = Arc::new(AsyncEvents::new().unwrap());
    Shard::new(ShardParts {
        device: "nowhere".into(),
        engine: Engine::new(Config::default(), Arc::new(Memory::new())),
        backend: Box::new(Nowhere(capabilities)),
        events: Events::new(Arc::clone(&asyncs), None, None),
        asyncs,
    })
    .unwrap()
}

/// A QP in the error state: what is posted to it completes, as flushed, when the engine sees it.
fn flushing_qp(shard: &Shard, qpn: u32) -> (Arc<QpHandle>, Arc<CompletionQueue>) {
    let qpn = Qpn::new(qpn).unwrap();
    let cq = Arc::new(CompletionQueue::new(16, None));
    let init = QpInit {
        service: QpType::Rc,
        pd: PdId(1),
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        cap: QpCap::default(),
        srq: None,
        xrcd: None,
        sq_sig_all: true,
    };
    let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    let handle = shard
        .with(|core| {
            let handle = core.engine.create_qp(qpn, init)?;
            core.engine.modify_qp(now(), qpn, &error, AttrMask::STATE)?;
            Ok::<_, rxe_core::VerbsError>(handle)
        })
        .unwrap();
    (handle.unwrap(), cq)
}

#[test]
fn every_request_has_begun_when_all_posters_have_returned() {
    const THREADS: u32 = 3;
    const ROUNDS: u64 = 15_000;
    /// The last one of a burst is the one that may be missed.
    const BURST: u64 = 16;
    let shard = shard();
    let barrier = Barrier::new(THREADS as usize);
    let missed = AtomicU64::new(0);
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (shard, barrier, missed) = (&shard, &barrier, &missed);
            let (qp, cq) = flushing_qp(shard, 100 + t);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    barrier.wait();
                    for id in 0..BURST {
                        let op = SendOp::Send { imm: None };
                        let payload = Payload::Sges([].as_slice().into());
                        qp.post_send(SendRequest::new(id, op, payload)).unwrap();
                        shard.answer_doorbells();
                    }
                    // Nobody posts and nobody holds the lock from here on.
                    barrier.wait();
                    let mut done = 0;
                    while let Some(completion) = cq.poll() {
                        assert_eq!(completion.status, Status::WorkRequestFlushed);
                        done += 1;
                    }
                    if done < BURST {
                        missed.fetch_add(1, Ordering::Relaxed);
                        // So that the other rounds count for themselves.
                        shard.with(|_| ()).unwrap();
                        while cq.poll().is_some() {}
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner(), 0, "bursts of which a doorbell was missed");
}

#[test]
fn a_panic_in_a_turn_is_remembered_and_told() {
    let shard = shard();
    let turn = std::panic::AssertUnwindSafe(|| shard.with(|_| panic!("for the test")));
    assert!(std::panic::catch_unwind(turn).is_err());
    let error = shard.with(|_| ()).unwrap_err();
    assert!(error.to_string().starts_with("nowhere has stopped working: the engine panicked"));
    assert!(shard.asyncs.take().is_some());
}

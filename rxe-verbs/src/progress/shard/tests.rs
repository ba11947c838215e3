//! Tests the rules of a shard. It has no driver and no peer, so only these rules complete a
//! request.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::engine::Config;
use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    Arm, CompletionQueue, Notify, Payload, SendFlags, SendOp, SendRequest, Sge, Status,
};
use rxe_core::types::{Gid, Mtu, Psn, Qpn, Time};
use rxe_core::wire::{Bth, Ext, Frame, NetHeader, Opcode, Reth, TxBatch, TxLimits, emit};
use rxe_net::{Capabilities, SendStatus, SrcPort};
use rxe_sys::SharedFd;

use super::super::policy::{PostContext, ReplyPredictor};
use super::super::testing::ready_to_send;
use super::super::{CmList, ConnectionManager, Timers, Waker, driver};
use super::*;
use crate::os::now;

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A backend that receives nothing and accepts every packet. It counts the batches, and records
/// whether a thread sleeps on its descriptors.
struct Nowhere(Capabilities, Arc<AtomicU64>, Arc<AtomicBool>);

impl Backend for Nowhere {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        Ok(0)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        batch.clear();
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(&SharedFd)) {}

    fn counters(&self) -> rxe_net::Counters {
        rxe_net::Counters::default()
    }

    fn watch(&mut self, on: bool) {
        self.2.store(on, Ordering::Relaxed);
    }
}

fn shard() -> Shard {
    counting_shard(Arc::default())
}

fn counting_shard(batches: Arc<AtomicU64>) -> Shard {
    shard_over(|capabilities| Box::new(Nowhere(capabilities, batches, Arc::default())))
}

fn shard_over(backend: impl FnOnce(Capabilities) -> Box<dyn Backend>) -> Shard {
    shard_in(Environment::System, backend)
}

fn shard_in(
    environment: Environment,
    backend: impl FnOnce(Capabilities) -> Box<dyn Backend>,
) -> Shard {
    let capabilities = Capabilities {
        name: "nowhere",
        link_mtu: 1500,
        tx: TxLimits::default(),
        src_port: SrcPort::Any,
        recv_buffer: 0,
        qpn_block: None,
    };
    let asyncs = Arc::new(AsyncEvents::new(Arc::new(rxe_sys::EventFd::new().unwrap())));
    let config = Config { gids: vec![OWN.into()], ..Config::default() };
    Shard::new(ShardParts {
        device: "nowhere".into(),
        engine: Engine::new(config, Arc::new(Memory::new())),
        backend: backend(capabilities),
        events: Events::new(Arc::clone(&asyncs), None, None),
        asyncs,
        acks: AckPolicy::Adaptive,
        realtime: false,
        environment,
    })
    .unwrap()
}

/// Returns attributes of a QP whose requests all complete on `cq`.
fn qp_init(service: QpType, cq: &Arc<CompletionQueue>) -> QpInit {
    QpInit {
        service,
        pd: PdId(1),
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        cap: QpCap::default(),
        srq: None,
        xrcd: None,
        sq_sig_all: true,
    }
}

/// Creates a QP in the error state: its requests complete as flushed when the engine sees them.
fn flushing_qp(shard: &Shard, qpn: u32) -> (Arc<QpHandle>, Arc<CompletionQueue>) {
    let cq = Arc::new(CompletionQueue::new(16, None));
    (flushing_qp_on(shard, qpn, &cq), cq)
}

fn flushing_qp_on(shard: &Shard, qpn: u32, cq: &Arc<CompletionQueue>) -> Arc<QpHandle> {
    let qpn = Qpn::new(qpn).unwrap();
    let init = qp_init(QpType::Rc, cq);
    let error = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
    let handle = shard
        .with(|core| {
            let handle = core.engine.create_qp(qpn, init)?;
            core.engine.modify_qp(now(), qpn, &error, AttrMask::STATE)?;
            Ok::<_, rxe_core::VerbsError>(handle)
        })
        .unwrap();
    handle.unwrap()
}

/// Returns a send request without payload.
fn empty_send(id: u64) -> SendRequest {
    SendRequest::new(id, SendOp::Send { imm: None }, Payload::Sges([].as_slice().into()))
}

/// Wakes the thread that owns the waker.
#[derive(Debug)]
struct Wakes(Arc<Waker>);

impl Notify for Wakes {
    fn notify(&self) {
        self.0.wake();
    }
}

/// Creates an unreliable connection in RTS: only the policy delays its requests.
fn sending_qp(shard: &Shard) -> (Arc<QpHandle>, Arc<CompletionQueue>) {
    connected_qp(shard, QpType::Uc)
}

/// Creates queue pair 17, connected to 18 at [`PEER`]. The first PSN that it expects is 0.
fn connected_qp(shard: &Shard, service: QpType) -> (Arc<QpHandle>, Arc<CompletionQueue>) {
    let cq = Arc::new(CompletionQueue::new(128, None));
    let cap = QpCap { max_send_wr: 128, ..QpCap::default() };
    let init = QpInit { cap, ..qp_init(service, &cq) };
    let qp = shard
        .with(|core| {
            let qp = core.engine.create_qp(Qpn::new(17).unwrap(), init).unwrap();
            let dest_qp_num = Qpn::new(18).unwrap();
            let mut attr = QpAttr { path_mtu: Mtu::M1024, dest_qp_num, ..QpAttr::default() };
            attr.ah_attr.dgid = Gid::from(PEER);
            attr.qp_access_flags = Access::REMOTE_WRITE;
            ready_to_send(&mut core.engine, now(), qp.qpn(), service, attr).unwrap();
            qp
        })
        .unwrap();
    (qp, cq)
}

/// Posts an empty message like a program.
fn post(shard: &Shard, qp: &QpHandle, must_leave: bool) {
    qp.post_send(empty_send(0)).unwrap();
    shard.posted(&Post { packets: 1, requests: 1, must_leave, ..Post::default() }.on(qp));
}

/// Posts until requests wait. Returns how many posts that took.
fn begin_stream(shard: &Shard, qp: &QpHandle) -> usize {
    begin_stream_until(shard, qp, || shard.unsent.waiting_posts.any())
}

fn begin_stream_until(shard: &Shard, qp: &QpHandle, begun: impl Fn() -> bool) -> usize {
    (1..)
        .find(|_| {
            // So that the stream continues however long this thread did not run since the last
            // post.
            shard.with_lock(|core| core.batching.polled());
            post(shard, qp, false);
            begun()
        })
        .unwrap()
}

/// Takes the driver's turn after its timer has fired.
fn driver_turn(shard: &Shard) {
    assert!(shard.wakeups.sleep().unwrap().timer);
    shard.drive(true).unwrap();
}

#[test]
fn posts_of_a_stream_leave_together_with_the_next_poll() {
    let batches = Arc::new(AtomicU64::new(0));
    let shard = counting_shard(Arc::clone(&batches));
    let (qp, cq) = sending_qp(&shard);
    let begun = begin_stream(&shard, &qp);
    let before = batches.load(Ordering::Relaxed);
    assert_eq!(before, begun as u64 - 1, "the beginning of a stream leaves one by one");
    (0..9).for_each(|_| post(&shard, &qp, false));
    assert_eq!((batches.load(Ordering::Relaxed), cq.len()), (before, begun - 1), "they wait");
    shard.turn_if_free(|_| ()).unwrap();
    assert_eq!((batches.load(Ordering::Relaxed), cq.len()), (before + 1, begun + 9));
    assert!(!shard.unsent.waiting_posts.any());
}

#[test]
fn posts_that_wait_leave_when_there_are_many_or_one_is_urgent() {
    for must_leave in [false, true] {
        let shard = shard();
        let (qp, cq) = sending_qp(&shard);
        let begun = begin_stream(&shard, &qp);
        let more = if must_leave { 2 } else { Post::MAX_PACKETS as usize - 1 };
        for i in 1..=more {
            assert_eq!(cq.len(), begun - 1, "{i}");
            post(&shard, &qp, must_leave && i == more);
        }
        assert_eq!(cq.len(), begun + more);
    }
}

#[test]
fn posts_that_wait_in_vain_are_sent_by_the_driver() {
    let shard = shard();
    let (qp, cq) = sending_qp(&shard);
    let begun = begin_stream(&shard, &qp);
    assert_eq!(cq.len(), begun - 1);
    driver_turn(&shard);
    assert_eq!(cq.len(), begun);
    assert!(!shard.unsent.waiting_posts.any());
}

/// A peer in shared memory need not wake a driver that polls. Each wake-up would cost a system
/// call.
#[test]
fn the_backend_is_told_of_a_driver_that_sleeps_and_not_of_one_that_polls() {
    let watched = Arc::new(AtomicBool::new(false));
    let sees = Arc::clone(&watched);
    let shard = shard_over(|capabilities| Box::new(Nowhere(capabilities, Arc::default(), sees)));
    let is_watched = || watched.load(Ordering::Relaxed);
    assert!(is_watched(), "a new driver sleeps");
    for polls in [true, true, false, true, false] {
        let turned = driver::turn(&shard, false, |_, packets, alone| {
            assert_eq!((packets, alone), (0, true));
            polls
        });
        assert_eq!((turned.unwrap(), is_watched()), (polls, !polls));
    }
    driver::turn(&shard, false, |_, _, _| true).unwrap();
    shard.with_lock(|core| {
        core.watchers.enter();
        assert!(core.watchers.lead());
        core.set_interest(&shard.wakeups, Interest::None);
    });
    assert!(is_watched(), "another thread sleeps");
}

/// A backend whose peer sends `owed` empty WRITEs to queue pair 17.
struct Writes {
    wire: Nowhere,
    owed: Arc<AtomicU32>,
    psn: Psn,
}

impl Backend for Writes {
    fn capabilities(&self) -> &Capabilities {
        self.wire.capabilities()
    }

    fn receive(&mut self, _: usize, f: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        if self.owed.load(Ordering::Relaxed) == 0 {
            return Ok(0);
        }
        self.owed.fetch_sub(1, Ordering::Relaxed);
        let net = NetHeader::outgoing(PEER, OWN, 49_152);
        let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(17).unwrap(), self.psn);
        let ext = Ext { reth: Some(Reth::default()), ..Ext::default() };
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &ext, &[]);
        self.psn = self.psn.next();
        f(&Frame::single(net, &packet));
        Ok(1)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        self.wire.send(batch)
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(&SharedFd)) {}

    fn counters(&self) -> rxe_net::Counters {
        rxe_net::Counters::default()
    }
}

/// Creates a shard whose backend is [`Writes`].
fn shard_written_to(owed: &Arc<AtomicU32>) -> Shard {
    shard_over(|capabilities| {
        let wire = Nowhere(capabilities, Arc::default(), Arc::default());
        Box::new(Writes { wire, owed: Arc::clone(owed), psn: Psn::ZERO })
    })
}

#[test]
fn a_post_returns_with_the_answer_once_a_ping_pong_is_seen() {
    let owed = Arc::new(AtomicU32::new(0));
    let shard = shard_written_to(&owed);
    let (qp, _cq) = connected_qp(&shard, QpType::Rc);
    let qpn = qp.qpn();
    let msn = || shard.with_lock(|core| core.engine.qp_msn(qpn)).unwrap();
    let mut predictor = ReplyPredictor::default();
    owed.store(1, Ordering::Relaxed);
    shard.await_reply(qpn, &mut predictor);
    assert_eq!(msn(), 0, "nothing is known of the program yet");

    play_ping_pong(&mut predictor);
    shard.await_reply(qpn, &mut predictor);
    assert_eq!(msn(), 1, "the answer has come");
    let plan = shard.with_lock(|core| core.watchers.look(false, now()));
    assert!(!plan.watches(), "the program polls");
}

/// Makes the predictor see a ping-pong of 100 rounds, however slow this machine is.
fn play_ping_pong(predictor: &mut ReplyPredictor) {
    for message in 0..100_u32 {
        let msn = message.wrapping_sub(100) & 0xff_ffff;
        let (received, now) = (now(), now());
        let post = PostContext { msn, received, now, sole: true, single_cpu: false };
        predictor.posted(&post);
    }
}

#[test]
fn a_post_before_the_end_of_the_turn_that_has_brought_the_message_is_of_the_ping_pong_too() {
    let owed = Arc::new(AtomicU32::new(1));
    let shard = shard_written_to(&owed);
    let (qp, _cq) = connected_qp(&shard, QpType::Rc);
    let qpn = qp.qpn();
    let mut predictor = ReplyPredictor::default();
    play_ping_pong(&mut predictor);
    let turning = AtomicBool::new(false);
    let poster = format!("/proc/self/task/{}/stat", rustix::thread::gettid());
    let sleeps = || std::fs::read_to_string(&poster).unwrap().contains(") S ");
    thread::scope(|scope| {
        scope.spawn(|| {
            shard.with_lock(|_| {
                turning.store(true, Ordering::Relaxed);
                while !sleeps() {
                    thread::yield_now();
                }
            });
        });
        while !turning.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        shard.await_reply(qpn, &mut predictor);
        // If the post has not waited, this thread sleeps only at the end of the scope, after this
        // check.
        assert_eq!(owed.load(Ordering::Relaxed), 0, "the post has waited for the answer");
    });
}

#[test]
fn a_queue_pair_that_ends_has_sent_what_waited() {
    let batches = Arc::new(AtomicU64::new(0));
    let shard = counting_shard(Arc::clone(&batches));
    let (qp, _cq) = sending_qp(&shard);
    let begun = begin_stream(&shard, &qp);
    shard.with(|core| core.engine.destroy_qp(qp.qpn())).unwrap().unwrap();
    assert_eq!(batches.load(Ordering::Relaxed), begun as u64);
}

/// Makes threads post bursts simultaneously, each to its own queue pair. Returns how many bursts
/// had not completed after all threads had returned and one of them had called `finish`.
fn missed_bursts(
    shard: &Shard,
    rounds: u64,
    post_burst: impl Fn(u32, u64, &QpHandle) + Sync,
    finish: impl Fn() + Sync,
) -> u64 {
    const THREADS: u32 = 3;
    let barrier = Barrier::new(THREADS as usize);
    let missed = AtomicU64::new(0);
    thread::scope(|scope| {
        for t in 0..THREADS {
            let (barrier, missed, post_burst, finish) = (&barrier, &missed, &post_burst, &finish);
            let (qp, cq) = flushing_qp(shard, 100 + t);
            scope.spawn(move || {
                for round in 0..rounds {
                    barrier.wait();
                    post_burst(t, round, &qp);
                    // No thread posts or holds the lock from here on.
                    barrier.wait();
                    if t == 0 {
                        finish();
                    }
                    barrier.wait();
                    let mut done = 0;
                    while let Some(completion) = cq.poll() {
                        assert_eq!(completion.status, Status::WorkRequestFlushed);
                        done += 1;
                    }
                    if done < BURST {
                        missed.fetch_add(1, Ordering::Relaxed);
                        // Completes this burst, so that it does not affect the other rounds.
                        shard.with(|_| ()).unwrap();
                        while cq.poll().is_some() {}
                    }
                }
            });
        }
    });
    missed.into_inner()
}

/// The number of requests in a burst. Only the last one can be missed.
const BURST: u64 = 16;

#[test]
fn no_post_is_stranded_while_others_wait() {
    let shard = shard();
    let post_burst = |t, round: u64, qp: &QpHandle| {
        // One thread sometimes pauses for longer than a stream lasts.
        if t > 0 || !round.is_multiple_of(8) {
            shard.with_lock(|core| core.batching.polled());
        }
        (0..BURST).for_each(|_| post(&shard, qp, false));
    };
    let missed = missed_bursts(&shard, 5_000, post_burst, || {
        if shard.unsent.waiting_posts.any() {
            driver_turn(&shard);
        }
    });
    assert_eq!(missed, 0, "bursts of which a post was stranded");
}

/// An environment with real time. Calls a function when the timer is next set.
struct AtTimer(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl crate::os::Simulation for AtTimer {
    fn now(&self) -> Time {
        now()
    }

    fn random(&self) -> u64 {
        unreachable!("nothing asks for it")
    }

    fn wake_at(&self, _: Time) {
        let happens = self.0.lock().take();
        if let Some(happens) = happens {
            happens();
        }
    }

    fn advance(&self, _: Time) -> bool {
        unreachable!("nobody waits")
    }

    fn id(&self) -> u64 {
        1
    }

    fn runs_to_completion(&self) -> bool {
        false
    }
}

#[test]
fn an_urgent_post_leaves_before_the_post_returns_that_begins_to_wait() {
    let host = Arc::new(AtTimer(Mutex::default()));
    let environment = Environment::Simulated(host.clone());
    let shard =
        Arc::new(shard_in(environment, |c| Box::new(Nowhere(c, Arc::default(), Arc::default()))));
    let (stream, sent) = sending_qp(&shard);
    let (other, done) = flushing_qp(&shard, 100);
    let beside = Arc::clone(&shard);
    *host.0.lock() = Some(Box::new(move || {
        // Another thread, which finds the lock taken.
        thread::spawn(move || post(&beside, &other, true)).join().unwrap();
    }));
    let begun = begin_stream_until(&shard, &stream, || host.0.lock().is_none());
    assert_eq!((done.len(), sent.len()), (1, begun));
    assert!(
        !shard.left_to_holder.load(Ordering::Relaxed),
        "no later batch leaves early for this one"
    );
}

#[test]
fn every_request_has_begun_when_all_posters_have_returned() {
    let shard = shard();
    let post_burst = |_, _, qp: &QpHandle| {
        for id in 0..BURST {
            qp.post_send(empty_send(id)).unwrap();
            shard.answer_doorbells();
        }
    };
    let missed = missed_bursts(&shard, 15_000, post_burst, || {});
    assert_eq!(missed, 0, "bursts of which a doorbell was missed");
}

#[test]
fn what_a_thread_completes_itself_as_it_goes_to_sleep_ends_its_sleep() {
    let shard = shard();
    let waker = Waker::current().unwrap();
    let cq = Arc::new(CompletionQueue::new(16, Some(Arc::new(Wakes(Arc::clone(&waker))))));
    let qp = flushing_qp_on(&shard, 100, &cq);
    let deadline = now() + Duration::from_secs(20);
    let mut posted = false;
    let found = shard.sleep(waker.event(), deadline, || {
        waker.clear();
        cq.arm(Arm::Any);
        let found = cq.poll();
        if found.is_none() && !std::mem::replace(&mut posted, true) {
            // Another thread posts, finds the lock taken by this one, and leaves its doorbell to it.
            qp.post_send(empty_send(1)).unwrap();
        }
        Ok(found)
    });
    assert!(now() < deadline, "it slept although the completion was there");
    assert_eq!(found.unwrap().unwrap().status, Status::WorkRequestFlushed);
}

#[test]
fn what_came_from_this_host_is_acknowledged_before_a_program_is_told_of_it() {
    let shard = shard();
    let owed = &shard.unsent.owed;
    let turning = Barrier::new(2);
    let sent = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            turning.wait();
            // This thread has taken a completion that the other thread's turn has just created.
            shard.send_owed_acks();
            assert!(sent.load(Ordering::Relaxed), "the turn has not ended");
        });
        shard
            .with(|_| {
                owed.note_packet(true);
                turning.wait();
                thread::sleep(Duration::from_millis(50));
                sent.store(true, Ordering::Relaxed);
            })
            .unwrap();
    });
    // Acknowledgements to another host may wait.
    owed.note_packet(false);
    shard.send_owed_acks();
    assert!(owed.any());
}

/// A connection manager whose timer is due. It records what it is told to do about timers.
#[derive(Default)]
struct DueCm(Vec<Timers>);

impl ConnectionManager for DueCm {
    fn poll_timeout(&self) -> Option<Time> {
        let ran = self.0.iter().any(|t| matches!(t, Timers::Run | Timers::ExcuseAndRun));
        (!ran).then_some(Time::ZERO)
    }

    fn turn(&mut self, _: Time, _: &mut Engine, timers: Timers) {
        self.0.push(timers);
    }

    fn list(&self, _: usize) -> CmList {
        Default::default()
    }
}

#[test]
fn timers_of_the_connection_manager_run_after_the_input_and_late_ones_are_excused() {
    let shard = shard();
    let told = || {
        let take = |cm: &mut DueCm, _| cm.0.clone();
        shard.with_lock(|core| core.with_cm(|| Ok(DueCm::default()), take)).unwrap()
    };
    assert_eq!(told(), []);
    // A call such as a post reads no input.
    shard.with(|_| ()).unwrap();
    assert_eq!(told(), [Timers::None]);
    // The turn has read as many packets as it may, so there may be more.
    shard.turn(0).unwrap();
    assert_eq!(told(), [Timers::None; 2]);
    shard.turn(RX_BUDGET).unwrap();
    assert_eq!(told(), [Timers::None, Timers::None, Timers::ExcuseAndRun]);
    shard.turn(RX_BUDGET).unwrap();
    assert_eq!(told().last(), Some(&Timers::None));
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

#[test]
fn a_turn_ends_although_there_is_more_to_send_and_the_driver_goes_on() {
    // Unreliable, so that only the policy delays it: a message of 512 batches.
    const LEN: u32 = 128 << 20;
    let batches = Arc::new(AtomicU64::new(0));
    let shard = counting_shard(Arc::clone(&batches));
    let (qp, cq) = sending_qp(&shard);
    let memory = shard.with(|core| Arc::clone(core.engine.memory())).unwrap();
    let buffer = Buffer::zeroed(LEN as usize);
    let lkey = memory.register(PdId(1), buffer, 0, Access::empty(), || 0x1234_5600).unwrap();
    let payload = Payload::Sges([Sge { addr: 0, length: LEN, lkey }].as_slice().into());
    let request = SendRequest::new(1, SendOp::Send { imm: None }, payload);
    qp.post_send(SendRequest { flags: SendFlags::SIGNALED, ..request }).unwrap();

    let mut turns = 0;
    let mut before = batches.load(Ordering::Relaxed);
    let mut turn = |turn: &dyn Fn()| {
        turn();
        let after = batches.load(Ordering::Relaxed);
        let sent = after - std::mem::replace(&mut before, after);
        assert!((1..=16).contains(&sent), "{sent} batches in one turn");
        turns += 1;
    };
    turn(&|| shard.answer_doorbells());
    while cq.is_empty() {
        // The driver's timer wakes it immediately.
        assert!(shard.wakeups.sleep().unwrap().timer);
        turn(&|| shard.drive(true).unwrap());
    }
    assert_eq!(cq.poll().unwrap().status, Status::Success);
    assert!(turns >= 512 / 16);
}

#[test]
fn a_forked_child_waits_for_no_lock_of_its_parent() {
    let shard = shard();
    let locked = shard.core.lock();
    // SAFETY: the child only calls what follows, and ends.
    #[expect(unsafe_code, reason = "a child without exec")]
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            // Ends a child that waits for the parent's lock, which no thread unlocks here.
            libc::alarm(20);
            let forked = |e: Option<Error>| matches!(e, Some(Error::Forked { .. }));
            let refused = forked(shard.with(|_| ()).err())
                && forked(shard.turn_if_free(|_| ()).err())
                && forked(shard.check().err())
                && shard.with_lock_within(Duration::from_secs(60), |_| ()).is_none();
            let nothing = shard.counters().0.rcvd_pkts == 0 && shard.take_log().is_empty();
            libc::_exit(i32::from(!(refused && nothing)));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
    drop(locked);
    shard.with(|_| ()).unwrap();
}

#[test]
fn a_forked_child_s_thread_does_not_wake_its_parent_s() {
    let own = Waker::current().unwrap();
    // SAFETY: the child only calls what follows, and ends.
    #[expect(unsafe_code, reason = "a child without exec")]
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let other = Waker::current();
            let apart = other.is_ok_and(|other| {
                let descriptor = other.event();
                descriptor.set();
                !Arc::ptr_eq(&other, &own) && Arc::ptr_eq(&other, &Waker::current().unwrap())
            });
            libc::_exit(i32::from(!apart));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
    let mut fds = [PollFd::new(own.event(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0, "it is woken");
}

#[test]
fn a_poll_that_finds_nothing_sends_nothing() {
    let sent = Arc::new(AtomicU64::new(0));
    let shard = counting_shard(Arc::clone(&sent));
    let (qp, cq) = sending_qp(&shard);
    let polls = || {
        let before = sent.load(Ordering::Relaxed);
        (0..100).for_each(|_| assert!(shard.turn_if_free(|_| ()).is_ok()));
        sent.load(Ordering::Relaxed) - before
    };
    assert_eq!(polls(), 0);
    post(&shard, &qp, false);
    polls();
    assert!(cq.poll().is_some() && sent.load(Ordering::Relaxed) > 0);
    assert_eq!(polls(), 0);
}

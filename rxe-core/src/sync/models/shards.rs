//! Models of the objects, other than completion queues, that the shards of a device share: a shared
//! receive queue, an XRC domain, a completion channel. A shard is an engine that runs on a thread
//! of its own.

use std::net::Ipv4Addr;
use std::sync::Arc as StdArc;

use loom::sync::Arc;
use loom::thread;

use super::{completion, explore};
use crate::engine::{Config, Engine, Event};
use crate::mem::{Memory, PdId};
use crate::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use crate::queue::{
    Arm, Arming, ChannelEvents, CompletionQueue, Notify, RecvRequest, SharedReceiveQueue, Signal,
    XrcDomain,
};
use crate::sync::Mutex;
use crate::testing::{PD, attributes};
use crate::types::{Gid, Psn, Qpn, Time};
use crate::wire::{
    Bth, Ext, Frame, NetHeader, Opcode, Packet, PacketRepr, Syndrome, TxBatch, TxLimits, emit,
};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The number of the shared receive queue.
const SRQ: u32 = 7;

/// An engine with one queue pair that receives.
struct Shard {
    engine: Engine,
    qp: StdArc<QpHandle>,
    next: Psn,
}

impl Shard {
    /// Creates a shard with queue pair `qpn`, which completes in `cq`. The queue pair takes
    /// receives from `srq` or from the queues of `xrcd`.
    fn new(
        qpn: u32,
        cq: &StdArc<CompletionQueue>,
        srq: Option<&StdArc<SharedReceiveQueue>>,
        xrcd: Option<&StdArc<XrcDomain>>,
    ) -> Self {
        let config = Config { gids: vec![Gid::from(OWN)], ..Config::default() };
        let mut engine = Engine::new(config, StdArc::new(Memory::new()));
        let init = QpInit {
            service: if xrcd.is_some() { QpType::XrcRecv } else { QpType::Rc },
            pd: if xrcd.is_some() { PdId(0) } else { PD },
            send_cq: StdArc::clone(cq),
            recv_cq: StdArc::clone(cq),
            cap: QpCap::default(),
            srq: srq.cloned(),
            xrcd: xrcd.cloned(),
            sq_sig_all: true,
        };
        let qp = engine.create_qp(Qpn::from_wire(qpn), init).unwrap();
        let next = Psn::new(5);
        let mut attr = QpAttr { rq_psn: next, dest_qp_num: Qpn::from_wire(9), ..attributes() };
        attr.ah_attr.dgid = Gid::from(PEER);
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let rtr = path | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        for (qp_state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr)] {
            let attr = QpAttr { qp_state, ..attr };
            engine.modify_qp(Time::ZERO, qp.qpn(), &attr, mask | AttrMask::STATE).unwrap();
        }
        Self { engine, qp, next }
    }

    /// Delivers an empty SEND from the peer. Returns the AETH syndrome of the response.
    fn send_comes(&mut self) -> Syndrome {
        let is_xrc = self.qp.init().service == QpType::XrcRecv;
        let opcode = if is_xrc { Opcode::XRC_SEND_ONLY } else { Opcode::RC_SEND_ONLY };
        let bth = Bth { ack_req: true, ..Bth::new(opcode, self.qp.qpn(), self.next) };
        let ext = Ext { xrc_srq: is_xrc.then_some(SRQ), ..Ext::default() };
        let net = NetHeader::outgoing(PEER.into(), OWN.into(), 7);
        let mut bytes = Vec::new();
        let repr = PacketRepr { bth, ext, payload: &[], pad_bytes: [0; 3] };
        emit::repr(&net, &mut bytes, &repr);
        self.engine.handle_frame(Time::ZERO, &Frame::single(net, &bytes));
        let mut batch = TxBatch::new(TxLimits::default());
        self.engine.poll_transmit(Time::ZERO, &mut batch);
        let answer = batch.frames().next().expect("an answer").payload;
        let syndrome = Packet::parse(answer).unwrap().aeth().unwrap().syndrome;
        if matches!(syndrome, Syndrome::Ack { .. }) {
            self.next = self.next.next();
        }
        syndrome
    }

    /// Returns how often the engine reported that the shared queue is below its limit.
    fn limits_told(&mut self) -> usize {
        let events = std::iter::from_fn(|| self.engine.poll_event());
        events.filter(|event| matches!(event, Event::SrqLimitReached { .. })).count()
    }
}

fn is_ack(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Ack { .. })
}

/// Returns the sorted numbers of the completed receives.
fn received(cq: &CompletionQueue) -> Vec<u64> {
    let mut ids: Vec<_> = std::iter::from_fn(|| cq.poll()).map(|done| done.id).collect();
    ids.sort_unstable();
    ids
}

/// Fails if a responder acknowledges before it takes the receive that it saw in the queue.
#[test]
fn of_two_engines_with_a_shared_receive_queue_one_gets_the_last_receive() {
    explore(|| {
        let cqs = [(); 2].map(|()| StdArc::new(CompletionQueue::new(2, None)));
        let srq = StdArc::new(SharedReceiveQueue::new(SRQ, PD, 1, 1));
        srq.post_recv(RecvRequest { id: 1, ..RecvRequest::default() }).unwrap();
        srq.set_limit(1).unwrap();
        let mut own = Shard::new(0x12, &cqs[0], Some(&srq), None);
        let mut others = Shard::new(0x22, &cqs[1], Some(&srq), None);
        let other = thread::spawn(move || (others.send_comes(), others.limits_told()));
        let (answer, told) = (own.send_comes(), own.limits_told());
        let (other, others_told) = other.join().unwrap();
        assert!(is_ack(answer) != is_ack(other), "{answer:?} {other:?}");
        assert!([answer, other].iter().any(|a| matches!(a, Syndrome::RnrNak { .. })));
        assert_eq!(told + others_told, 1, "the limit is told once");
        let got = [&cqs[0], &cqs[1]].map(|cq| received(cq).len());
        assert_eq!(got, [usize::from(is_ack(answer)), usize::from(is_ack(other))]);
        assert!(srq.is_empty());
    });
}

/// Fails if a target QP looks its queue up a second time to take the receive. Also fails if a
/// removed queue is still found.
#[test]
fn targets_of_two_engines_use_a_queue_of_their_domain_until_it_is_removed() {
    explore(|| {
        let cq = StdArc::new(CompletionQueue::new(2, None));
        let unused = StdArc::new(CompletionQueue::new(1, None));
        let srq = StdArc::new(SharedReceiveQueue::new_xrc(SRQ, PD, 2, 1, StdArc::clone(&cq)));
        for id in 1..=2 {
            srq.post_recv(RecvRequest { id, ..RecvRequest::default() }).unwrap();
        }
        let domain = StdArc::new(XrcDomain::new());
        assert!(domain.add(StdArc::clone(&srq)));
        let mut own = Shard::new(0x12, &unused, None, Some(&domain));
        let mut others = Shard::new(0x22, &unused, None, Some(&domain));
        let other = thread::spawn(move || (others.send_comes(), others));
        let answer = own.send_comes();
        assert!(is_ack(answer), "nobody has removed it yet");
        assert!(domain.remove(SRQ));
        assert!(!is_ack(own.send_comes()), "it is gone");
        let (other, mut others) = other.join().unwrap();
        if is_ack(other) {
            assert!(!is_ack(others.send_comes()), "for the other too");
        }
        let got = received(&cq);
        assert_eq!(got.len(), 1 + usize::from(is_ack(other)));
        assert_eq!(got.len() + srq.len() as usize, 2, "each receive is in one place");
        assert!(got.is_sorted_by(|a, b| a < b) && unused.is_empty());
    });
}

/// A file descriptor that can be readable.
#[derive(Debug, Default)]
struct Readable(Mutex<bool>);

impl Signal for Readable {
    fn set(&self) {
        *self.0.lock() = true;
    }

    fn clear(&self) {
        *self.0.lock() = false;
    }
}

type Channel = ChannelEvents<usize, Readable>;

/// The membership of a completion queue in a channel.
#[derive(Debug)]
struct Member {
    channel: StdArc<Channel>,
    arming: Arming,
    number: usize,
}

impl Notify for Member {
    fn notify(&self) {
        self.channel.notify(&self.arming, || self.number);
    }
}

/// Fails if the signal is cleared without the lock of the events. Also fails if a program arms the
/// completion queue before the channel.
#[test]
fn a_completion_of_any_engine_is_found_or_makes_the_channel_readable() {
    explore(|| {
        let channel = StdArc::new(Channel::new(Readable::default()));
        let queues = [0, 1].map(|number| {
            let channel = StdArc::clone(&channel);
            let member = StdArc::new(Member { channel, arming: Arming::new(), number });
            let notify: StdArc<dyn Notify> = StdArc::<Member>::clone(&member);
            (Arc::new(CompletionQueue::new(1, Some(notify))), member)
        });
        let engines = [0, 1].map(|number| {
            let cq = Arc::clone(&queues[number].0);
            thread::spawn(move || cq.push(completion()).unwrap())
        });
        let mut found = queues.each_ref().map(|(cq, member)| {
            member.arming.arm();
            cq.arm(Arm::Any);
            cq.poll().is_some()
        });
        // Takes one event while others arrive, as a program does that sleeps on the channel.
        let event = channel.take(Some);
        engines.into_iter().for_each(|engine| engine.join().unwrap());
        let readable = *channel.signal().0.lock();
        let mut events: Vec<_> = event.into_iter().collect();
        let left: Vec<_> = std::iter::from_fn(|| channel.take(Some)).collect();
        assert_eq!(readable, !left.is_empty(), "whoever sleeps on it wakes, and for a reason");
        assert!(!*channel.signal().0.lock());
        events.extend(left);
        for (number, (cq, _)) in queues.iter().enumerate() {
            found[number] |= events.contains(&number);
            assert!(
                found[number],
                "the program would sleep for ever, and queue {number} has {}",
                cq.len()
            );
            assert!(events.iter().filter(|&&event| event == number).count() <= 1);
        }
    });
}

/// Fails if the channel checks and clears the arming in two steps.
#[test]
fn completions_of_two_engines_at_once_give_one_event() {
    explore(|| {
        let channel = StdArc::new(Channel::new(Readable::default()));
        let member =
            Arc::new(Member { channel: StdArc::clone(&channel), arming: Arming::new(), number: 0 });
        member.arming.arm();
        let tell = || {
            let member = Arc::clone(&member);
            thread::spawn(move || member.notify())
        };
        let (a, b) = (tell(), tell());
        a.join().unwrap();
        b.join().unwrap();
        assert_eq!((channel.take(Some), channel.take(Some)), (Some(0), None));
    });
}

//! Tests of a peer that is killed, stopped or cut off, and of answers by strangers.

use super::super::keepalive::{CONFIRM, INTERVAL};
use super::*;

/// Longer than the detection of a dead peer takes, with one lost probe.
const LONG: Duration = Duration::from_secs(10);

impl Two {
    /// Like [`Two::connected`], with keepalive on side 0.
    fn watching() -> (Self, ConnId, ConnId) {
        let mut two = Self::new();
        two.sides[0].set_keepalive(true);
        let (a, b) = two.connect(0x11);
        (two, a, b)
    }

    /// Establishes one more connection.
    fn connect(&mut self, qpn: u32) -> (ConnId, ConnId) {
        let a = self.sides[0].connect(self.now, route(0), req(qpn)).unwrap();
        self.run_until_idle();
        let CmEvent::Request { id: b, .. } = self.event(1) else { panic!("a request") };
        self.sides[1].taken(b);
        self.sides[1].accept(self.now, b, rep(0x22)).unwrap();
        self.run_until_idle();
        let CmEvent::Reply { .. } = self.event(0) else { panic!("a reply") };
        self.sides[0].establish(a, &[]).unwrap();
        self.run_until_idle();
        assert_eq!(self.event(1), CmEvent::Established { id: b });
        (a, b)
    }

    /// Kills side 1. Its address then has a process without connections.
    fn kill(&mut self) {
        self.sides[1] = manager(1);
    }

    /// Delivers a message of side 0 to another process of the peer's address, and its answers back.
    fn deliver_to(&mut self, other: &mut Manager, out: &Outgoing) {
        other.handle_mad(self.now, route(1), &Mad::new(&out.mad[..]).unwrap());
        while let Some(answer) = other.poll_transmit() {
            self.deliver(0, &answer);
        }
    }

    /// Returns the next probes of side 0, when they are due.
    fn questions(&mut self) -> Vec<Outgoing> {
        self.now = self.sides[0].poll_timeout().expect("it asks");
        self.sides[0].handle_timeout(self.now);
        std::iter::from_fn(|| self.sides[0].poll_question()).collect()
    }

    /// Exchanges probes, answers and other datagrams until `end`.
    fn ask_until(&mut self, end: Time) -> usize {
        let mut asked = 0;
        while self.sides[0].poll_timeout().is_some_and(|at| at <= end) {
            for question in self.questions() {
                asked += 1;
                self.deliver(1, &question);
            }
            self.run_until_idle();
        }
        asked
    }
}

#[test]
fn a_peer_that_is_killed_is_heard_of() {
    let (mut two, a, _) = Two::watching();
    two.kill();
    two.ask_until(two.now + LONG);
    assert_eq!(two.event(0), CmEvent::DisconnectRequest { id: a });
    assert!(two.now <= Time::ZERO + INTERVAL + CONFIRM, "{:?}", two.now);
    two.sides[0].disconnect(two.now, a, &[]).unwrap();
    two.run_until_idle();
    two.wait(LONG);
    assert_eq!(two.event(0), CmEvent::TimewaitExit { id: a });
    assert!(two.sides[0].is_empty() && two.sides[0].poll_timeout().is_none());
}

#[test]
fn a_lost_question_costs_one_more() {
    let (mut two, a, _) = Two::watching();
    two.kill();
    assert_eq!(two.questions().len(), 1);
    two.ask_until(Time::ZERO + LONG);
    assert_eq!(two.event(0), CmEvent::DisconnectRequest { id: a });
    assert!(two.now <= Time::ZERO + INTERVAL * 2 + CONFIRM);
}

#[test]
fn a_peer_that_lives_says_nothing_and_hears_nothing() {
    let (mut two, a, b) = Two::watching();
    let hour = Duration::from_secs(3600);
    let asked = two.ask_until(two.now + hour);
    assert_eq!(asked, 1800, "one every two seconds");
    assert!(two.sides.iter_mut().all(|side| side.poll_event().is_none()));
    assert!(two.sides[0].contains(a) && two.sides[1].contains(b));
    assert!(two.sides[1].poll_timeout().is_none(), "it does not ask");
    // The connections end in the usual way.
    two.sides[1].disconnect(two.now, b, &[]).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0), CmEvent::DisconnectRequest { id: a });
}

#[test]
fn silence_changes_nothing() {
    let (mut two, a, _) = Two::watching();
    // The peer is stopped, or the network is cut: probes are lost or delayed.
    let mut waiting = Vec::new();
    while two.now < Time::ZERO + Duration::from_secs(60) {
        waiting.extend(two.questions());
    }
    assert!(two.sides[0].poll_event().is_none());
    for question in waiting {
        two.deliver(1, &question);
    }
    two.run_until_idle();
    two.ask_until(two.now + LONG);
    assert!(two.sides.iter_mut().all(|side| side.poll_event().is_none()));
    assert!(two.sides[0].contains(a));
}

#[test]
fn one_answer_is_not_enough() {
    let (mut two, a, _) = Two::watching();
    let mut stranger = manager(1);
    for _ in 0..10 {
        let questions = two.questions();
        two.deliver_to(&mut stranger, &questions[0]);
        let questions = two.questions();
        assert_eq!(questions.len(), 1);
        two.deliver(1, &questions[0]);
    }
    assert!(two.sides[0].poll_event().is_none() && two.sides[0].contains(a));
}

#[test]
fn an_answer_to_nothing_counts_for_nothing() {
    let (mut two, a, b) = Two::watching();
    let drep = mad::Drep { local_comm_id: b.0, remote_comm_id: a.0, ..mad::Drep::default() };
    let answer = |tid| Message::Drep(drep.clone()).emit(tid);
    let mut before = 0;
    for _ in 0..10 {
        let questions = two.questions();
        let tid = Mad::new(&questions[0].mad[..]).unwrap().header().tid;
        // Guessed transaction IDs, and late answers.
        for tid in [0, tid ^ 1 << 32, tid ^ 1 << 63, before] {
            let mad = Box::new(answer(tid));
            two.deliver(0, &Outgoing { route: route(1), mad });
        }
        before = tid;
        // An answer from another address.
        let elsewhere = Route { remote: gid(2), ..route(0) };
        let mad = answer(tid);
        two.sides[0].handle_mad(two.now, elsewhere, &Mad::new(&mad[..]).unwrap());
    }
    // A true answer, repeated, and then no answer.
    let questions = two.questions();
    let tid = Mad::new(&questions[0].mad[..]).unwrap().header().tid;
    for tid in [tid, tid, 0] {
        two.deliver(0, &Outgoing { route: route(1), mad: Box::new(answer(tid)) });
    }
    assert!(two.sides[0].poll_event().is_none() && two.sides[0].contains(a));
}

#[test]
fn a_host_that_nobody_has_ends_all_connections_to_it() {
    let (mut two, a, _) = Two::watching();
    let (c, _) = two.connect(0x12);
    let unreachable = |two: &mut Two, remote, questions: &[Outgoing]| {
        let mad = Mad::new(&questions[0].mad[..]).unwrap();
        two.sides[0].unreachable(remote, &mad)
    };
    let questions = two.questions();
    assert_eq!(questions.len(), 1, "both are of one process");
    assert!(!unreachable(&mut two, gid(2), &questions), "another host says nothing of this one");
    assert!(unreachable(&mut two, gid(1), &questions));
    let old = questions;
    // The next probe is not answered, so the address has come back.
    two.questions();
    assert!(!unreachable(&mut two, gid(1), &old), "not the last question");
    let questions = two.questions();
    assert!(unreachable(&mut two, gid(1), &questions));
    let questions = two.questions();
    assert!(unreachable(&mut two, gid(1), &questions));
    assert!(two.sides[0].poll_event().is_none());
    assert!(two.questions().is_empty());
    let ended = HashSet::from([two.event(0).id(), two.event(0).id()]);
    assert_eq!(ended, HashSet::from([a, c]));
    assert!(two.sides[0].poll_timeout().is_none(), "there is nobody left to ask about");
}

#[test]
fn a_message_from_the_address_contradicts_its_host() {
    let (mut two, ..) = Two::watching();
    for _ in 0..4 {
        let questions = two.questions();
        let mad = Mad::new(&questions[0].mad[..]).unwrap();
        assert!(two.sides[0].unreachable(gid(1), &mad));
        two.deliver(
            0,
            &Outgoing { route: route(1), mad: Box::new(Message::Rtu(mad::Rtu::default()).emit(1)) },
        );
    }
    assert!(two.sides[0].poll_event().is_none());
}

#[test]
fn all_connections_of_a_killed_process_end_and_one_is_asked_about_until_then() {
    let (mut two, a, _) = Two::watching();
    let mut all = HashSet::from([a]);
    all.extend((0..50).map(|n| two.connect(0x100 + n).0));
    assert_eq!(two.questions().len(), 1);
    two.kill();
    two.ask_until(two.now + LONG);
    let ended: HashSet<_> =
        std::iter::from_fn(|| two.sides[0].poll_event()).map(|e| e.id()).collect();
    assert_eq!(ended, all);
}

#[test]
fn a_queue_pair_that_the_peer_has_is_never_named() {
    let (mut two, ..) = Two::watching();
    for question in two.questions() {
        let message = Mad::new(&question.mad[..]).unwrap().message().unwrap();
        let Message::Dreq(dreq) = message else { panic!("a DREQ") };
        assert_ne!(dreq.remote_qpn.value(), 0x22);
    }
}

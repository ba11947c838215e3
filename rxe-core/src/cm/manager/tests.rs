//! Tests of each rule, and simulations of two managers in virtual time. Their network loses,
//! duplicates and delays datagrams.

mod crowds;
mod keepalive;

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cm::mad::{Dreq, Mad, Rep, Req, SidrRep, SidrReq, SidrStatus};
use crate::cm::service::PortSpace;
use crate::types::{Psn, Qkey, Qpn};

const SERVICE: u64 = 0x0106_1c06;

fn gid(side: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, 1 + u8::try_from(side).unwrap()))
}

fn route(from: usize) -> Route {
    Route { local: gid(from), remote: gid(1 - from), traffic_class: 0 }
}

fn manager(side: usize) -> Manager {
    let side = u8::try_from(side).unwrap();
    Manager::new(CmConfig { block: 7 + side, guid: 0x100 + u64::from(side), seed: u64::from(side) })
}

fn req(qpn: u32) -> Req {
    let primary = mad::Path { local_ack_timeout: 14, ..mad::Path::default() };
    let (local_qpn, starting_psn) = (Qpn::from_wire(qpn), Psn::new(5));
    let mut req = Req {
        service_id: SERVICE,
        local_qpn,
        starting_psn,
        path_mtu: 3,
        primary,
        ..Req::default()
    };
    req.private_data[36] = 0x77;
    req
}

fn rep(qpn: u32) -> Rep {
    Rep { local_qpn: Qpn::from_wire(qpn), ..Rep::default() }
}

/// Two managers connected by a perfect network.
struct Two {
    now: Time,
    sides: [Manager; 2],
}

impl Two {
    fn new() -> Self {
        let mut two = Self { now: Time::ZERO, sides: [manager(0), manager(1)] };
        two.sides[1].listen(two.now, SERVICE, 4).unwrap();
        two
    }

    /// Delivers datagrams in both directions until none is left.
    fn run_until_idle(&mut self) {
        loop {
            let mut moved = false;
            for from in [0, 1] {
                while let Some(out) = self.sides[from].poll_transmit() {
                    self.deliver(1 - from, &out);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn deliver(&mut self, to: usize, out: &Outgoing) {
        let mad = Mad::new(&out.mad[..]).unwrap();
        self.sides[to].handle_mad(self.now, route(to), &mad);
    }

    /// Takes the datagrams that a side sends, with the names of their messages.
    fn sent(&mut self, side: usize) -> Vec<(&'static str, Outgoing)> {
        let sent = std::iter::from_fn(|| self.sides[side].poll_transmit());
        sent.map(|out| (Mad::new(&out.mad[..]).unwrap().message().unwrap().name(), out)).collect()
    }

    fn names(&mut self, side: usize) -> Vec<&'static str> {
        self.sent(side).into_iter().map(|(name, _)| name).collect()
    }

    fn event(&mut self, side: usize) -> CmEvent {
        self.sides[side].poll_event().expect("an event")
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
    }

    /// Creates two managers with an established connection.
    fn connected() -> (Self, ConnId, ConnId) {
        let mut two = Self::new();
        let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
        two.run_until_idle();
        let CmEvent::Request { id: b, req, .. } = two.event(1) else { panic!("a request") };
        assert_eq!((req.local_comm_id, req.private_data[36]), (a.0, 0x77));
        two.sides[1].taken(b);
        two.sides[1].accept(two.now, b, rep(0x22)).unwrap();
        two.run_until_idle();
        let CmEvent::Reply { id, rep } = two.event(0) else { panic!("a reply") };
        assert_eq!((id, rep.local_qpn.value()), (a, 0x22));
        two.sides[0].establish(a, &[]).unwrap();
        two.run_until_idle();
        assert_eq!(two.event(1), CmEvent::Established { id: b });
        (two, a, b)
    }
}

#[test]
fn a_connection_is_made_and_ended() {
    let (mut two, a, b) = Two::connected();
    assert_eq!((a.0 >> 24, b.0 >> 24), (7, 8), "each names its connections in its own block");
    two.sides[0].disconnect(two.now, a, &[]).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(1), CmEvent::DisconnectRequest { id: b });
    two.sides[1].disconnect(two.now, b, &[]).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0), CmEvent::Disconnected { id: a, answered: true });
    two.wait(Duration::from_secs(1));
    assert_eq!(two.event(0), CmEvent::TimewaitExit { id: a });
    assert_eq!(two.event(1), CmEvent::TimewaitExit { id: b });
    assert!(two.sides.iter().all(Manager::is_empty));
    assert!(two.sides.iter().all(|side| side.poll_timeout().is_none()));
}

#[test]
fn nobody_listening_is_a_refusal_with_that_reason() {
    let mut two = Two::new();
    let elsewhere = Req { service_id: SERVICE + 1, ..req(0x11) };
    let a = two.sides[0].connect(two.now, route(0), elsewhere).unwrap();
    two.run_until_idle();
    let CmEvent::Rejected { id, reason, .. } = two.event(0) else { panic!() };
    assert_eq!((id, reason), (a, RejReason::INVALID_SERVICE_ID));
    assert!(two.sides.iter().all(Manager::is_empty));
}

#[test]
fn a_program_s_refusal_carries_its_words() {
    let mut two = Two::new();
    two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    let b = two.event(1).id();
    two.sides[1].reject(b, RejReason::CONSUMER_DEFINED, &[], b"no").unwrap();
    two.run_until_idle();
    let CmEvent::Rejected { reason, private_data, .. } = two.event(0) else { panic!() };
    assert_eq!((reason, &private_data[..3]), (RejReason::CONSUMER_DEFINED, &b"no\0"[..]));
    assert!(two.sides.iter().all(Manager::is_empty));
}

#[test]
fn an_unanswered_request_is_repeated_and_then_given_up() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    let first = two.sent(0).pop().unwrap().1;
    let mut repeated = 0;
    while let Some(at) = two.sides[0].poll_timeout() {
        two.now = at;
        two.sides[0].handle_timeout(at);
        for (name, out) in two.sent(0) {
            match name {
                "REQ" => {
                    assert_eq!(out, first);
                    repeated += 1;
                }
                other => assert_eq!(other, "REJ"),
            }
        }
    }
    assert_eq!(repeated, 15);
    assert_eq!(two.event(0), CmEvent::Unreachable { id: a });
    let minutes = two.now.since(Time::ZERO).as_secs();
    assert!((90..120).contains(&minutes), "{minutes} s");
    assert!(two.sides[0].is_empty());
}

#[test]
fn time_in_which_this_host_did_not_run_is_no_silence_of_the_peer() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    let (_, request) = two.sent(0).pop().unwrap();
    two.deliver(1, &request);
    let (first, instant) =
        (two.sides[0].poll_timeout().unwrap().since(two.now), Duration::from_nanos(1));
    // Side 0 was stopped for longer than all retries take, so it grants the peer the whole time
    // once more.
    two.now = two.now + Duration::from_secs(1000);
    two.sides[0].excuse_silence(two.now);
    two.wait(first - instant);
    assert!(two.names(0).is_empty(), "it waits");
    // It does not grant the time a third time: the host may always be late.
    two.sides[0].excuse_silence(two.now);
    two.wait(instant);
    assert_eq!(two.names(0), ["REQ"]);
    // The next try is excused as well, and waits for its full time.
    two.now = two.now + Duration::from_secs(1000);
    two.sides[0].excuse_silence(two.now);
    two.wait(2 * first - instant);
    assert!(two.names(0).is_empty(), "it waits");
    let b = two.event(1).id();
    two.sides[1].accept(two.now, b, rep(0x22)).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0).id(), a);
}

#[test]
fn a_late_answer_is_announced_and_awaited() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    let b = two.event(1).id();
    // The consumer is slow, so the second REQ is answered with an MRA.
    two.wait(Duration::from_millis(600));
    let (name, again) = two.sent(0).pop().unwrap();
    assert_eq!(name, "REQ");
    two.deliver(1, &again);
    let (name, mra) = two.sent(1).pop().unwrap();
    assert_eq!(name, "MRA");
    two.deliver(0, &mra);
    two.wait(Duration::from_secs(60));
    assert!(two.names(0).is_empty(), "it waits");
    two.sides[1].accept(two.now, b, rep(0x22)).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0).id(), a);
}

#[test]
fn a_peer_gets_more_time_once_for_each_try() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    let announce = |two: &mut Two| {
        // The MRA requests 275 s.
        let mra =
            Mra { local_comm_id: 1, remote_comm_id: a.0, service_timeout: 26, ..Mra::default() };
        let mad = Message::Mra(mra).emit(1);
        two.sides[0].handle_mad(two.now, route(0), &Mad::new(&mad[..]).unwrap())
    };
    for _ in 0..16 {
        assert_eq!(two.names(0), ["REQ"]);
        assert!(announce(&mut two));
        two.wait(Duration::from_secs(274));
        assert!(two.names(0).is_empty(), "it waits");
        assert!(!announce(&mut two), "it may ask for more time only once");
        two.wait(Duration::from_secs(8));
    }
    assert_eq!(two.names(0), ["REJ"], "it has given up");
    assert_eq!(two.event(0), CmEvent::Unreachable { id: a });
}

#[test]
fn a_lost_rtu_is_sent_again_or_replaced_by_traffic() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    let b = two.event(1).id();
    two.sides[1].accept(two.now, b, rep(0x22)).unwrap();
    two.run_until_idle();
    two.event(0);
    two.sides[0].establish(a, &[]).unwrap();
    assert_eq!(two.names(0), ["RTU"], "and is lost");
    two.wait(Duration::from_millis(600));
    let (name, again) = two.sent(1).pop().unwrap();
    assert_eq!(name, "REP");
    two.deliver(0, &again);
    assert_eq!(two.names(0), ["RTU"], "and is lost again");
    two.sides[1].communication_established(b);
    assert_eq!(two.event(1), CmEvent::Established { id: b });
}

#[test]
fn answers_are_sent_again_as_the_request_says() {
    let mut two = Two::new();
    two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    let (_, out) = two.sent(0).pop().unwrap();
    let Some(Message::Req(asked)) = Mad::new(&out.mad[..]).unwrap().message() else { panic!() };
    // The response timeout is 134 ms.
    let asked = Message::Req(Req { max_cm_retries: 1, local_cm_response_timeout: 15, ..asked });
    two.deliver(1, &Outgoing { mad: Box::new(asked.emit(1)), ..out });
    let b = two.event(1).id();
    two.sides[1].accept(two.now, b, rep(0x22)).unwrap();
    assert_eq!(two.names(1), ["REP"], "and is lost");
    two.wait(Duration::from_millis(130));
    assert!(two.names(1).is_empty(), "the peer may take longer");
    two.wait(Duration::from_millis(10));
    assert_eq!(two.names(1), ["REP"], "and is lost again");
    two.wait(Duration::from_millis(300));
    assert_eq!(two.names(1), ["REJ"], "it has given up");
    assert_eq!(two.event(1), CmEvent::Unreachable { id: b });
}

#[test]
fn who_stops_listening_refuses_who_waits() {
    let mut two = Two::new();
    let listener = two.sides[1].services[&SERVICE];
    assert_eq!(two.sides[1].listen(two.now, SERVICE, 1), Err(CmError::InUse));
    two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    two.sides[1].unlisten(two.now, listener);
    assert!(two.sides[1].poll_event().is_none(), "the event is withdrawn");
    two.run_until_idle();
    assert!(matches!(two.event(0), CmEvent::Rejected { .. }));
    assert!(two.sides.iter().all(Manager::is_empty));
}

#[test]
fn a_peer_that_forgot_its_connection_ends_ours() {
    let (mut two, _, b) = Two::connected();
    // The restarted manager has the same device and queue pair, so the peer learns that the old
    // connection is lost.
    two.sides[0] = Manager::new(CmConfig { seed: 99, ..*two.sides[0].config() });
    two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    let CmEvent::Rejected { reason, .. } = two.event(0) else { panic!() };
    assert_eq!(reason, RejReason::STALE_CONNECTION);
    // The peer answers the DREQ, because it does not know the connection.
    assert_eq!(two.event(1), CmEvent::Disconnected { id: b, answered: true });
    assert_eq!(two.sides[1].disconnect(two.now, b, &[]), Err(CmError::WrongState));
    two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.run_until_idle();
    assert!(matches!(two.event(1), CmEvent::Request { .. }), "then it may connect");
}

#[test]
fn both_may_end_it_at_once() {
    let (mut two, a, b) = Two::connected();
    two.sides[0].disconnect(two.now, a, &[]).unwrap();
    two.sides[1].disconnect(two.now, b, &[]).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0), CmEvent::Disconnected { id: a, answered: true });
    assert_eq!(two.event(1), CmEvent::Disconnected { id: b, answered: true });
    assert!(two.sides.iter_mut().all(|side| side.poll_event().is_none()));
}

#[test]
fn a_lost_drep_is_sent_again_and_an_unknown_dreq_answered() {
    let (mut two, a, b) = Two::connected();
    two.sides[0].disconnect(two.now, a, &[]).unwrap();
    let dreq = two.sent(0).pop().unwrap().1;
    two.deliver(1, &dreq);
    two.sides[1].destroy(two.now, b);
    assert_eq!(two.names(1), ["DREP"], "and is lost");
    two.deliver(1, &dreq);
    assert_eq!(two.names(1), ["DREP"]);
    two.wait(Duration::from_millis(400));
    assert!(two.sides[1].is_empty());
    two.deliver(1, &dreq);
    assert_eq!(two.names(1), ["DREP"], "nobody waits for what is not there");
}

#[test]
fn a_process_that_ends_says_the_last_word_to_all_its_peers() {
    let (mut two, a, b) = Two::connected();
    // One connection is established. The peer has just ended another, and the answer was lost.
    two.sides[0].connect(two.now, route(0), req(0x12)).unwrap();
    two.run_until_idle();
    let second = two.event(1).id();
    two.sides[1].accept(two.now, second, rep(0x23)).unwrap();
    two.run_until_idle();
    let ended = two.event(0).id();
    two.sides[0].establish(ended, &[]).unwrap();
    two.run_until_idle();
    two.event(1);
    two.sides[0].disconnect(two.now, ended, &[]).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(1), CmEvent::DisconnectRequest { id: second });
    two.sides[1].destroy(two.now, second);
    assert_eq!(two.names(1), ["DREP"], "and is lost");
    let now = two.now;
    two.sides[1].close_at_exit(now);
    two.run_until_idle();
    let mut told = [two.event(0), two.event(0)];
    told.sort_by_key(|event| event.id() == ended);
    assert_eq!(told[0], CmEvent::DisconnectRequest { id: a });
    assert_eq!(told[1], CmEvent::Disconnected { id: ended, answered: true });
    assert!(!two.sides[1].events.iter().any(|event| event.id() == b));
}

#[test]
fn a_dreq_must_name_the_queue_pair_and_come_from_the_peer() {
    let (mut two, a, b) = Two::connected();
    let ids = Dreq { local_comm_id: a.0, remote_comm_id: b.0, ..Dreq::default() };
    let wrong = Message::Dreq(Dreq { remote_qpn: Qpn::from_wire(0x23), ..ids.clone() }).emit(1);
    let right = Message::Dreq(Dreq { remote_qpn: Qpn::from_wire(0x22), ..ids }).emit(1);
    let stranger = Route { remote: Gid::from(Ipv4Addr::new(10, 0, 0, 9)), ..route(1) };
    let now = two.now;
    let side = &mut two.sides[1];
    assert!(!side.handle_mad(now, route(1), &Mad::new(&wrong).unwrap()));
    side.handle_mad(now, stranger, &Mad::new(&right).unwrap());
    assert!(side.poll_event().is_none());
    assert!(side.handle_mad(now, route(1), &Mad::new(&right).unwrap()));
    assert_eq!(side.poll_event(), Some(CmEvent::DisconnectRequest { id: b }));
}

#[test]
fn a_query_is_answered_once_and_again_when_the_answer_is_lost() {
    let mut two = Two::new();
    let query = SidrReq { service_id: SERVICE, partition_key: 0xffff, ..SidrReq::default() };
    let a = two.sides[0].resolve(two.now, route(0), query.clone()).unwrap();
    let asked = two.sent(0).pop().unwrap().1;
    two.deliver(1, &asked);
    let CmEvent::Resolve { id: b, .. } = two.event(1) else { panic!() };
    two.deliver(1, &asked);
    assert!(two.sides[1].poll_event().is_none(), "a duplicate is no second query");
    let answer = SidrRep { qpn: Qpn::from_wire(9), qkey: Qkey(7), ..SidrRep::default() };
    two.sides[1].answer_sidr(two.now, b, answer).unwrap();
    assert_eq!(two.names(1), ["SIDR_REP"], "and is lost");
    two.deliver(1, &asked);
    two.run_until_idle();
    let CmEvent::Resolved { id, rep } = two.event(0) else { panic!() };
    assert_eq!((id, rep.qpn.value(), rep.qkey), (a, 9, Qkey(7)));
    let nowhere = SidrReq { service_id: 1, ..query };
    two.sides[0].resolve(two.now, route(0), nowhere).unwrap();
    two.run_until_idle();
    let CmEvent::Resolved { rep, .. } = two.event(0) else { panic!() };
    assert_eq!(SidrStatus(rep.status), SidrStatus::UNSUPPORTED);
    two.wait(Duration::from_secs(21));
    assert!(two.sides.iter().all(Manager::is_empty));
}

#[test]
fn a_request_waits_while_a_program_changes_listeners() {
    let mut two = Two::new();
    let listener = two.sides[1].services[&SERVICE];
    two.sides[1].unlisten(two.now, listener);
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    let query = SidrReq { service_id: SERVICE, ..SidrReq::default() };
    let asked = two.sides[0].resolve(two.now, route(0), query).unwrap();
    two.run_until_idle();
    assert!(two.sides[0].poll_event().is_none() && two.sides[1].poll_event().is_none());
    // The duplicate of a waiting request is not a second request.
    two.wait(Duration::from_millis(600));
    two.run_until_idle();
    two.sides[1].listen(two.now, SERVICE, 4).unwrap();
    let first = two.event(1);
    assert!(matches!(first, CmEvent::Request { .. }));
    assert!(matches!(two.event(1), CmEvent::Resolve { .. }));
    assert!(two.sides[1].poll_event().is_none());
    two.sides[1].accept(two.now, first.id(), rep(0x22)).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0).id(), a);
    let second = two.sides[1].peers[&(gid(0), asked.0, true)];
    two.sides[1].answer_sidr(two.now, second, SidrRep::default()).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0).id(), asked);
}

#[test]
fn a_program_may_change_to_another_port_space() {
    let mut two = Two::new();
    let listener = two.sides[1].services[&SERVICE];
    let (_, port) = PortSpace::of_service(SERVICE).unwrap();
    let datagrams = PortSpace::Udp.service_id(port);
    two.sides[1].unlisten(two.now, listener);
    let question = SidrReq { service_id: datagrams, ..SidrReq::default() };
    let asked = two.sides[0].resolve(two.now, route(0), question).unwrap();
    two.run_until_idle();
    assert!(two.sides[0].poll_event().is_none());
    two.sides[1].listen(two.now, datagrams, 4).unwrap();
    let id = two.event(1).id();
    two.sides[1].answer_sidr(two.now, id, SidrRep::default()).unwrap();
    two.run_until_idle();
    assert_eq!(two.event(0).id(), asked);
}

#[test]
fn a_service_without_a_listener_is_refused_at_once_or_after_a_while() {
    let mut two = Two::new();
    let rejected = |two: &mut Two| {
        let CmEvent::Rejected { reason, .. } = two.event(0) else { panic!() };
        assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
    };
    // The service never had a listener.
    let absent = Req { service_id: SERVICE + 1, ..req(0x11) };
    two.sides[0].connect(two.now, route(0), absent).unwrap();
    two.run_until_idle();
    rejected(&mut two);
    // The listener of the service ended recently.
    let listener = two.sides[1].services[&SERVICE];
    two.sides[1].unlisten(two.now, listener);
    two.sides[0].connect(two.now, route(0), req(0x12)).unwrap();
    two.run_until_idle();
    assert_eq!(two.sides[1].poll_timeout(), Some(two.now + CLOSED_FOR));
    two.now = two.now + CLOSED_FOR;
    let now = two.now;
    two.sides[1].handle_timeout(now);
    two.run_until_idle();
    rejected(&mut two);
    // The listener of the service ended long ago.
    two.now = two.now + CLOSED_FOR;
    two.sides[0].connect(two.now, route(0), req(0x13)).unwrap();
    two.run_until_idle();
    rejected(&mut two);
    // A request that its peer withdraws no longer waits.
    let id = two.sides[1].listen(two.now, SERVICE, 4).unwrap();
    two.sides[1].unlisten(two.now, id);
    let a = two.sides[0].connect(two.now, route(0), req(0x14)).unwrap();
    two.run_until_idle();
    two.sides[0].destroy(two.now, a);
    two.run_until_idle();
    two.sides[1].listen(two.now, SERVICE, 4).unwrap();
    assert!(two.sides[1].poll_event().is_none() && two.sides[1].is_empty());
}

/// Returns the answers of `side` to a message from `from`.
fn answers(side: &mut Manager, now: Time, from: Gid, message: &Message) -> Vec<Outgoing> {
    let mad = message.emit(9);
    side.handle_mad(now, Route { remote: from, ..route(1) }, &Mad::from_array(&mad));
    std::iter::from_fn(|| side.poll_transmit()).collect()
}

fn address(number: u32) -> Gid {
    Gid::from(Ipv4Addr::from(0x0a01_0000 + number))
}

#[test]
fn requests_that_wait_for_a_listener_are_few() {
    let mut two = Two::new();
    let listener = two.sides[1].services[&SERVICE];
    two.sides[1].unlisten(two.now, listener);
    let (side, now) = (&mut two.sides[1], two.now);
    let mut waiting = |from: u32, count: u32| {
        let ask = |id| Message::Req(Req { local_comm_id: id + 1, ..req(id) });
        let mut is_held = |id: &u32| answers(side, now, address(from), &ask(*id)).is_empty();
        // The duplicate of a waiting request takes no place.
        (0..count).filter(|id| is_held(id) && is_held(id)).count()
    };
    assert_eq!(waiting(0, 1000), 64, "of one address");
    assert_eq!((1..100).map(|from| waiting(from, 10)).sum::<usize>(), 256 - 64, "of all");
}

#[test]
fn a_request_that_says_it_is_of_a_connection_ends_it_only_from_its_address() {
    let (mut two, _, b) = Two::connected();
    // The device and the queue pair are those of the connection, as an attacker may know both.
    let guid = two.sides[0].config().guid;
    let forged = Req { local_comm_id: 77, local_ca_guid: guid, ..req(0x11) };
    let (side, now) = (&mut two.sides[1], two.now);
    answers(side, now, address(1), &Message::Req(forged.clone()));
    let request = side.poll_event().unwrap();
    assert!(matches!(request, CmEvent::Request { .. }), "an ordinary request: {request:?}");
    assert!(side.poll_event().is_none());
    side.disconnect(now, b, &[]).expect("the connection stands");
}

#[test]
fn a_forged_request_makes_no_flood() {
    let mut two = Two::new();
    let victim = address(1);
    let (side, mut now) = (&mut two.sides[1], two.now);
    side.set_backlog(side.services[&SERVICE], 100_000);
    let (mut bytes_in, mut bytes_out) = (0, 0);
    // For two minutes a server accepts requests with a forged source address. Half of the requests
    // allow no retry.
    for step in 0..1200 {
        for n in 0..100 {
            let id = step * 100 + n + 1;
            let max_cm_retries = if n % 2 == 0 { 15 } else { 0 };
            let req = Req { local_comm_id: id, max_cm_retries, ..req(id & 0xff_ffff) };
            bytes_in += mad::LEN;
            bytes_out += answers(side, now, victim, &Message::Req(req)).len() * mad::LEN;
        }
        while let Some(event) = side.poll_event() {
            if let CmEvent::Request { id, .. } = event {
                side.taken(id);
                side.accept(now, id, rep(0x22)).unwrap();
            }
        }
        now = now + Duration::from_millis(100);
        side.handle_timeout(now);
        bytes_out += std::iter::from_fn(|| side.poll_transmit()).count() * mad::LEN;
    }
    // The limit is one answer to each request, plus retries of 8 KiB per second. The REJs for
    // abandoned connections count as retries.
    let again = (256 + 32 * 120 + sources::MAX_HALF_OPEN) * mad::LEN;
    assert!(bytes_out <= bytes_in + again, "{bytes_in} bytes in, {bytes_out} out");
    assert!(side.len() <= sources::MAX_HALF_OPEN, "{} connections are kept for it", side.len());
    // Requests from other addresses are still served.
    let other = Message::Req(Req { local_comm_id: 1, ..req(5) });
    answers(side, now, address(2), &other);
    let served = |event| matches!(event, CmEvent::Request { .. });
    assert!(std::iter::from_fn(|| side.poll_event()).any(served));
}

#[test]
fn requests_dropped_for_want_of_connections_take_no_place_in_the_backlog() {
    let mut two = Two::new();
    let (side, now) = (&mut two.sides[1], two.now);
    let elsewhere = Route { remote: address(9), ..route(1) };
    let ids: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| side.connect(now, elsewhere, req(0x11)).expect("there is room"))
        .collect();
    let ask = |id| SidrReq { service_id: SERVICE, request_id: id, ..SidrReq::default() };
    for id in 1..=10 {
        let request = Req { local_comm_id: id, ..req(id) };
        answers(side, now, address(1), &Message::Req(request));
        answers(side, now, address(1), &Message::SidrReq(ask(id)));
    }
    assert_eq!(side.poll_event(), None, "all are dropped");
    ids.into_iter().for_each(|id| side.destroy(now, id));
    answers(side, now, address(1), &Message::Req(Req { local_comm_id: 11, ..req(11) }));
    assert!(matches!(side.poll_event(), Some(CmEvent::Request { .. })));
    answers(side, now, address(1), &Message::SidrReq(ask(12)));
    assert!(matches!(side.poll_event(), Some(CmEvent::Resolve { .. })));
}

#[test]
fn queries_leave_room_for_connections() {
    let mut two = Two::new();
    let (side, mut now) = (&mut two.sides[1], two.now);
    side.set_backlog(side.services[&SERVICE], 100_000);
    let ask = |id| SidrReq { service_id: SERVICE, request_id: id, ..SidrReq::default() };
    let mut served = 0;
    // 10,000 queries per second, every second one from one address, for longer than an answer is
    // kept.
    for id in 1..=250_000u32 {
        let from = if id % 2 == 0 { address(1) } else { address(id) };
        answers(side, now, from, &Message::SidrReq(ask(id)));
        while let Some(event) = side.poll_event() {
            served += 1;
            side.taken(event.id());
            side.answer_sidr(now, event.id(), SidrRep::default()).unwrap();
        }
        while side.poll_transmit().is_some() {}
        now = now + Duration::from_micros(100);
        side.handle_timeout(now);
    }
    assert_eq!(served, 250_000, "all are answered");
    assert!(side.len() <= sources::MAX_ALL_QUERIES, "{} are kept", side.len());
    // Even if the consumer answers no query, one address cannot keep others from sending queries.
    let before = side.len();
    for id in 1..=5_000u32 {
        answers(side, now, address(7), &Message::SidrReq(ask(id)));
    }
    let kept = side.len() - before;
    assert!(kept <= sources::MAX_QUERIES, "{kept} are kept of one address");
    while side.poll_event().is_some() {}
    answers(side, now, address(8), &Message::SidrReq(ask(1)));
    assert!(matches!(side.poll_event(), Some(CmEvent::Resolve { .. })));
    // Nor can all addresses together fill the table of connections.
    for from in 0..20_000 {
        answers(side, now, address(from), &Message::SidrReq(ask(9)));
    }
    assert!(side.len() <= sources::MAX_ALL_QUERIES, "{} are kept", side.len());
}

#[test]
fn a_connection_costs_the_same_however_many_there_are() {
    let mut two = Two::new();
    let (side, now) = (&mut two.sides[1], two.now);
    side.set_backlog(side.services[&SERVICE], 100_000);
    for n in 0..20_000u32 {
        // Each peer has several queue pairs, so the address alone determines no key.
        let from = address(n / 4);
        let req = Req { local_comm_id: n + 1, local_ca_guid: u64::from(n / 4), ..req(n) };
        answers(side, now, from, &Message::Req(req));
        let id = side.poll_event().unwrap().id();
        side.accept(now, id, rep(0x10_0000 + n)).unwrap();
        while side.poll_transmit().is_some() {}
        if n % 2 == 0 {
            side.established_by(Qpn::from_wire(0x10_0000 + n));
        } else {
            let (local_comm_id, remote_comm_id) = (n + 1, id.0);
            let rtu = mad::Rtu { local_comm_id, remote_comm_id, ..mad::Rtu::default() };
            answers(side, now, from, &Message::Rtu(rtu));
        }
        assert_eq!(side.poll_event(), Some(CmEvent::Established { id }));
        // The index finds the connection by its remote queue pair: a new request from that queue
        // pair ends it.
        let found = side.index.established(from, u64::from(n / 4), Qpn::from_wire(n));
        assert_eq!(found, Some(id));
    }
    let ids: Vec<_> = side.connections.keys().copied().collect();
    for id in ids {
        side.forget(ConnId(id));
    }
    assert!(side.index.is_empty());
}

/// A seeded random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, of: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % of
    }
}

/// A program's view of the state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Asked,
    Up,
    Ended,
}

/// Simulates programs on both sides that connect, accept, refuse, disconnect and destroy at random.
/// The network loses, duplicates and delays. Every event must match the program's view, and at the
/// end nothing may be left.
fn simulate(seed: u64) {
    let mut dice = Dice(seed);
    let mut sides = [manager(0), manager(1)];
    for side in &mut sides {
        side.listen(Time::ZERO, SERVICE, 3).unwrap();
    }
    let loss = dice.roll(3) * 15;
    let mut now = Time::ZERO;
    let mut air: Vec<(Time, usize, Outgoing)> = Vec::new();
    let mut known: [HashMap<ConnId, Known>; 2] = Default::default();
    let mut gone: [HashSet<ConnId>; 2] = Default::default();
    let mut qpn = 0x10;
    for step in 0..100_000 {
        let ending = step > 300;
        for at in [0, 1] {
            let side = &mut sides[at];
            // A program acts.
            let ids: Vec<_> = {
                let mut ids: Vec<_> = known[at].iter().map(|(id, known)| (*id, *known)).collect();
                ids.sort_by_key(|(id, _)| *id);
                ids
            };
            if !ending && ids.len() < 6 && dice.roll(8) == 0 {
                qpn += 1;
                let id = side.connect(now, route(at), req(qpn)).unwrap();
                assert_eq!(known[at].insert(id, Known::Asked), None);
            }
            for (id, state) in ids {
                match (state, dice.roll(12)) {
                    (Known::Up, 0) => {
                        let _ = side.disconnect(now, id, &[]);
                    }
                    (_, 1) if dice.roll(4) == 0 || ending => {
                        side.destroy(now, id);
                        known[at].remove(&id);
                        gone[at].insert(id);
                    }
                    (Known::Up, 2) => side.communication_established(id),
                    _ => {}
                }
            }
            // The programs take their events.
            while let Some(event) = side.poll_event() {
                let id = event.id();
                assert!(!gone[at].contains(&id), "seed {seed}: {event:?} after the end");
                let state = known[at].get(&id).copied();
                match event {
                    CmEvent::Request { .. } => {
                        assert_eq!(state, None, "seed {seed}: asked twice");
                        side.taken(id);
                        match dice.roll(6) {
                            0 => side.reject(id, RejReason::CONSUMER_DEFINED, &[], &[]),
                            _ => {
                                qpn += 1;
                                known[at].insert(id, Known::Asked);
                                side.accept(now, id, rep(qpn))
                            }
                        }
                        // If the peer has abandoned the connection meanwhile, that is the next
                        // event.
                        .unwrap_or_else(|error| {
                            assert_eq!(error, CmError::Unknown);
                            known[at].insert(id, Known::Asked);
                        });
                    }
                    CmEvent::Reply { .. } => {
                        assert_eq!(state, Some(Known::Asked), "seed {seed}");
                        // If the peer has abandoned the connection meanwhile, that is the next
                        // event.
                        let up = side.establish(id, &[]).is_ok();
                        known[at].insert(id, if up { Known::Up } else { Known::Asked });
                    }
                    CmEvent::Established { .. } => {
                        assert_eq!(state, Some(Known::Asked), "seed {seed}");
                        known[at].insert(id, Known::Up);
                    }
                    CmEvent::DisconnectRequest { .. } => {
                        assert!(matches!(state, Some(Known::Asked | Known::Up)), "seed {seed}");
                        known[at].insert(id, Known::Ended);
                        let _ = side.disconnect(now, id, &[]);
                    }
                    CmEvent::Disconnected { .. } => {
                        assert!(matches!(state, Some(Known::Up | Known::Asked)), "seed {seed}");
                        known[at].insert(id, Known::Ended);
                    }
                    CmEvent::Rejected { .. } | CmEvent::Unreachable { .. } => {
                        assert!(state.is_some() && state != Some(Known::Ended), "seed {seed}");
                        known[at].insert(id, Known::Ended);
                    }
                    CmEvent::TimewaitExit { .. } => {
                        assert_eq!(state, Some(Known::Ended), "seed {seed}");
                    }
                    CmEvent::Resolve { .. } | CmEvent::Resolved { .. } => unreachable!(),
                }
            }
            // The network carries datagrams.
            while let Some(out) = side.poll_transmit() {
                for _ in 0..=u64::from(dice.roll(5) == 0) {
                    if dice.roll(100) >= loss {
                        let delay = Duration::from_millis(1 + dice.roll(900) * dice.roll(2));
                        air.push((now + delay, 1 - at, out.clone()));
                    }
                }
            }
        }
        let mut late = Vec::new();
        for (at, to, out) in air.drain(..) {
            if at <= now {
                sides[to].handle_mad(now, route(to), &Mad::new(&out.mad[..]).unwrap());
            } else {
                late.push((at, to, out));
            }
        }
        air = late;
        now = now + Duration::from_millis(if ending { 200 } else { 40 });
        for side in &mut sides {
            side.handle_timeout(now);
        }
        if ending && air.is_empty() && sides.iter().all(Manager::is_empty) {
            assert!(sides.iter().all(|s| s.timers.is_empty() && s.peers.is_empty()), "seed {seed}");
            assert!(sides.iter().all(|s| s.index.is_empty()), "seed {seed}");
            assert!(sides.iter().all(|s| s.listeners.values().all(|l| l.waiting.is_empty())));
            return;
        }
    }
    panic!("seed {seed}: something is left: {sides:?}");
}

#[test]
fn on_a_bad_network_every_connection_comes_to_its_end() {
    for seed in 0..2000 {
        simulate(seed);
    }
}

proptest! {
    #[test]
    fn whatever_arrives_leaves_a_manager_in_order(
        mads in prop::collection::vec((0x10u16..0x1b, any::<[u8; 32]>(), 0usize..4), 1..60),
    ) {
        let (mut two, a, b) = Two::connected();
        for (attr, bytes, aim) in mads {
            // Random contents, with IDs that exist.
            let mut mad = [0; mad::LEN];
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&attr.to_be_bytes());
            mad[24..56].copy_from_slice(&bytes);
            if aim & 1 == 1 {
                mad[24..28].copy_from_slice(&a.0.to_be_bytes());
            }
            if aim & 2 == 2 {
                mad[28..32].copy_from_slice(&b.0.to_be_bytes());
            }
            two.sides[1].handle_mad(two.now, route(1), &Mad::new(&mad).unwrap());
            two.wait(Duration::from_millis(300));
            while two.sides[1].poll_event().is_some() {}
            prop_assert!(two.sent(1).len() <= 4);
        }
        two.sides[1].close(two.now);
        two.wait(Duration::from_secs(1000));
        for _ in 0..20 {
            two.wait(Duration::from_secs(60));
        }
        prop_assert!(two.sides[1].is_empty() && two.sides[1].timers.is_empty());
    }
}

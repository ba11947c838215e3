//! Tests of many simultaneous requests, and of the end of their listener, connection or device.

use super::super::connection::Retry;
use super::*;

/// Creates a manager with `count` waiting requests, distributed over `listeners` listeners.
fn crowd(count: u32, listeners: u32) -> (Two, Vec<ListenerId>) {
    let mut two = Two::new();
    let (side, now) = (&mut two.sides[1], two.now);
    let service = |n: u32| SERVICE + 1 + u64::from(n % listeners);
    let backlog = usize::try_from(count).unwrap();
    let made = (0..listeners).map(|n| side.listen(now, service(n), backlog).unwrap());
    let made = made.collect();
    for n in 0..count {
        let req = Req { local_comm_id: n + 1, service_id: service(n), ..req(n) };
        // No address exceeds its limit of unconfirmed connections.
        let answers = answers(side, now, address(n % 16), &Message::Req(req));
        assert!(answers.is_empty());
    }
    assert_eq!(side.events.len(), backlog);
    (two, made)
}

/// Checks that each entry is visited once. If the cost grew with the number of other entries, it
/// would be a thousand times that, or more.
fn each_visited_once(side: &Manager, count: usize) {
    assert_eq!((side.events.visited, side.events.len()), (count, 0));
    assert!(side.is_empty());
}

#[test]
fn the_end_of_a_listener_costs_what_waits_for_it() {
    for listeners in [1, 1000] {
        let (mut two, made) = crowd(20_000, listeners);
        let side = &mut two.sides[1];
        let mut ended = BTreeSet::new();
        for listener in made {
            ended.append(&mut side.unlisten(two.now, listener));
            while side.poll_transmit().is_some() {}
        }
        assert_eq!(ended.len(), 20_000);
        each_visited_once(side, 20_000);
    }
}

#[test]
fn the_end_of_a_connection_costs_the_same_however_many_events_wait() {
    let (mut two, _) = crowd(20_000, 1);
    let side = &mut two.sides[1];
    let mut ids: Vec<_> = side.connections.keys().copied().map(ConnId).collect();
    ids.sort_unstable();
    for id in ids {
        side.destroy(two.now, id);
    }
    each_visited_once(side, 20_000);
}

#[test]
fn the_end_of_a_device_costs_what_there_is() {
    let (mut two, _) = crowd(20_000, 7);
    let side = &mut two.sides[1];
    side.close(two.now);
    each_visited_once(side, 20_000);
}

#[test]
fn requests_that_find_a_full_backlog_are_dropped_and_come_again() {
    let mut two = Two::new();
    let [mut asked, mut queries] = [Vec::new(), Vec::new()];
    for n in 0..128 {
        asked.push(two.sides[0].connect(two.now, route(0), req(0x11 + n)).unwrap());
        let query = SidrReq { service_id: SERVICE, ..SidrReq::default() };
        queries.push(two.sides[0].resolve(two.now, route(0), query).unwrap());
    }
    let mut answered = BTreeSet::new();
    while answered.len() < 2 * 128 {
        two.run_until_idle();
        // The consumer takes its events from time to time: a backlog of 4 fills again and again.
        while let Some(event) = two.sides[1].poll_event() {
            two.sides[1].taken(event.id());
            let now = two.now;
            match event {
                CmEvent::Request { id, .. } => two.sides[1].accept(now, id, rep(id.0)).unwrap(),
                CmEvent::Resolve { id, .. } => {
                    two.sides[1].answer_sidr(now, id, SidrRep::default()).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        two.run_until_idle();
        while let Some(event) = two.sides[0].poll_event() {
            assert!(matches!(event, CmEvent::Reply { .. } | CmEvent::Resolved { .. }), "{event:?}");
            answered.insert(event.id());
        }
        two.wait(Duration::from_millis(10));
    }
    assert!(asked.iter().chain(&queries).all(|id| answered.contains(id)));
    // If all requests were repeated at equal moments, they would take the backlog in turns of 4.
    let seconds = two.now.since(Time::ZERO).as_secs();
    assert!(seconds < 30, "{seconds} s");
}

#[test]
fn a_dropped_request_leaves_nothing() {
    let mut two = Two::new();
    let [first, second] = [SERVICE + 1, SERVICE + 2];
    let now = two.now;
    two.sides[1].listen(now, first, 1).unwrap();
    two.sides[1].listen(now, second, 1).unwrap();
    let ask = |two: &mut Two, service_id, qpn| {
        let id = two.sides[0].connect(now, route(0), Req { service_id, ..req(qpn) }).unwrap();
        two.run_until_idle();
        (id, two.sides[1].len())
    };
    assert_eq!(ask(&mut two, first, 1).1, 1);
    let (dropped, kept) = ask(&mut two, first, 2);
    assert_eq!(kept, 1);
    assert_eq!(ask(&mut two, second, 3).1, 2, "it took no place of another listener");
    let taken = two.event(1).id();
    two.sides[1].taken(taken);
    two.wait(Retry::FIRST);
    two.run_until_idle();
    let asks = |event: &CmEvent| match event {
        CmEvent::Request { req, .. } => Some(req.local_comm_id),
        _ => None,
    };
    let came = std::iter::from_fn(|| two.sides[1].poll_event());
    assert!(came.filter_map(|event| asks(&event)).any(|id| id == dropped.0), "there is room again");
}

#[test]
fn a_request_that_arrives_after_it_was_given_up_is_dropped() {
    let mut two = Two::new();
    let a = two.sides[0].connect(two.now, route(0), req(0x11)).unwrap();
    two.sides[0].destroy(two.now, a);
    let [(_, request), (name, end)] = two.sent(0).try_into().unwrap();
    assert_eq!(name, "REJ");
    two.deliver(1, &end);
    two.deliver(1, &request);
    assert!(two.sides[1].poll_event().is_none() && two.sides[1].is_empty());
    // If REQ and REJ arrive in order, both are reported, and a copy of the REQ creates nothing new.
    let b = two.sides[0].connect(two.now, route(0), req(0x12)).unwrap();
    two.sides[0].destroy(two.now, b);
    let [(_, request), (_, end)] = two.sent(0).try_into().unwrap();
    [&request, &end, &request].into_iter().for_each(|out| two.deliver(1, out));
    assert!(matches!(two.event(1), CmEvent::Request { .. }));
    assert!(matches!(two.event(1), CmEvent::Rejected { .. }));
    assert!(two.sides[1].poll_event().is_none() && two.sides[1].is_empty());
}

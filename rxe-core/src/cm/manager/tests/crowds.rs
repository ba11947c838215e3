//! Many requests at once, and what becomes of them when a listener, a connection or the device ends.

use super::*;

/// A manager with this many requests that nobody has taken, each of another listener or all of one.
fn crowd(count: u32, listeners: u32) -> (Two, Vec<ListenerId>) {
    let mut two = Two::new();
    let (side, now) = (&mut two.sides[1], two.now);
    let service = |n: u32| SERVICE + 1 + u64::from(n % listeners);
    let backlog = usize::try_from(count).unwrap();
    let made = (0..listeners).map(|n| side.listen(now, service(n), backlog).unwrap());
    let made = made.collect();
    for n in 0..count {
        let req = Req { local_comm_id: n + 1, service_id: service(n), ..req(n) };
        // No address has more unconfirmed connections than it may.
        let answers = answers(side, now, address(n % 16), &Message::Req(req));
        assert!(answers.is_empty());
    }
    assert_eq!(side.events.len(), backlog);
    (two, made)
}

/// Each entry is looked at once. If the cost grew with what else waits, it would be a thousand times
/// that, or more.
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

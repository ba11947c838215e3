//! Tests of what other processes may send when they connect.

use std::fs::File;

use super::super::Shm;
use super::super::link::is_gone;
use super::super::offers::{LISTEN_AGAIN_AFTER, MAX_CALLERS, MAX_INCOMING};
use super::super::wake::WakeUp;
use super::{OFFER, memory, offer_with, open, over_the_wire, readable, receive, send};
use crate::backends::udp::UdpBackend;
use crate::testing::in_namespace;
use rxe_sys::unix::UnixSocket;

#[test]
fn callers_that_talk_nonsense_do_no_harm() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = memory("127.0.0.2");
        // A valid offer, except for its version.
        let _other = offer_with(&name, b"rxm\x02", WakeUp::new().unwrap()).unwrap();
        to.poll_control();
        assert!(to.incoming.is_empty() && to.callers.is_empty());
        let callers: Vec<_> = (0..20).map(|_| UnixSocket::connect(&name).unwrap()).collect();
        for (i, caller) in callers.iter().enumerate() {
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = [std::os::fd::AsFd::as_fd(&null); 2];
            let words: [&[u8]; 4] = [b"", &OFFER, b"rxm\x02", b"nonsense that is long enough"];
            caller.send(words[i % 4], &fds[..i % 3]).unwrap();
        }
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        drop(callers);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        assert!(to.callers.is_empty() && to.incoming.len() == 1);
        assert!(!readable(&to, 0));
    });
}

#[test]
fn offers_of_rings_without_number_are_refused_and_others_use_the_network() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = memory("127.0.0.2");
        raise_limit();
        let offer = || offer_with(&name, &OFFER, WakeUp::new().unwrap());
        let mut offered = Vec::new();
        for _ in 0..MAX_INCOMING + 20 {
            offered.extend(offer());
            to.poll_control();
        }
        assert_eq!((offered.len(), to.incoming.len()), (MAX_INCOMING, MAX_INCOMING));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        // The other senders have gone, so after a while there is room for new ones.
        drop(offered);
        for _ in 0..LISTEN_AGAIN_AFTER {
            to.poll_control();
        }
        assert!(to.incoming.is_empty() && offer().is_ok());
    });
}

#[test]
fn a_device_with_as_many_rings_as_it_takes_sends_through_its_own() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        raise_limit();
        let offered: Vec<_> = (0..MAX_INCOMING)
            .map(|_| {
                let offered = offer_with(&memory("127.0.0.1"), &OFFER, WakeUp::new().unwrap());
                from.poll_control();
                offered.unwrap()
            })
            .collect();
        assert_eq!(from.incoming.len(), offered.len());
        assert!(from.listeners.sockets().is_empty(), "it takes no more");
        for _ in 0..2 {
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            receive(&mut to, 20);
            send(&mut from, "127.0.0.1", "127.0.0.1", 1, 20);
            receive(&mut from, 20);
        }
        assert_eq!((over_the_wire(&to), over_the_wire(&from)), (0, 0));
    });
}

/// Raises the limit of open descriptors to the maximum.
fn raise_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
}

#[test]
fn who_connects_and_says_nothing_is_not_waited_for_without_end() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let mut callers = Vec::new();
        for _ in 0..MAX_CALLERS + 20 {
            callers.push(UnixSocket::connect(&name).unwrap());
            to.poll_control();
        }
        assert_eq!(to.callers.len(), MAX_CALLERS);
        assert!(callers[0].receive(&mut [0]).unwrap().is_some_and(|l| l.len == 0), "hung up");
        assert!(callers[20].receive(&mut [0]).unwrap().is_none(), "still waited for");
    });
}

#[test]
fn who_refuses_a_ring_is_reached_through_the_network() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        // Like a process of another version: it accepts the connection, and then closes it.
        let refuse = |to: &mut Shm<UdpBackend>| {
            for line in to.listeners.sockets().iter().filter_map(|socket| socket.accept().ok()) {
                assert!(line.receive(&mut [0; 32]).unwrap().is_some_and(|offer| offer.len > 0));
            }
        };
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        refuse(&mut to);
        from.poll_control();
        // The packets in that ring are lost, and nothing else.
        for _ in 0..3 {
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            receive(&mut to, 20);
        }
        assert!(to.incoming.is_empty() && over_the_wire(&to) == 60);
    });
}

#[test]
fn without_descriptors_for_a_ring_the_network_is_used() {
    in_namespace("ulimit -n 64", || {
        // A descriptor is left for the connection and none for the ring; or one for the ring's
        // memory, and none for its wake-up.
        for left in [1, 2] {
            let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
            let name = memory("127.0.0.2");
            let offered = offer_with(&name, &OFFER, WakeUp::new().unwrap()).unwrap();
            let all = fill_descriptors(left);
            to.poll_control();
            drop(all);
            assert!(to.incoming.is_empty() && to.listeners.sockets().is_empty());
            assert!(is_gone(&offered.line));
            for _ in 0..3 {
                send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
                receive(&mut to, 20);
            }
            assert_eq!(over_the_wire(&to), 60);
        }
    });
}

/// Opens files until this process may only open `left` more.
fn fill_descriptors(left: usize) -> Vec<File> {
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - left);
    files
}

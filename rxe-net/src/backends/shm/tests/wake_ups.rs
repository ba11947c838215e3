//! Tests of wake-ups, and of wake-ups that other processes spoil.

use std::env;
use std::fs;
use std::process::{Command, Stdio};

use rxe_core::wire::{Frame, NetHeader, UDP_PORT};

use super::super::Route;
use super::super::link::FRAME;
use super::{OFFER, ip, memory, offer, offer_with, open, over_the_wire, readable, receive, send};
use crate::backend::Backend;
use crate::host::message;
use crate::testing::{in_namespace, skipped};

#[test]
fn who_sleeps_is_woken_and_who_polls_costs_no_call() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
        receive(&mut to, 1);
        for _ in 0..100 {
            to.watch(true);
            assert!(!readable(&to, 0));
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert!(readable(&to, 0));
            // Taking only a part leaves the descriptor readable.
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert_eq!(to.receive(1, &mut |_| {}).unwrap(), 1);
            assert!(readable(&to, 0));
            assert_eq!(to.receive(1, &mut |_| {}).unwrap(), 1);
            assert!(!readable(&to, 0));
            to.watch(false);
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
            assert!(!readable(&to, 0), "nobody asked to be woken");
            to.watch(true);
            assert!(readable(&to, 0), "but now somebody does");
            assert_eq!(to.receive(9, &mut |_| {}).unwrap(), 1);
        }
    });
}

/// Counts the calls that a longer run makes in addition to a shorter one: those of its messages.
/// Both ends are in one thread and take turns, so the numbers depend little on other load of the
/// host.
#[test]
fn two_ends_that_poll_make_hardly_any_system_call() {
    const MESSAGES: &str = "RXE_TEST_MESSAGES";
    const RUNS: [usize; 2] = [10_000, 60_000];
    in_namespace("", || {
        if let Ok(messages) = env::var(MESSAGES) {
            return exchange(messages.parse().unwrap());
        }
        let dir = tempfile::tempdir().unwrap();
        let calls = dir.path().join("calls");
        let strace = || {
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o"]).arg(&calls).stdout(Stdio::null());
            command
        };
        if !strace().arg("true").status().is_ok_and(|status| status.success()) {
            return skipped(
                "two_ends_that_poll_make_hardly_any_system_call",
                "strace does not work here",
            );
        }
        let [few, many] = RUNS.map(|messages| {
            let mut run = strace();
            // Only this test, as for the namespace.
            run.arg(env::current_exe().unwrap()).args(env::args_os().skip(1));
            let status = run.env(MESSAGES, messages.to_string()).status().unwrap();
            assert!(status.success(), "{messages} messages");
            fs::read_to_string(&calls).unwrap().lines().count()
        });
        let (messages, calls) = (RUNS[1] - RUNS[0], many.saturating_sub(few));
        // The wire, offers and connections are polled about 20 times per 1,000 messages. Waking an
        // end that does not sleep would take two calls for each message.
        assert!(calls < messages / 20, "{calls} system calls for {messages} messages");
    });
}

/// Sends `messages` messages back and forth, each after the previous one has arrived.
fn exchange(messages: usize) {
    let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
    let (mut src, mut dst) = ("127.0.0.1", "127.0.0.2");
    for _ in 0..messages {
        send(&mut from, src, dst, 1, 1);
        while to.receive(64, &mut |_| {}).unwrap() == 0 {}
        (from, to, src, dst) = (to, from, dst, src);
    }
}

#[test]
fn a_wake_up_that_others_hold_open_is_watched_no_longer_than_its_ring() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let offered = offer();
        to.poll_control();
        assert_eq!(to.incoming.len(), 1);
        drop(offered.line);
        to.poll_control();
        assert!(to.incoming.is_empty());
        offered.wake.signal().unwrap();
        assert!(!readable(&to, 0));
    });
}

#[test]
fn a_wake_up_that_could_block_is_refused() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let (pipe, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        for wake in [blocking, pipe] {
            let _offered = offer_with(&name, &OFFER, wake).unwrap();
            to.poll_control();
            assert!(to.incoming.is_empty() && to.callers.is_empty());
        }
    });
}

#[test]
fn a_wake_up_that_the_other_end_makes_blocking_blocks_nobody() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let mut offered = offer();
        to.poll_control();
        // The flag belongs to the open file description, which both ends share.
        rustix::fs::fcntl_setfl(&offered.wake, rustix::fs::OFlags::empty()).unwrap();
        to.watch(true);
        // The sender claims to have signalled, but has not.
        assert!(offered.ring.must_wake());
        for _ in 0..10 {
            to.receive(64, &mut |_| {}).unwrap();
        }
        offered.ring.push(1, [&[0; 8], &[]]).unwrap();
        to.receive(64, &mut |_| {}).unwrap();
        assert!(to.incoming.is_empty(), "what it put in is no frame");
    });
}

#[test]
fn a_sender_gives_up_a_ring_whose_wake_up_could_block_it() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let mut to = open("127.0.0.2");
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        receive(&mut to, 10);
        to.watch(true);
        to.incoming[0].spoil_wake();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        assert!(matches!(from.routes.values().next(), Some(Route::Wire(_))));
        // The packets in the ring are not lost, and all others take another path.
        to.watch(false);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        let mut got = 0;
        while got < 20 {
            assert!(readable(&to, 10) || got < 20);
            got += to.receive(64, &mut |_| {}).unwrap();
        }
        assert_eq!(over_the_wire(&to), 10);
    });
}

/// A skip to the start of the ring without a record after it keeps no thread awake.
#[test]
fn a_skip_alone_is_nothing_to_receive() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let mut offered = offer();
        to.poll_control();
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let header = message::emit(&Frame { segment: 60_000, ..Frame::single(net, &[0]) });
        // Far enough for an empty ring to restart, which a dropped reservation leaves half done.
        for _ in 0..5 {
            assert!(offered.ring.push(FRAME, [&header, &[0; 60_000]]).unwrap());
            to.receive(64, &mut |_| {}).unwrap();
        }
        assert!(offered.ring.reserve(100).unwrap().is_some());
        to.watch(true);
        for _ in 0..10 {
            assert_eq!(to.receive(64, &mut |_| {}).unwrap(), 0);
        }
        assert!(!readable(&to, 0));
    });
}

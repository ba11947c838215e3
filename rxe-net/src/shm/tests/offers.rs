//! What others say when they connect.

use super::super::link::OFFER;
use super::super::offers::{LISTEN_AGAIN_AFTER, MAX_CALLERS, MAX_INCOMING};
use super::super::wake::WakeUp;
use super::{memory, offer_with, open, readable, receive, send};
use crate::sys::unix::UnixSocket;
use crate::testing::in_namespace;

#[test]
fn callers_that_talk_nonsense_do_no_harm() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let name = memory("127.0.0.2");
        // A right offer, but for its version.
        let _other = offer_with(&name, b"rxm\x01", WakeUp::new().unwrap()).unwrap();
        to.look_around();
        assert!(to.incoming.is_empty() && to.callers.is_empty());
        let callers: Vec<_> = (0..20).map(|_| UnixSocket::connect(&name).unwrap()).collect();
        for (i, caller) in callers.iter().enumerate() {
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = [std::os::fd::AsFd::as_fd(&null); 2];
            let words: [&[u8]; 4] = [b"", &OFFER, b"rxm\x01", b"nonsense that is long enough"];
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
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let offer = || offer_with(&name, &OFFER, WakeUp::new().unwrap());
        let mut offered = Vec::new();
        for _ in 0..MAX_INCOMING + 20 {
            offered.extend(offer());
            to.look_around();
        }
        assert_eq!((offered.len(), to.incoming.len()), (MAX_INCOMING, MAX_INCOMING));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
        receive(&mut to, 20);
        // The others have gone, and in time there is room for new ones.
        drop(offered);
        for _ in 0..LISTEN_AGAIN_AFTER {
            to.look_around();
        }
        assert!(to.incoming.is_empty() && offer().is_ok());
    });
}

#[test]
fn who_connects_and_says_nothing_is_not_waited_for_without_end() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let name = memory("127.0.0.2");
        let mut callers = Vec::new();
        for _ in 0..MAX_CALLERS + 20 {
            callers.push(UnixSocket::connect(&name).unwrap());
            to.look_around();
        }
        assert_eq!(to.callers.len(), MAX_CALLERS);
        assert!(callers[0].receive(&mut [0]).unwrap().is_some_and(|l| l.len == 0), "hung up");
        assert!(callers[20].receive(&mut [0]).unwrap().is_none(), "still waited for");
    });
}

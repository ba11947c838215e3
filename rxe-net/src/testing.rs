//! What the tests of several backends share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::wire::NetHeader;

use crate::Backend;

/// Port 4791 on the loopback addresses is one for the whole machine: tests take turns.
///
/// Other processes' tests may have it too, so this also takes a lock that those see.
pub(crate) fn exclusive() -> impl Sized {
    static HERE: Mutex<()> = Mutex::new(());
    let here: MutexGuard<'static, ()> = HERE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = std::env::temp_dir().join("rxe-test-port-4791.lock");
    let file = std::fs::File::create(path).unwrap();
    file.lock().unwrap();
    (file, here)
}

/// Waits until the backend has something to receive.
pub(crate) fn wait_readable(backend: &impl Backend) {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.try_clone_to_owned().unwrap()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut polls, Some(&limit)).unwrap() > 0, "nothing arrived in 10 s");
}

/// Receives until `count` packets have come.
pub(crate) fn receive_packets(
    backend: &mut impl Backend,
    count: usize,
) -> Vec<(NetHeader, Vec<u8>)> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait_readable(backend);
        backend
            .receive(count, &mut |f| packets.extend(f.packets().map(|(n, p)| (n, p.to_vec()))))
            .unwrap();
    }
    packets
}

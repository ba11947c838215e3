//! Test helpers for several backends. They call a backend as if under a shard's lock, where nothing
//! may block.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::wire::{NetHeader, TxBatch};

use crate::backend::{Backend, SendStatus};
use crate::error::NetError;
use crate::host::sharing::Sharing;
use rxe_sys::NonBlocking;
use rxe_sys::bpf::{self, MapKind};

pub(crate) mod link;

use rxe_test_support::test_name;
pub(crate) use rxe_test_support::{in_namespace, in_namespaces, skipped};

/// Returns whether BPF is unavailable. The process may not load programs, or the kernel has no
/// AF_XDP. Then also reports that the named test is skipped.
pub(crate) fn skipped_without_bpf(name: &str) -> bool {
    let refused = bpf::create_map(MapKind::Xsk, 4, 4, 1).err();
    if let Some(e) = &refused {
        skipped(name, format_args!("XDP needs CAP_BPF and a kernel with AF_XDP ({e})"));
    }
    refused.is_some()
}

/// Like [`in_namespace`], but in the current user namespace, where root may use BPF.
pub(crate) fn in_bpf_namespace<F: FnOnce()>(setup: &str, body: F) {
    if !skipped_without_bpf(test_name(&body)) {
        rxe_test_support::in_bpf_namespace(setup, body);
    }
}

/// Waits until the backend has something to receive.
pub(crate) fn wait_readable(backend: &impl Backend) {
    wait(backend, PollFlags::IN);
}

fn wait(backend: &impl Backend, what: PollFlags) {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, what)).collect();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut polls, Some(&limit)).unwrap() > 0, "nothing happened in 10 s");
}

/// Sends the whole batch.
pub(crate) fn send_all(backend: &mut impl Backend, batch: &mut TxBatch) {
    loop {
        let mark = NonBlocking::enter();
        let status = backend.send(batch).unwrap();
        drop(mark);
        match status {
            SendStatus::Done => return,
            SendStatus::Blocked => wait(backend, PollFlags::IN | PollFlags::OUT),
            SendStatus::Congested => wait(backend, PollFlags::IN),
        }
    }
}

/// Receives until `count` packets have arrived.
pub(crate) fn receive_packets(
    backend: &mut impl Backend,
    count: usize,
) -> Vec<(NetHeader, Vec<u8>)> {
    let mut packets = Vec::new();
    while packets.len() < count {
        wait_readable(backend);
        let _mark = NonBlocking::enter();
        backend
            .receive(count, &mut |f| packets.extend(f.packets().map(|(n, p)| (n, p.to_vec()))))
            .unwrap();
    }
    packets
}

/// Moves a backend to these addresses, as a device does after its interface has changed.
pub(crate) fn move_to(
    backend: &mut impl Sharing,
    addresses: &[std::net::IpAddr],
) -> Result<(), NetError> {
    let groups = backend.port_groups().unwrap();
    groups.enter(addresses);
    let mark = NonBlocking::enter();
    let moved = backend.set_addresses(addresses);
    drop(mark);
    groups.release_left();
    moved
}

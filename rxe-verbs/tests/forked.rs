//! A forked child cannot use its parent's device. Its attempts neither block nor disturb the
//! parent.

mod common;

use common::*;
use rxe_verbs::cm::{EventChannel, PortSpace};
use rxe_verbs::*;

/// How the child process is created.
#[derive(Clone, Copy)]
enum By {
    Fork,
    /// A plain `clone`, which like `_Fork` does not run `pthread_atfork` handlers.
    BareClone,
}

/// Runs `child` in a child process. Returns whether it returned `true` there.
fn in_child(by: By, child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only runs what was passed, and ends. It has a time limit, since what it does must
    // not wait for threads that it does not have.
    #[expect(unsafe_code, reason = "a child without exec")]
    unsafe {
        let pid = match by {
            By::Fork => libc::fork(),
            By::BareClone => {
                let pid = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
                libc::pid_t::try_from(pid).unwrap()
            }
        };
        if pid == 0 {
            libc::alarm(30);
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(i32::from(!good.unwrap_or(false)));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status == 0
    }
}

#[test]
fn a_forked_child_is_refused_its_parent_s_device_and_the_parent_goes_on() {
    parent_and_child(By::Fork);
}

#[test]
fn a_child_of_a_bare_clone_is_refused_it_too() {
    parent_and_child(By::BareClone);
}

fn parent_and_child(by: By) {
    let (a, b) = pair();
    let to = b.region(100);
    let remote = to.remote(0);
    let channel = a.device.create_channel().unwrap();
    let window = a.pd.create_window(WindowType::Type1).unwrap();
    a.qp.write_bytes(1, b"before", remote).post().unwrap();
    a.ok();
    let parents = (a, b, to, channel, window);
    let (parents, child) = {
        // The child drops its copies of the same objects at the end.
        let mut slot = Some(parents);
        let refused = in_child(by, || {
            let (a, b, to, channel, window) = slot.take().unwrap();
            let forked = |e: Error| matches!(e, Error::Forked { .. });
            let text = a.cq.poll_one().unwrap_err().to_string();
            assert!(text.contains("was opened before fork()"), "{text}");
            assert!(forked(a.qp.write_bytes(2, b"child", remote).post().unwrap_err()));
            assert!(forked(b.qp.recv(3, &[]).unwrap_err()));
            assert!(forked(a.cq.poll(1, drop).unwrap_err()));
            assert!(forked(a.cq.wait_one(TIMEOUT).unwrap_err()));
            assert!(forked(a.cq.arm(false).unwrap_err()));
            assert!(forked(channel.get_event(None).map(drop).unwrap_err()));
            assert!(forked(a.qp.query().map(drop).unwrap_err()));
            assert!(forked(a.qp.to_error().unwrap_err()));
            assert!(forked(a.pd.register(10, Access::empty()).map(drop).unwrap_err()));
            assert!(forked(a.device.create_pd().map(drop).unwrap_err()));
            assert!(forked(a.device.create_cq(1).map(drop).unwrap_err()));
            let _ = (a.device.counters(), a.device.net_counters(), a.device.explain());
            drop((a, b, to, channel, window));
            // The child may open a device of its own.
            let (own, other) = pair();
            let memory = other.region(10);
            own.qp.write_bytes(1, b"child", memory.remote(0)).post().unwrap();
            own.ok();
            true
        });
        (slot.take().unwrap(), refused)
    };
    assert!(child, "in the child");
    let (a, ..) = &parents;
    a.qp.write_bytes(4, b"after", remote).post().unwrap();
    a.ok();
}

/// One of the queue pairs would be the first of a shard, which the child would have to open itself.
#[test]
fn a_forked_child_makes_no_queue_pair_on_its_parent_s_device() {
    let device = Device::options("lo").address(address()).shards(2).open().unwrap();
    let a = Side::new(device.clone());
    let unused = device.create_cq(4).unwrap();
    assert!(in_child(By::Fork, || {
        let made = [&a.cq, &unused].map(|cq| a.pd.qp(cq).build());
        made.into_iter().all(|made| matches!(made, Err(Error::Forked { .. })))
    }));
    assert_eq!(device.shard_count(), 1);
    a.pd.qp(&unused).build().unwrap();
    assert_eq!(device.shard_count(), 2);
}

/// The devices that an event channel opens belong to its process.
#[test]
fn a_forked_child_connects_through_a_device_of_its_own() {
    let listen = || {
        let channel = EventChannel::new()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.bind_addr("127.0.0.1:0".parse().unwrap())?;
        id.listen(1)?;
        Ok::<_, Error>((channel, id))
    };
    let _parent = listen().unwrap();
    assert!(in_child(By::Fork, || listen().is_ok()));
}

/// A child that drops inherited objects must not take events that wait for the parent.
#[test]
fn a_forked_child_that_drops_its_parent_s_channels_takes_no_event() {
    let is_waiting = |fd: &dyn std::os::fd::AsFd| readable(&fd.as_fd(), std::time::Duration::ZERO);
    for by in [By::Fork, By::BareClone] {
        let (a, b) = pair();
        let to = b.region(100);
        a.qp.write_bytes(1, b"outside", to.remote(99)).post().unwrap();
        assert_eq!(a.done().status, Status::RemoteAccess);
        let completions = a.device.create_channel().unwrap();
        let cq = a.device.create_cq_on(4, &completions).unwrap();
        let qp = a.pd.qp(&cq).build().unwrap();
        connect(&qp, &b.pd.qp(&b.cq).build().unwrap());
        cq.arm(false).unwrap();
        qp.recv(1, &[]).unwrap();
        qp.to_error().unwrap();
        let events = EventChannel::new().unwrap();
        let id = events.create_id(PortSpace::Tcp).unwrap();
        id.write_event(cm::CmEventKind::User, 0, 7).unwrap();
        let waiting = |b: &Side, completions: &CompletionChannel, events: &EventChannel| {
            [is_waiting(&b.device.async_fd()), is_waiting(completions), is_waiting(events)]
        };
        assert_eq!(waiting(&b, &completions, &events), [true; 3]);
        let mut slot = Some((a, b, qp, cq, completions, id, events));
        assert!(in_child(by, || {
            let (a, b, qp, cq, completions, id, events) = slot.take().unwrap();
            assert_eq!(
                events.take_event(Some).map(|event| event.kind),
                Some(cm::CmEventKind::User)
            );
            drop((id, events, qp, cq, completions));
            let _ = b.device.poll_async_event();
            drop((a, b));
            true
        }));
        let (_, b, _, _, completions, _, events) = slot.as_ref().unwrap();
        assert_eq!(waiting(b, completions, events), [true; 3], "as before the child");
        assert!(completions.get_event(Some(TIMEOUT)).unwrap().is_some());
        assert!(b.device.poll_async_event().is_some());
        assert_eq!(events.wait_event(TIMEOUT).unwrap().kind, cm::CmEventKind::User);
    }
}

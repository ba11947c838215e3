//! An interface that changes while its device is open.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rxe_net::XdpMode;
use rxe_verbs::*;

/// Creates an interface with an address and a carrier.
const SETUP: &str = "
    ip link add veth0 type veth peer name peer0
    ip link set peer0 up
    ip link set veth0 addrgenmode none up
    ip address add 10.9.0.1/24 dev veth0";

/// Takes events until one of this kind, and returns that one.
fn until(device: &Device, kind: AsyncKind) -> AsyncEvent {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        match device.poll_async_event() {
            Some(event) if event.kind == kind => return event,
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no {} came", kind.name());
}

fn usable(device: &Device) -> Vec<(usize, String)> {
    let gids = device.gids();
    let usable = gids.iter().enumerate().filter(|(_, g)| !g.is_zero());
    usable.map(|(i, g)| (i, g.to_ip().to_string())).collect()
}

/// Sends messages in both directions over a new connection from `a`'s address with this GID index.
fn talk(a: &Side, a_index: u16, b: &Side) {
    let ours = a.pd.qp(&a.cq).gid_index(a_index).build().unwrap();
    let theirs = b.pd.qp(&b.cq).build().unwrap();
    // The kernel may drop its first ARP request while the link comes up. It repeats the request a
    // second later, when the default retries are exhausted.
    let options =
        ConnectOptions { timeout: AckTimeout::new(18).unwrap(), ..ConnectOptions::default() };
    ours.connect(&theirs.endpoint(), &options).unwrap();
    theirs.connect(&ours.endpoint(), &options).unwrap();
    for (from, to, sender, receiver) in [(a, b, &ours, &theirs), (b, a, &theirs, &ours)] {
        let inbox = to.region(16);
        receiver.recv(1, &[inbox.slice(..)]).unwrap();
        sender.send_bytes(2, b"hello").post().unwrap();
        assert_eq!((from.ok().id, to.ok().byte_len), (2, 5));
    }
}

#[test]
fn the_gid_table_and_the_sockets_follow_the_addresses() {
    in_namespace(SETUP, || {
        let a = Side::new(Device::open("veth0").unwrap());
        let b = Side::new(open("127.0.0.2".parse().unwrap()));
        // Index 0 is for the link-local GID, which this interface does not have.
        assert_eq!(usable(&a.device), [(1, "10.9.0.1".into())]);
        sh("ip address add 10.9.2.2/24 dev veth0");
        let event = until(&a.device, AsyncKind::GidChange);
        assert_eq!(event.text, "addresses of veth0: new: 10.9.2.2");
        assert_eq!(usable(&a.device), [(1, "10.9.0.1".into()), (2, "10.9.2.2".into())]);
        talk(&a, 2, &b);

        sh("ip address del 10.9.0.1/24 dev veth0");
        assert_eq!(
            until(&a.device, AsyncKind::GidChange).text,
            "addresses of veth0: gone: 10.9.0.1"
        );
        assert_eq!(usable(&a.device), [(2, "10.9.2.2".into())]);
        let gone = a.pd.qp(&a.cq).gid_index(1).build().unwrap_err();
        assert!(gone.to_string().contains("sgid_index"), "{gone}");
        assert_eq!(a.device.preferred_gid(), 2);
        talk(&a, 2, &b);

        sh("ip address add 10.9.3.3/24 dev veth0");
        until(&a.device, AsyncKind::GidChange);
        let expected = [(1, "10.9.3.3".into()), (2, "10.9.2.2".into())];
        assert_eq!(usable(&a.device), expected, "it takes the empty place");
        talk(&a, 1, &b);
    });
}

/// Connects a queue pair of each side over `a`'s first address, with this timeout and retry count.
fn connect_with(a: &Side, b: &Side, timeout: u8, retry_cnt: u8) -> (QueuePair, QueuePair) {
    let timeout = AckTimeout::new(timeout).unwrap();
    let options = ConnectOptions { timeout, retry_cnt, ..ConnectOptions::default() };
    let ours = a.pd.qp(&a.cq).gid_index(1).build().unwrap();
    let theirs = b.pd.qp(&b.cq).build().unwrap();
    ours.connect(&theirs.endpoint(), &options).unwrap();
    theirs.connect(&ours.endpoint(), &options).unwrap();
    (ours, theirs)
}

#[test]
fn a_connection_whose_address_is_lost_ends_after_its_retries_and_a_new_one_works() {
    in_namespace(SETUP, || {
        let a = Side::new(Device::open("veth0").unwrap());
        let b = Side::new(open("127.0.0.2".parse().unwrap()));
        let (ours, theirs) = connect_with(&a, &b, 10, 2);
        ours.recv(10, &[]).unwrap();
        theirs.recv(11, &[]).unwrap();
        sh("ip address del 10.9.0.1/24 dev veth0");
        assert_eq!(
            until(&a.device, AsyncKind::GidChange).text,
            "addresses of veth0: gone: 10.9.0.1"
        );
        assert_eq!(
            (ours.state(), theirs.state()),
            (QpState::Rts, QpState::Rts),
            "not failed early"
        );
        for (side, qp, receive) in [(&a, &ours, 10), (&b, &theirs, 11)] {
            qp.send_bytes(1, b"anybody?").post().unwrap();
            qp.send_bytes(2, b"hello?").post().unwrap();
            let ended = [side.done(), side.done(), side.done()].map(|done| (done.id, done.status));
            let flushed = Status::WorkRequestFlushed;
            assert_eq!(ended, [(1, Status::RetryExceeded), (2, flushed), (receive, flushed)]);
            assert_eq!(qp.state(), QpState::Err);
        }
        sh("ip address add 10.9.0.1/24 dev veth0");
        until(&a.device, AsyncKind::GidChange);
        talk(&a, 1, &b);
        // The old queue pairs work too, once they are reset and connected again.
        ours.to_reset().unwrap();
        theirs.to_reset().unwrap();
        connect(&ours, &theirs);
        theirs.recv(12, &[]).unwrap();
        ours.send_bytes(3, b"").post().unwrap();
        assert_eq!((a.ok().id, b.ok().id), (3, 12));
    });
}

#[test]
fn an_address_that_comes_back_in_time_has_done_no_harm() {
    in_namespace(SETUP, || {
        let a = Side::new(Device::open("veth0").unwrap());
        let b = Side::new(open("127.0.0.2".parse().unwrap()));
        // The last of the retries is many seconds away.
        let (ours, theirs) = connect_with(&a, &b, 17, 7);
        sh("ip address del 10.9.0.1/24 dev veth0");
        until(&a.device, AsyncKind::GidChange);
        let inbox = b.region(64);
        theirs.recv(1, &[inbox.slice(..)]).unwrap();
        ours.send_bytes(2, b"late").post().unwrap();
        sh("ip address add 10.9.0.1/24 dev veth0");
        until(&a.device, AsyncKind::GidChange);
        assert_eq!((a.ok().id, b.ok().byte_len), (2, 4));
        assert_eq!((ours.state(), theirs.state()), (QpState::Rts, QpState::Rts));
    });
}

#[test]
fn named_addresses_stay_what_they_were_named() {
    in_namespace(SETUP, || {
        let device = Device::options("veth0").address("10.9.0.1".parse().unwrap()).open().unwrap();
        sh("ip address add 10.9.2.2/24 dev veth0; ip link set veth0 down");
        until(&device, AsyncKind::PortErr);
        assert_eq!(usable(&device), [(0, "10.9.0.1".into())]);
    });
}

#[test]
fn a_device_outlives_a_change_that_comes_when_no_descriptor_is_left() {
    in_namespace(SETUP, || {
        let device = Device::open("veth0").unwrap();
        // The shell starts before the descriptors run out.
        let mut down = Command::new("sh")
            .args(["-c", "read go; ip link set veth0 down"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: before.maximum }).unwrap();
        down.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(down.wait().unwrap().success());
        // Gives the driver time to fail to read the change.
        thread::sleep(Duration::from_millis(300));
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(until(&device, AsyncKind::PortErr).text, "veth0 is down");
        device.create_pd().expect("it works");
    });
}

#[test]
fn the_path_mtu_follows_that_of_the_interface() {
    in_namespace(SETUP, || {
        let a = Side::new(Device::open("veth0").unwrap());
        let b = Side::new(open("127.0.0.2".parse().unwrap()));
        let becomes = |link: u32, mtu: Mtu| {
            sh(&format!("ip link set veth0 mtu {link}"));
            let deadline = Instant::now() + TIMEOUT;
            while a.device.active_mtu() != mtu && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!((a.device.active_mtu(), a.device.port_attr().active_mtu), (mtu, mtu));
            let qp = a.pd.qp(&a.cq).gid_index(1).build().unwrap();
            let peer = Endpoint { mtu: Mtu::M4096, ..b.qp.endpoint() };
            qp.connect(&peer, &ConnectOptions::default()).unwrap();
            assert_eq!(qp.query().unwrap().path_mtu, mtu);
            qp.to_reset().unwrap();
            let larger = [Mtu::M1024, Mtu::M2048].into_iter().find(|larger| *larger > mtu);
            let options = ConnectOptions { mtu: larger, ..ConnectOptions::default() };
            let refused = qp.connect(&peer, &options).unwrap_err().to_string();
            assert!(refused.contains(&format!("path MTU is {}", mtu.bytes())), "{refused}");
        };
        becomes(1000, Mtu::M512);
        talk(&a, 1, &b);
        becomes(1500, Mtu::M1024);
        // The MTU never exceeds the one at which the device was opened.
        becomes(9000, Mtu::M1024);
        talk(&a, 1, &b);
    });
}

/// Opens a device at the other end of the cable, in a network namespace of its own.
fn other_end() -> Side {
    at_the_other_end("peer0", || {
        sh("ip address add 10.9.0.2/24 dev peer0; ip link set peer0 up");
        Side::new(Device::options("peer0").address("10.9.0.2".parse().unwrap()).open().unwrap())
    })
}

fn a_link_that_goes_down(kind: BackendKind) {
    let b = other_end();
    let a = Side::new(Device::options("veth0").backend(kind).open().unwrap());
    for side in [&a, &b] {
        while side.device.port_attr().state != device::PortState::Active {
            until(&side.device, AsyncKind::PortActive);
        }
    }
    talk(&a, 1, &b);
    let options = ConnectOptions {
        timeout: AckTimeout::new(10).unwrap(),
        retry_cnt: 2,
        ..ConnectOptions::default()
    };
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    b.qp.connect(&a.qp.endpoint(), &options).unwrap();
    sh("ip link set veth0 down");
    assert_eq!(until(&a.device, AsyncKind::PortErr).text, "veth0 is down");
    assert_eq!(until(&b.device, AsyncKind::PortErr).text, "peer0 has no carrier");
    assert_eq!(a.device.port_attr().state, device::PortState::Down);
    for (side, peer) in [(&a, &b), (&b, &a)] {
        let there = peer.region(8);
        side.qp.write_bytes(1, b"anybody?", there.remote(0)).post().unwrap();
        side.qp.write_bytes(2, b"hello?", there.remote(0)).post().unwrap();
        let ended = [side.done(), side.done()].map(|done| (done.id, done.status));
        assert_eq!(ended, [(1, Status::RetryExceeded), (2, Status::WorkRequestFlushed)]);
        assert_eq!(side.qp.state(), QpState::Err);
    }
    sh("ip link set veth0 up");
    until(&a.device, AsyncKind::PortActive);
    until(&b.device, AsyncKind::PortActive);
    assert_eq!(a.device.port_attr().state, device::PortState::Active);
    talk(&a, 1, &b);
    is_removed(&a);
}

/// Deletes the interface and checks that posted requests end, and so does the device.
fn is_removed(a: &Side) {
    a.qp.to_reset().unwrap();
    let qp = a.pd.qp(&a.cq).build().unwrap();
    let options = without_retries();
    qp.connect(&qp.endpoint(), &options).unwrap();
    qp.recv(1, &[]).unwrap();
    qp.recv(2, &[]).unwrap();
    sh("ip link del veth0");
    assert_eq!(until(&a.device, AsyncKind::PortErr).text, "veth0 was removed");
    assert_eq!(until(&a.device, AsyncKind::DeviceFatal).text, "interface veth0 was removed");
    assert_eq!(a.device.poll_async_event(), None, "once for all shards");
    let ended = [a.done(), a.done()].map(|done| (done.id, done.status));
    assert_eq!(ended, [(1, Status::WorkRequestFlushed), (2, Status::WorkRequestFlushed)]);
    let over = a.cq.poll(1, drop).unwrap_err();
    assert_eq!(over.errno(), libc::EIO);
    assert!(a.device.is_removed() && usable(&a.device).is_empty());
    assert_eq!(a.device.port_attr().state, device::PortState::Down);
    let refused = a.pd.qp(&a.cq).build().unwrap_err();
    assert_eq!(refused.errno(), libc::EIO);
    assert!(refused.to_string().contains(": interface veth0 was removed; "), "{refused}");
}

#[test]
fn an_interface_that_is_made_anew_is_another_device() {
    in_namespace(SETUP, || {
        let first = Device::options("veth0").shards(2).open().unwrap();
        let a = Side::new(first.clone());
        // A queue pair on the other shard.
        let cq = first.create_cq(1).unwrap();
        let _other = a.pd.qp(&cq).build().unwrap();
        is_removed(&a);
        sh(SETUP);
        let b = Side::new(open("127.0.0.2".parse().unwrap()));
        talk(&Side::new(Device::open("veth0").unwrap()), 1, &b);
        assert!(first.is_removed() && first.poll_async_event().is_none());
    });
}

#[test]
fn without_an_address_no_address_is_named() {
    in_namespace(SETUP, || {
        let a = Side::new(Device::open("veth0").unwrap());
        sh("ip address del 10.9.0.1/24 dev veth0");
        until(&a.device, AsyncKind::GidChange);
        let refused = a.pd.qp(&a.cq).build().unwrap_err().to_string();
        assert!(refused.ends_with("; rxe_veth0 has no address"), "{refused}");
    });
}

#[test]
fn identifiers_hear_that_their_interface_was_removed() {
    in_namespace(SETUP, || {
        let channel = cm::EventChannel::new().unwrap();
        let id = || channel.create_id(cm::PortSpace::Tcp).unwrap();
        let bound = |to: &str| {
            let id = id();
            id.bind_addr(to.parse().unwrap()).unwrap();
            id
        };
        let (own, peer) = ("10.9.0.1:0", "10.9.0.2:7471".parse().unwrap());
        let [idle, listener, client] = [own; 3].map(bound);
        let elsewhere = [bound("127.0.0.1:0"), bound("0.0.0.0:0"), id()];
        listener.listen(1).unwrap();
        elsewhere[1].listen(1).unwrap();
        client.resolve_addr(None, peer).unwrap();
        let event = || channel.wait_event(TIMEOUT).unwrap();
        assert_eq!(event().kind, cm::CmEventKind::AddrResolved);
        // A destroyed identifier gets no event.
        drop(bound(own));
        sh("ip link del veth0");
        let mut told: Vec<_> = [&idle, &listener, &client].map(cm::CmId::key).into();
        while !told.is_empty() {
            let event = event();
            assert_eq!((event.kind, event.status), (cm::CmEventKind::DeviceRemoval, 0));
            let at = told.iter().position(|key| *key == event.id.key());
            told.remove(at.expect("an identifier that is bound to it, once"));
        }
        assert!(listener.device().unwrap().is_removed());
        drop((idle, listener, client));
        assert!(id().bind_addr(own.parse().unwrap()).is_err(), "there is no such address");
        sh(SETUP);
        let again = bound(own);
        again.listen(1).unwrap();
        assert!(!again.device().unwrap().is_removed());
        assert!(channel.get_event(Some(Duration::ZERO)).unwrap().is_none());
    });
}

#[test]
fn a_link_that_goes_down_fails_its_requests_and_works_again_when_it_is_up() {
    in_namespace(SETUP, || a_link_that_goes_down(BackendKind::Udp));
}

#[test]
fn the_same_over_packet_sockets() {
    in_namespace(SETUP, || a_link_that_goes_down(BackendKind::Packet));
}

#[test]
fn the_same_over_af_xdp() {
    in_bpf_namespace(SETUP, || {
        let permitted = open_xdp(Device::options("veth0"), XdpMode::Any).is_some();
        if permitted {
            a_link_that_goes_down(BackendKind::Xdp(XdpMode::Any));
        }
    });
}

#[test]
fn an_address_that_could_not_be_shared_is_tried_again() {
    in_namespace("", || {
        let a = Side::new(Device::open("lo").unwrap());
        // This device has the same QPN block on the address that `a` will get.
        let holder = open("127.0.0.5".parse().unwrap());
        sh("ip address add 127.0.0.5/8 dev lo");
        let text = until(&a.device, AsyncKind::GidChange).text;
        assert!(text.contains("new: 127.0.0.5; another process has"), "{text}");
        drop(holder);
        // The device retries by itself, without a further change or call.
        let text = until(&a.device, AsyncKind::GidChange).text;
        assert_eq!(text, "addresses of lo: all can be used now");
        let b = Side::new(open("127.0.0.5".parse().unwrap()));
        assert_eq!(b.qp.qpn().value() >> 16, 2, "the first block is shared");
    });
}

#[test]
fn an_address_whose_holder_is_stopped_stalls_nothing() {
    in_namespace("", || {
        let a = Side::new(Device::open("lo").unwrap());
        let b = Side::new(open("127.0.0.9".parse().unwrap()));
        connect(&a.qp, &b.qp);
        // A process that shares the new address but never accepts a connection on its control
        // socket.
        let directory = directory_of("127.0.0.9").with_file_name("127.0.0.5");
        std::fs::create_dir(&directory).unwrap();
        let holder = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let name = rustix::net::SocketAddrUnix::new(directory.join("9")).unwrap();
        rustix::net::bind(&holder, &name).unwrap();
        rustix::net::listen(&holder, 1).unwrap();
        let asked = || {
            let lock = std::fs::File::open(directory.join("lock"));
            let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
            lock.is_ok_and(|lock| rustix::fs::flock(&lock, shared).is_err())
        };
        sh("ip address add 127.0.0.5/8 dev lo");
        while !asked() {
            thread::yield_now();
        }
        // The device waits for that process but continues to work.
        for (from, to) in [(&a, &b), (&b, &a)] {
            let inbox = to.region(16);
            to.qp.recv(1, &[inbox.slice(..)]).unwrap();
            from.qp.send_bytes(2, b"hello").post().unwrap();
            assert_eq!((from.ok().id, to.ok().byte_len), (2, 5));
        }
        // The device also reports the state of its port.
        sh("ip link set lo down");
        until(&a.device, AsyncKind::PortErr);
        sh("ip link set lo up");
        let text = until(&a.device, AsyncKind::GidChange).text;
        let whom = format!("process {} ", std::process::id());
        assert!(text.contains("new: 127.0.0.5; ") && text.contains(&whom), "{text}");
        // Closing the device ends the wait.
        sh("ip address del 127.0.0.5/8 dev lo");
        until(&a.device, AsyncKind::GidChange);
        sh("ip address add 127.0.0.5/8 dev lo");
        while !asked() {
            thread::yield_now();
        }
        let Side { device, pd, cq, qp } = a;
        drop((qp, cq, pd));
        device.close().unwrap();
        while asked() {
            thread::yield_now();
        }
    });
}

/// The kernel's duplicate address detection takes a second or two.
#[test]
fn a_device_whose_only_address_is_tentative_opens_when_it_can_be_used() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set peer0 up
        ip link set veth0 up";
    in_namespace(setup, || {
        let device = Device::open("veth0").unwrap();
        let usable = usable(&device);
        assert!(matches!(&usable[..], [(0, ip)] if ip.starts_with("fe80::")), "{usable:?}");
    });
}

#[test]
fn an_address_that_stays_tentative_without_a_carrier_is_named() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 addrgenmode none up
        ip address add fd00::1/64 dev veth0";
    in_namespace(setup, || {
        let error = Device::open("veth0").unwrap_err();
        assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
        assert_eq!(
            error.to_string(),
            "no address of interface veth0 can be used yet: fd00::1 is tentative until the link is \
             up: connect it, or see `ip link`"
        );
    });
}

#[test]
fn an_address_that_another_host_has_is_named() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 addrgenmode none up
        ip link set peer0 addrgenmode none up
        ip address add fd00::1/64 dev peer0 nodad
        ip address add fd00::1/64 dev veth0";
    in_namespace(setup, || {
        // The first call waits until the check has failed.
        for _ in 0..2 {
            let error = Device::open("veth0").unwrap_err();
            assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
            assert_eq!(
                error.to_string(),
                "no address of interface veth0 can be used: another host has fd00::1, as the system \
                 has found (`ip address` shows dadfailed): use another address"
            );
        }
    });
}

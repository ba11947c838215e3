//! Error messages for devices that cannot be opened or used as asked.

mod common;

use common::*;
use rxe_verbs::*;

fn one_line(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() > 20, "{text:?}");
    text
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() {
    let error = Device::open("mlx5_0").unwrap_err();
    assert_eq!(error.errno(), 19, "ENODEV");
    assert!(one_line(&error).contains("rxe_lo"), "{error}");
}

#[test]
fn an_address_of_nobody_is_refused() {
    let error = Device::options("lo").address("192.0.2.1".parse().unwrap()).open().unwrap_err();
    assert!(one_line(&error).contains("192.0.2.1"), "{error}");
}

#[test]
fn loopback_is_among_the_devices() {
    assert!(devices().unwrap().iter().any(|d| d.name() == "rxe_lo"));
}

#[test]
fn wrong_indices_and_families_are_explained() {
    let side = Side::new(open(address()));
    let error = side.pd.qp(&side.cq).gid_index(9).build().unwrap_err();
    assert!(one_line(&error).contains("the GID table has no such entry"), "{error}");
    let mut peer = side.qp.endpoint();
    peer.gid = "fd00::1".parse::<std::net::IpAddr>().unwrap().into();
    let error = side.qp.connect(&peer, &ConnectOptions::default()).unwrap_err();
    assert!(one_line(&error).contains("family"), "{error}");
}

#[test]
fn what_belongs_to_another_device_is_refused() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    let error = a.pd.qp(&b.cq).build().unwrap_err();
    assert!(one_line(&error).contains("the completion queue"), "{error}");
    let channel = b.device.create_channel().unwrap();
    assert!(a.device.create_cq_on(1, &channel).is_err());
}

#[test]
fn posting_too_early_says_what_is_missing() {
    let side = Side::new(open(address()));
    let error = side.qp.send_bytes(1, b"x").post().unwrap_err();
    assert!(one_line(&error).contains("bring it to RTS first"), "{error}");
    assert!(side.qp.recv(1, &[]).is_err(), "RESET");
    side.qp.to_init(Access::empty()).unwrap();
    side.qp.recv(1, &[]).unwrap();
}

#[test]
fn queue_pair_numbers_keys_and_psns_do_not_repeat() {
    let side = Side::new(open(address()));
    let other = side.pd.qp(&side.cq).build().unwrap();
    assert_ne!(side.qp.qpn(), other.qpn());
    assert_ne!(side.region(1).rkey(), side.region(1).rkey());
    assert_eq!(side.qp.query().unwrap().qp_state, QpState::Reset);
}

#[test]
fn an_overflowed_queue_says_so() {
    let (a, b) = (open(address()), Side::new(open(address())));
    let pd = a.create_pd().unwrap();
    let cq = a.create_cq(4).unwrap();
    let qp = pd.qp(&cq).build().unwrap();
    connect(&qp, &b.qp);
    let to = b.region(1);
    for i in 0..8 {
        qp.write_bytes(i, b"x", to.remote(0)).post().unwrap();
    }
    let mut done = Vec::new();
    let error = loop {
        // The queue is not polled until the driver has overflowed it.
        while qp.state() == QpState::Rts {
            std::thread::yield_now();
        }
        if let Err(e) = cq.poll(1, |completion| done.push(completion)) {
            break e;
        }
    };
    assert_eq!(done.len(), 4);
    assert!(one_line(&error).contains("deeper than 4"), "{error}");
    assert_eq!(common::async_event(&a, AsyncKind::CqErr).qpn, Some(qp.qpn()));
}

#[test]
fn more_memory_than_there_is_is_an_error() {
    let pd = open(address()).create_pd().unwrap();
    for len in [usize::MAX, usize::MAX / 2, 1 << 60] {
        let error = pd.register(len, Access::LOCAL_WRITE).unwrap_err();
        assert!(error.to_string().starts_with("cannot allocate a memory region: "), "{error}");
        assert_eq!(error.errno(), libc::ENOMEM);
    }
}

//! Extended reliable connection (XRC): one connection that serves several shared receive queues.

mod common;

use common::*;
use rxe_verbs::*;

/// A target QP with two shared receive queues, each with a completion queue of its own, and its
/// initiator.
struct Xrc {
    client: Side,
    initiator: QueuePair,
    server: Device,
    domain: XrcDomain,
    target: QueuePair,
    desks: [Desk; 2],
}

/// A shared receive queue with its completion queue and memory.
struct Desk {
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    memory: MemoryRegion,
}

impl Desk {
    fn new(device: &Device, domain: &XrcDomain) -> Self {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(16).unwrap();
        let srq = pd.create_xrc_srq(domain, &cq, 4, 1).unwrap();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Self { cq, srq, memory: pd.register(8192, access).unwrap() }
    }

    fn ok(&self) -> Completion {
        let done = self.cq.wait_one(TIMEOUT).unwrap();
        assert_eq!(done.status, Status::Success);
        done
    }
}

impl Xrc {
    fn new() -> Self {
        let client = Side::new(open(address()));
        let initiator = client.pd.qp(&client.cq).service(QpType::XrcSend).build().unwrap();
        let server = open(address());
        let domain = server.create_xrc_domain().unwrap();
        let target = domain.qp().build().unwrap();
        connect(&initiator, &target);
        let desks = [(); 2].map(|()| Desk::new(&server, &domain));
        Self { client, initiator, server, domain, target, desks }
    }
}

#[test]
fn a_request_reaches_the_queue_that_it_names() {
    let xrc = Xrc::new();
    assert_ne!(xrc.desks[0].srq.number(), xrc.desks[1].srq.number());
    for (id, desk) in (0..).zip(&xrc.desks) {
        desk.srq.recv(10 + id, &[desk.memory.slice(..)]).unwrap();
        let bytes = pattern(5000, u8::try_from(id).unwrap());
        let from = xrc.client.region(5000);
        from.write_at(0, &bytes).unwrap();
        let number = desk.srq.number();
        xrc.initiator.send(id, &[from.slice(..)]).imm(77).to_srq(number).post().unwrap();
        let done = desk.ok();
        assert_eq!((done.id, done.byte_len, done.qpn), (10 + id, 5000, xrc.target.qpn()));
        assert_eq!(done.imm, Some(Immediate::Data(77)));
        assert_eq!(xrc.client.ok().id, id);
        assert_eq!(desk.memory.to_vec(..5000).unwrap(), bytes);
    }
    assert_eq!(xrc.target.recv_cq().poll_one().unwrap(), None);
}

#[test]
fn memory_is_that_of_the_named_queue_s_domain() {
    let xrc = Xrc::new();
    let [ours, other] = &xrc.desks;
    let scratch = xrc.client.region(8);
    let word = ours.memory.remote(64);
    let number = ours.srq.number();
    let qp = &xrc.initiator;
    qp.write_bytes(1, &41u64.to_ne_bytes(), word).to_srq(number).post().unwrap();
    qp.fetch_add(2, scratch.slice(..), word, 1).to_srq(number).post().unwrap();
    qp.read(3, &[scratch.slice(..)], word).to_srq(number).post().unwrap();
    for id in 1..=3 {
        assert_eq!(xrc.client.ok().id, id);
    }
    assert_eq!(scratch.load_u64(0).unwrap(), 42);

    qp.read(4, &[scratch.slice(..)], word).to_srq(other.srq.number()).post().unwrap();
    assert_eq!(xrc.client.done().status, Status::RemoteAccess);
}

#[test]
fn a_queue_that_is_gone_can_not_be_named() {
    let xrc = Xrc::new();
    let [gone, _] = xrc.desks;
    let number = gone.srq.number();
    assert_eq!(xrc.domain.srq_count(), 2);
    let second = gone.srq.clone();
    drop(gone.srq);
    assert_eq!(xrc.domain.srq_count(), 2, "a handle is left");
    second.close().unwrap();
    assert_eq!(xrc.domain.srq_count(), 1);
    xrc.initiator.send_bytes(1, b"hello?").to_srq(number).post().unwrap();
    assert_eq!(xrc.client.done().status, Status::RemoteOperation);
    let event = async_event(&xrc.server, AsyncKind::QpReqErr);
    assert_eq!(event.qpn, Some(xrc.target.qpn()));
}

#[test]
fn what_is_in_a_domain_keeps_it() {
    let xrc = Xrc::new();
    assert_eq!(xrc.domain.users(), 3, "two queues and a target");
    let busy = xrc.domain.clone().close().unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY, "{busy}");
    drop((xrc.target, xrc.desks));
    xrc.domain.close().unwrap();
}

#[test]
fn what_does_not_fit_xrc_is_refused() {
    let xrc = Xrc::new();
    let Side { device, pd, cq, qp, .. } = &xrc.client;
    let number = xrc.desks[0].srq.number();
    let plain = pd.create_srq(4, 1).unwrap();
    let own = device.create_xrc_domain().unwrap();
    let in_own = pd.create_xrc_srq(&own, cq, 4, 1).unwrap();
    let refused = [
        pd.qp(cq).service(QpType::XrcRecv).build().unwrap_err(),
        own.qp().service(QpType::Rc).build().unwrap_err(),
        own.qp().srq(&plain).build().unwrap_err(),
        pd.qp(cq).service(QpType::XrcSend).srq(&plain).build().unwrap_err(),
        pd.qp(cq).srq(&in_own).build().unwrap_err(),
        pd.create_xrc_srq(&own, cq, 0, 1).unwrap_err(),
        xrc.initiator.send_bytes(1, b"").post().unwrap_err(),
        xrc.initiator.recv(1, &[]).unwrap_err(),
        xrc.target.recv(1, &[]).unwrap_err(),
        xrc.target.send_bytes(1, b"").to_srq(number).post().unwrap_err(),
        qp.activate().unwrap_err(),
    ];
    for error in &refused {
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    let foreign = [
        pd.create_xrc_srq(&xrc.domain, cq, 4, 1).unwrap_err(),
        pd.create_xrc_srq(&own, &xrc.desks[0].cq, 4, 1).unwrap_err(),
    ];
    for error in &foreign {
        assert!(error.to_string().contains("opened apart"), "{error}");
    }
    // The refused calls have done no harm.
    let desk = &xrc.desks[0];
    desk.srq.recv(1, &[desk.memory.slice(..)]).unwrap();
    xrc.initiator.send_bytes(2, b"still here").to_srq(number).post().unwrap();
    assert_eq!((desk.ok().id, xrc.client.ok().id), (1, 2));
}

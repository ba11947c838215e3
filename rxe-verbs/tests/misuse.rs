//! Everything that a program may do wrong: each verb in the wrong state, with wrong attributes,
//! foreign objects, or sizes of zero. Each error is one line that says what to do, has the errno
//! that verbs programs expect, and changes nothing: afterwards everything works. (Sizes and numbers
//! beyond a device's limits are in `limits.rs`, windows in `windows.rs`, regions in `regions.rs`,
//! XRC in `xrc.rs`.)

mod common;

use common::*;
use libc::{EBUSY, EINVAL, ENOMEM};
use rxe_verbs::*;

/// One misuse: what was done, the error, the expected errno, and a word that the text must contain.
type Row = (&'static str, Error, i32, &'static str);

/// Creates a row from a result, which must be an error.
fn refused<T>(what: &'static str, result: Result<T>, errno: i32, says: &'static str) -> Row {
    match result {
        Ok(_) => panic!("{what}: not refused"),
        Err(error) => (what, error, errno, says),
    }
}

macro_rules! rows {
    ($($what:literal: $verb:expr => $errno:expr, $says:literal;)*) => {
        [$(refused($what, $verb, $errno, $says)),*]
    };
}

fn check(rows: impl IntoIterator<Item = Row>) {
    for (what, error, errno, says) in rows {
        let text = error.to_string();
        assert_eq!(error.errno(), errno, "{what}: {text}");
        assert!(text.contains(says), "{what}: {text:?} does not say {says:?}");
        assert!(!text.contains('\n') && text.len() < 300, "{what}: {text}");
    }
}

/// Checks that a message arrives in each direction.
fn works(a: &Side, b: &Side) {
    assert_eq!((a.qp.sends_outstanding(), b.qp.receives_outstanding()), (0, 0));
    for (from, to) in [(a, b), (b, a)] {
        let inbox = to.region(8);
        to.qp.recv(1, &[inbox.slice(..)]).unwrap();
        from.qp.send_bytes(2, b"works").post().unwrap();
        assert_eq!((from.ok().id, to.ok().id), (2, 1));
        assert_eq!(inbox.to_vec(..5).unwrap(), b"works");
    }
    assert_eq!((a.cq.poll_one().unwrap(), b.cq.poll_one().unwrap()), (None, None));
}

/// Moves a new RC queue pair to a state, with this peer.
fn bring(qp: &QueuePair, peer: &Endpoint, to: QpState) {
    let options = ConnectOptions::default();
    if to == QpState::Reset {
        return;
    }
    qp.to_init(options.access).unwrap();
    if to == QpState::Init {
        return;
    }
    qp.to_rtr(peer, &options).unwrap();
    if to == QpState::Rtr {
        return;
    }
    qp.to_rts(&options).unwrap();
    if to != QpState::Rts {
        go(qp, to).unwrap();
    }
}

fn go(qp: &QueuePair, qp_state: QpState) -> Result<()> {
    qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, AttrMask::STATE)
}

/// Returns attributes that are valid for every transition of a connected queue pair.
fn attributes(peer: &Endpoint, qp_state: QpState) -> QpAttr {
    QpAttr {
        qp_state,
        ah_attr: AddressVector { dgid: peer.gid, ..QpAttr::default().ah_attr },
        dest_qp_num: peer.qpn,
        rq_psn: peer.psn,
        ..QpAttr::default()
    }
}

#[test]
fn each_verb_is_refused_in_the_states_that_do_not_allow_it() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    type Verb = fn(&Side, &Endpoint) -> Result<()>;
    let verbs: [(&str, &[QpState], Verb); 9] = [
        ("post_send", &[Rts, Sqd, Err], |s, _| s.qp.send_bytes(1, b"x").post()),
        ("post_recv", &[Init, Rtr, Rts, Sqd, Err], |s, _| s.qp.recv(1, &[])),
        ("to INIT", &[Reset, Init], |s, _| s.qp.to_init(Access::empty())),
        ("to RTR", &[Init], |s, peer| s.qp.to_rtr(peer, &ConnectOptions::default())),
        ("to RTS", &[Rtr], |s, _| s.qp.to_rts(&ConnectOptions::default())),
        ("connect", &[Reset, Init], |s, peer| s.qp.connect(peer, &ConnectOptions::default())),
        ("to SQD", &[Rts, Sqd], |s, _| go(&s.qp, Sqd)),
        ("to SQE", &[], |s, _| go(&s.qp, QpState::Sqe)),
        ("back to RTS", &[Rts, Sqd], |s, _| go(&s.qp, Rts)),
    ];
    let (device, b) = (open(address()), Side::new(open(address())));
    for state in [Reset, Init, Rtr, Rts, Sqd, Err] {
        for (name, allowed, verb) in verbs {
            let (a, peer) = (Side::new(device.clone()), b.pd.qp(&b.cq).build().unwrap());
            bring(&a.qp, &peer.endpoint(), state);
            let before = a.qp.query().unwrap();
            let result = verb(&a, &peer.endpoint());
            assert_eq!(result.is_ok(), allowed.contains(&state), "{name} in {state:?}: {result:?}");
            let Some(error) = result.err() else { continue };
            assert_eq!(error.errno(), EINVAL, "{name} in {state:?}: {error}");
            assert!(error.to_string().contains(state.name()), "{name} in {state:?}: {error}");
            assert_eq!(a.qp.query().unwrap(), before, "{name} in {state:?}: nothing has changed");
            assert_eq!((a.qp.sends_outstanding(), a.qp.receives_outstanding()), (0, 0));
            // The queue pair works as if the misuse had not happened.
            a.qp.to_reset().unwrap();
            connect(&a.qp, &peer);
            works(
                &a,
                &Side { qp: peer, device: b.device.clone(), pd: b.pd.clone(), cq: b.cq.clone() },
            );
        }
    }
}

#[test]
fn each_transition_refuses_a_missing_and_an_unexpected_attribute() {
    use AttrMask as M;
    let rc_rtr =
        M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rc_rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
    let uc_rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    let init = M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS;
    let ud_init = M::PKEY_INDEX | M::PORT | M::QKEY;
    let services = [
        (QpType::Rc, [init, rc_rtr, rc_rts]),
        (QpType::Uc, [init, uc_rtr, M::SQ_PSN]),
        (QpType::Ud, [ud_init, M::empty(), M::SQ_PSN]),
        (QpType::XrcSend, [init, uc_rtr, rc_rts]),
        (QpType::XrcRecv, [init, rc_rtr, M::TIMEOUT | M::SQ_PSN]),
    ];
    let a = Side::new(open(address()));
    let domain = a.device.create_xrc_domain().unwrap();
    let peer = Side::new(open(address())).qp.endpoint();
    for (service, needed) in services {
        let qp = match service {
            QpType::XrcRecv => domain.qp().build().unwrap(),
            _ => a.pd.qp(&a.cq).service(service).build().unwrap(),
        };
        for (to, needed) in [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().zip(needed) {
            let attr = attributes(&peer, to);
            let before = qp.query().unwrap();
            let refuse = |mask: AttrMask, named: AttrMask| {
                let error = qp.modify(&attr, mask | M::STATE).unwrap_err();
                assert_eq!(error.errno(), EINVAL, "{service:?} {to:?}: {error}");
                let text = error.to_string();
                assert!(text.contains(&named.verbs_names()), "{service:?} {to:?}: {text}");
                assert_eq!(qp.query().unwrap(), before, "{service:?} {to:?}");
            };
            for bit in needed.iter() {
                refuse(needed - bit, bit);
            }
            refuse(needed | M::CAP, M::CAP);
            let other = if to == QpState::Init { M::SQ_PSN } else { M::PORT };
            refuse(needed | other, other);
            qp.modify(&attr, needed | M::STATE).unwrap();
            assert_eq!(qp.state(), to);
        }
    }
}

#[test]
fn each_value_out_of_range_is_refused_by_name() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    let peer = b.qp.endpoint();
    let good = ConnectOptions::default();
    let init = |attr: QpAttr| {
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        a.qp.modify(&QpAttr { qp_state: QpState::Init, ..attr }, mask)
    };
    let default = QpAttr::default();
    check(rows! {
        "port 0": init(QpAttr { port_num: 0, ..default }) => EINVAL, "port_num: 0: the device has one";
        "port 2": init(QpAttr { port_num: 2, ..default }) => EINVAL, "port_num: 2";
        "P_Key index 1": init(QpAttr { pkey_index: 1, ..default }) => EINVAL, "pkey_index: 1";
    });
    assert_eq!(a.qp.state(), QpState::Reset);
    a.qp.to_init(good.access).unwrap();
    let rtr = |peer: Endpoint, options: ConnectOptions| a.qp.to_rtr(&peer, &options);
    let reserved = Endpoint { qpn: Qpn::GSI, ..peer };
    let nobody = Endpoint { gid: Gid::ZERO, ..peer };
    let six = Endpoint { gid: "fd00::1".parse::<std::net::IpAddr>().unwrap().into(), ..peer };
    check(rows! {
        "QP 1 as peer": rtr(reserved, good.clone()) => EINVAL, "dest_qp_num";
        "no GID": rtr(nobody, good.clone()) => EINVAL, "family";
        "a GID of another family": rtr(six, good.clone()) => EINVAL, "family";
        "GID index 9": rtr(peer, ConnectOptions { gid_index: Some(9), ..good.clone() }) => EINVAL, "sgid_index: 9";
        "129 READs": rtr(peer, ConnectOptions { max_dest_rd_atomic: 129, ..good.clone() }) => EINVAL, "at most 128";
    });
    let connect = |options: ConnectOptions| a.qp.connect(&peer, &options);
    check(rows! {
        "retry_cnt 8": connect(ConnectOptions { retry_cnt: 8, ..good.clone() }) => EINVAL, "retry_cnt: 8";
        "rnr_retry 8": connect(ConnectOptions { rnr_retry: 8, ..good.clone() }) => EINVAL, "rnr_retry: 8";
        "129 READs": connect(ConnectOptions { max_rd_atomic: 129, ..good.clone() }) => EINVAL, "max_rd_atomic: 129";
        "129 READs to answer": connect(ConnectOptions { max_dest_rd_atomic: 129, ..good.clone() }) => EINVAL, "at most 128";
    });
    assert_eq!(a.qp.state(), QpState::Init);
    a.qp.to_rtr(&peer, &good).unwrap();
    let rts = |options: ConnectOptions| a.qp.to_rts(&options);
    check(rows! {
        "retry_cnt 8": rts(ConnectOptions { retry_cnt: 8, ..good.clone() }) => EINVAL, "retry_cnt: 8";
        "rnr_retry 8": rts(ConnectOptions { rnr_retry: 8, ..good.clone() }) => EINVAL, "rnr_retry: 8";
        "129 READs": rts(ConnectOptions { max_rd_atomic: 129, ..good.clone() }) => EINVAL, "at most 128";
    });
    assert_eq!(a.qp.state(), QpState::Rtr);
    a.qp.to_rts(&good).unwrap();
    let current = QpAttr { cur_qp_state: QpState::Init, qp_state: QpState::Rts, ..default };
    let alternate = QpAttr { qp_state: QpState::Rts, ..default };
    check(rows! {
        "a wrong current state": a.qp.modify(&current, AttrMask::STATE | AttrMask::CUR_STATE) => EINVAL, "the QP is in RTS";
        "an alternate path": a.qp.modify(&alternate, AttrMask::STATE | AttrMask::ALT_PATH) => libc::EOPNOTSUPP, "alternate paths";
        "a rate limit": a.qp.modify(&alternate, AttrMask::STATE | AttrMask::RATE_LIMIT) => libc::EOPNOTSUPP, "rate limits";
    });
    b.qp.connect(&a.qp.endpoint(), &good).unwrap();
    works(&a, &b);
}

#[test]
fn a_path_mtu_that_the_link_does_not_carry_is_refused() {
    in_namespace(
        "ip link add veth0 mtu 1500 up type veth peer name p0 && ip address add 10.9.0.1/24 dev veth0",
        || {
            let side = Side::new(Device::open("veth0").unwrap());
            let options = ConnectOptions { mtu: Some(Mtu::M2048), ..ConnectOptions::default() };
            let peer = side.pd.qp(&side.cq).build().unwrap().endpoint();
            check(rows! {
                "path MTU 2048 of 1500": side.qp.connect(&peer, &options) => EINVAL, "largest path MTU is 1024";
            });
            assert_eq!(side.qp.state(), QpState::Reset);
        },
    );
}

#[test]
fn requests_that_contradict_themselves_are_not_taken() {
    let (a, b) = pair();
    let memory = a.region(4096);
    let (sge, remote) = (memory.slice(..8), b.region(64).remote(0));
    let qp = &a.qp;
    let raw = |op, payload| {
        let request = SendRequest::new(1, op, payload);
        let request = SendRequest { flags: SendFlags::SIGNALED, ..request };
        Ok::<_, Error>(qp.post_send([request])?)
    };
    let sges = |list: &[Sge]| Payload::Sges(list.into());
    let odd = Remote { addr: remote.addr + 1, ..remote };
    let ah = a.pd.create_ah_to(b.device.gids()[0]).unwrap();
    let long = vec![0; 257];
    check(rows! {
        "an atomic of 7 bytes": qp.fetch_add(1, memory.slice(..7), remote, 1).post() => EINVAL, "8 bytes";
        "an atomic of no bytes": raw(SendOp::FetchAdd { remote, add: 1 }, sges(&[])) => EINVAL, "8 bytes";
        "an atomic at an odd address": qp.compare_swap(1, sge, odd, 0, 1).post() => EINVAL, "multiple of 8";
        "an ATOMIC WRITE at an odd address": qp.atomic_write(1, 1, odd).post() => EINVAL, "multiple of 8";
        "an ATOMIC WRITE of 4 bytes": raw(SendOp::AtomicWrite { remote }, sges(&[memory.slice(..4)])) => EINVAL, "8 bytes";
        "a FLUSH of nothing": qp.flush(1, remote, 8, Placement::empty()).post() => EINVAL, "how far";
        "a FLUSH with a payload": raw(SendOp::Flush { remote, length: 8, placement: Placement::GLOBAL, whole_region: false }, sges(&[sge])) => EINVAL, "no payload";
        "an invalidation with a payload": raw(SendOp::LocalInvalidate { key: Key::new(1) }, sges(&[sge])) => EINVAL, "no payload";
        "an inline READ": raw(SendOp::Read { remote }, Payload::Inline([0; 8][..].into())) => EINVAL, "cannot be inline";
        "a READ made inline": qp.read(1, &[sge], remote).inline().post() => EINVAL, "cannot be inline";
        "immediate data of a READ": qp.read(1, &[sge], remote).imm(1).post() => EINVAL, "immediate data";
        "more inline data than agreed": qp.send_bytes(1, &long).post() => EINVAL, "256 allowed";
        "too much made inline": qp.send(1, &[memory.slice(..)]).inline().post() => EINVAL, "max_inline_data";
        "bytes of a wrong key made inline": qp.send(1, &[Sge { lkey: Key::new(9), ..sge }]).inline().post() => EINVAL, "no memory region";
        "more elements than agreed": qp.send(1, &[sge; 5]).post() => EINVAL, "4 allowed";
        "a receive of more elements": qp.recv(1, &[sge; 5]) => EINVAL, "4 allowed";
        "more than 2 GiB": qp.send(1, &[Sge { length: u32::MAX, ..sge }]).post() => EINVAL, "2147483648 allowed";
        "an address handle on RC": qp.send_bytes(1, b"").to(&ah, b.qp.qpn(), Qkey::new(1)).post() => EINVAL, "must not name an address handle";
        "a shared queue's number on RC": qp.send_bytes(1, b"").to_srq(1).post() => EINVAL, "only XRC";
    });
    works(&a, &b);
    let none = Payload::Inline([][..].into());
    let send = |id| SendRequest {
        flags: SendFlags::SIGNALED,
        ..SendRequest::new(id, SendOp::Write { remote, imm: None }, none.clone())
    };
    let wrong = SendRequest { xrc_srq: Some(1), ..send(2) };
    let PostError { posted, error } = a.qp.post_send([send(1), wrong, send(3)]).unwrap_err();
    assert_eq!((posted, error.errno()), (1, EINVAL), "those before it were taken, none behind it");
    assert_eq!(a.ok().id, 1);
    works(&a, &b);
}

#[test]
fn what_a_service_does_not_have_is_refused() {
    let a = Side::new(open(address()));
    let memory = a.region(64);
    let (sge, remote) = (memory.slice(..8), memory.remote(0));
    let make = |service| a.pd.qp(&a.cq).service(service).build().unwrap();
    let (uc, uc_peer, ud) = (make(QpType::Uc), make(QpType::Uc), make(QpType::Ud));
    connect(&uc, &uc_peer);
    ud.activate().unwrap();
    let ah = a.pd.create_ah_to(a.device.gids()[0]).unwrap();
    let to = |request: Request<'_>| request.to(&ah, ud.qpn(), ud.qkey()).post();
    let group = Gid::from(std::net::IpAddr::from([239, 1, 1, 1]));
    let peer = uc.endpoint();
    check(rows! {
        "a READ on UC": uc.read(1, &[sge], remote).post() => EINVAL, "use RC";
        "an atomic on UC": uc.fetch_add(1, sge, remote, 1).post() => EINVAL, "use RC";
        "a FLUSH on UC": uc.flush(1, remote, 8, Placement::GLOBAL).post() => EINVAL, "use RC";
        "a SEND with invalidate on UC": uc.send_bytes(1, b"").invalidate(Key::new(1)).post() => EINVAL, "use RC";
        "a SEND to nobody on UD": ud.send_bytes(1, b"").post() => EINVAL, "address handle";
        "a WRITE on UD": to(ud.write_bytes(1, b"x", remote)) => EINVAL, "only SEND";
        "a READ on UD": to(ud.read(1, &[sge], remote)) => EINVAL, "only SEND";
        "an invalidation on UD": ud.local_invalidate(1, Key::new(1)).post() => EINVAL, "only SEND";
        "UD to a peer": ud.connect(&peer, &ConnectOptions::default()) => EINVAL, "activate()";
        "UC without a peer": make(QpType::Uc).activate() => EINVAL, "connect()";
        "a group for UC": uc.attach_multicast(group) => EINVAL, "only UD";
        "a group that is none": ud.attach_multicast(a.device.gids()[0]) => EINVAL, "multicast group";
        "leaving where it is not": ud.detach_multicast(group) => EINVAL, "does not exist";
        "own multicast on RC": a.pd.qp(&a.cq).block_own_multicast(true).build() => EINVAL, "only datagram";
    });
    // All of them work.
    uc_peer.recv(1, &[memory.slice(..)]).unwrap();
    uc.send_bytes(2, b"uc").post().unwrap();
    ud.recv(1, &[memory.slice(..)]).unwrap();
    to(ud.send_bytes(2, b"ud")).unwrap();
    for _ in 0..4 {
        a.ok();
    }
}

#[test]
fn what_belongs_elsewhere_is_refused() {
    let (a, b) = pair();
    // Objects of another device on the same interface, and of another protection domain.
    let (b_channel, b_srq) = (b.device.create_channel().unwrap(), b.pd.create_srq(4, 1).unwrap());
    check(rows! {
        "a channel of another device": a.device.create_cq_on(4, &b_channel) => EINVAL, "opened apart";
        "a send CQ of another device": a.pd.qp_with(&b.cq, &a.cq).build() => EINVAL, "opened apart";
        "a receive CQ of another device": a.pd.qp_with(&a.cq, &b.cq).build() => EINVAL, "opened apart";
        "an SRQ of another device": a.pd.qp(&a.cq).srq(&b_srq).build() => EINVAL, "opened apart";
        "a GID index that is not there": a.pd.qp(&a.cq).gid_index(7).build() => EINVAL, "sgid_index";
        "an AH by such an index": a.pd.create_ah(&AddressVector { sgid_index: 7, dgid: b.device.gids()[0], ..QpAttr::default().ah_attr }) => EINVAL, "sgid_index";
        "an AH to nobody": a.pd.create_ah(&QpAttr::default().ah_attr) => EINVAL, "dgid";
        "an AH to another family": a.pd.create_ah_to("::1".parse::<std::net::IpAddr>().unwrap().into()) => EINVAL, "famil";
    });
    works(&a, &b);
    // Keys are checked when the request is executed, as on any adapter, so the completion has the
    // error.
    let stranger = a.device.create_pd().unwrap();
    let theirs = stranger.register(8, Access::LOCAL_WRITE).unwrap();
    let gone = a.region(8).slice(..);
    let mine = a.region(8);
    let beyond = Sge { length: 9, ..mine.slice(..) };
    for (what, sge) in
        [("another domain's", theirs.slice(..)), ("a dropped", gone), ("too long a", beyond)]
    {
        let (a, b) = (
            Side {
                qp: a.pd.qp(&a.cq).build().unwrap(),
                device: a.device.clone(),
                pd: a.pd.clone(),
                cq: a.cq.clone(),
            },
            Side::new(b.device.clone()),
        );
        connect(&a.qp, &b.qp);
        a.qp.send(1, &[sge]).post().unwrap();
        assert_eq!(a.done().status, Status::LocalProtection, "{what} region");
        a.qp.to_reset().unwrap();
        b.qp.to_reset().unwrap();
        connect(&a.qp, &b.qp);
        works(&a, &b);
    }
    works(&a, &b);
}

#[test]
fn full_queues_and_what_is_in_use_say_so() {
    let (a, b) = pair();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let none = QpCap { max_send_wr: 0, max_recv_wr: 0, ..QpCap::default() };
    let qp = a.pd.qp(&a.cq).cap(cap).build().unwrap();
    // The peer does not answer.
    qp.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    qp.recv(1, &[]).unwrap();
    qp.send_bytes(1, b"").post().unwrap();
    let empty = a.pd.qp(&a.cq).cap(none).build().unwrap();
    empty.connect(&b.qp.endpoint(), &ConnectOptions::default()).unwrap();
    let srq = a.pd.create_srq(1, 1).unwrap();
    srq.recv(1, &[]).unwrap();
    let memory = a.region(8);
    let of_srq = a.pd.qp(&a.cq).srq(&srq).build().unwrap();
    of_srq.to_init(Access::empty()).unwrap();
    check(rows! {
        "a second SEND of one": qp.send_bytes(1, b"").post() => ENOMEM, "send queue is full (1";
        "a second receive of one": qp.recv(1, &[]) => ENOMEM, "receive queue is full (1";
        "a SEND of none": empty.send_bytes(1, b"").post() => ENOMEM, "full (0";
        "a receive of none": empty.recv(1, &[]) => ENOMEM, "full (0";
        "a second receive of a shared one": srq.recv(1, &[]) => ENOMEM, "full (1";
        "two elements of one": srq.recv(1, &[memory.slice(..4), memory.slice(4..)]) => EINVAL, "1 allowed";
        "an SRQ resized to none": srq.resize(0) => EINVAL, "at least 1";
        "an SRQ limit beyond its size": srq.set_limit(2) => EINVAL, "srq_limit";
        "a receive to a QP with an SRQ": of_srq.recv(1, &[]) => EINVAL, "shared receive queue";
        "closing a used SRQ": srq.clone().close() => EBUSY, "in use";
        "closing a used CQ": a.cq.clone().close() => EBUSY, "in use";
        "closing a used PD": a.pd.clone().close() => EBUSY, "in use";
        "closing a used device": a.device.clone().close() => EBUSY, "in use";
        "a CQ of none": a.device.create_cq(0) => EINVAL, "at least 1";
        "a CQ resized to none": a.cq.resize(0) => EINVAL, "at least 1";
        "an SRQ of none": a.pd.create_srq(0, 1) => EINVAL, "at least 1";
        "a region of no bytes": a.pd.register(0, Access::LOCAL_WRITE) => EINVAL, "at least one byte";
        "remote write without local": a.pd.register(8, Access::REMOTE_WRITE) => EINVAL, "LOCAL_WRITE";
        "remote atomics without local": a.pd.register(8, Access::REMOTE_ATOMIC) => EINVAL, "LOCAL_WRITE";
        "more memory than there is": a.pd.register(usize::MAX, Access::LOCAL_WRITE) => ENOMEM, "allocate";
    });
    assert_eq!((qp.sends_outstanding(), qp.receives_outstanding(), srq.len()), (1, 1, 1));
    drop(qp);
    works(&a, &b);
}

#[test]
fn bytes_that_are_not_in_a_region_are_neither_read_nor_written() {
    let side = Side::new(open(address()));
    let region = side.region(16);
    region.write_at(0, &[7; 16]).unwrap();
    check(rows! {
        "writing beyond": region.write_at(10, &[0; 7]) => EINVAL, "16 allowed";
        "writing far beyond": region.write_at(usize::MAX, &[0; 2]) => EINVAL, "16 allowed";
        "reading beyond": region.read_at(10, &mut [0; 7]) => EINVAL, "16 allowed";
        "reading all of it and more": region.to_vec(..17) => EINVAL, "16 allowed";
        "reading a lot": region.to_vec(1..usize::MAX) => EINVAL, "16 allowed";
        "half a word": region.load_u64(4) => EINVAL, "multiple of 8";
        "a word beyond": region.store_u64(16, 1) => EINVAL, "16 allowed";
    });
    assert_eq!(region.to_vec(..).unwrap(), [7; 16]);
}

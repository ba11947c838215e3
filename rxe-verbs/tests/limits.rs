//! A device enforces every limit that it reports, with the errno that verbs programs expect: ENOMEM
//! for one object too many, EINVAL for one that is too large.

mod common;

use std::fmt::Debug;

use common::*;
use rxe_verbs::*;

/// Limits that are small enough for a test to reach.
const SMALL: Limits = Limits {
    max_qp: 3,
    max_qp_wr: 8,
    max_sge: 2,
    max_inline_data: 16,
    max_rd_atomic: 4,
    max_cq: 3,
    max_cqe: 16,
    max_mr: 3,
    max_mw: 3,
    max_pd: 3,
    max_ah: 3,
    max_srq: 3,
    max_srq_wr: 4,
    max_srq_sge: 1,
    max_mcast_grp: 2,
    max_mcast_qp_attach: 2,
    max_total_mcast_qp_attach: 3,
    max_message: 4096,
};

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };

fn small() -> Device {
    Device::options("lo").address(address()).limits(SMALL).open().unwrap()
}

/// Checks that exactly `limit` objects can be created, of which `have` exist. After one is dropped,
/// one more can be created.
fn most<T>(limit: u32, have: u32, make: impl Fn() -> Result<T>) {
    let mut all: Vec<T> = (have..limit).map(|_| make().unwrap()).collect();
    for _ in 0..2 {
        let error = make().map(|_| ()).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        assert!(error.to_string().contains(&format!("allows {limit} ")), "{error}");
    }
    all.pop();
    all.push(make().unwrap());
    assert!(make().is_err());
}

fn too_large<T: Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
}

#[test]
fn one_object_more_than_the_device_tells_is_no_memory() {
    let device = small();
    let attr = device.attr();
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(1).unwrap();
    most(attr.max_pd, 1, || device.create_pd());
    most(attr.max_cq, 1, || device.create_cq(1));
    most(attr.max_qp, 0, || pd.qp(&cq).cap(CAP).build());
    most(attr.max_srq, 0, || pd.create_srq(1, 1));
    most(attr.max_mr, 0, || pd.register(8, Access::empty()));
    most(attr.max_mw, 0, || pd.create_window(WindowType::Type2));
    let peer = device.gids()[0];
    most(attr.max_ah, 0, || pd.create_ah_to(peer));
    // The objects of XRC count too.
    let domain = device.create_xrc_domain().unwrap();
    most(attr.max_srq, 0, || pd.create_xrc_srq(&domain, &cq, 1, 1));
    most(attr.max_qp, 0, || domain.qp().build());
}

#[test]
fn a_size_beyond_what_the_device_tells_is_invalid() {
    let device = small();
    let attr = device.attr();
    assert_eq!(attr.max_sge_rd, attr.max_sge);
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(attr.max_cqe).unwrap();
    too_large(device.create_cq(attr.max_cqe + 1));
    too_large(cq.resize(attr.max_cqe + 1));
    let most = QpCap {
        max_send_wr: attr.max_qp_wr,
        max_recv_wr: attr.max_qp_wr,
        max_send_sge: attr.max_sge,
        max_recv_sge: attr.max_sge,
        max_inline_data: attr.max_inline_data,
    };
    assert_eq!(pd.qp(&cq).cap(most).build().unwrap().cap(), most);
    for cap in [
        QpCap { max_send_wr: attr.max_qp_wr + 1, ..most },
        QpCap { max_recv_wr: attr.max_qp_wr + 1, ..most },
        QpCap { max_send_sge: attr.max_sge + 1, ..most },
        QpCap { max_recv_sge: attr.max_sge + 1, ..most },
        QpCap { max_inline_data: attr.max_inline_data + 1, ..most },
    ] {
        too_large(pd.qp(&cq).cap(cap).build());
    }
    pd.create_srq(attr.max_srq_wr, attr.max_srq_sge).unwrap();
    too_large(pd.create_srq(attr.max_srq_wr + 1, attr.max_srq_sge));
    too_large(pd.create_srq(attr.max_srq_wr, attr.max_srq_sge + 1));
    let srq = pd.create_srq(1, 1).unwrap();
    too_large(srq.resize(attr.max_srq_wr + 1));
    srq.resize(attr.max_srq_wr).unwrap();
}

#[test]
fn reads_outstanding_and_bytes_in_a_message_are_limited_too() {
    let device = small();
    let attr = device.attr();
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(16).unwrap();
    let (a, b) = (pd.qp(&cq).cap(CAP).build().unwrap(), pd.qp(&cq).cap(CAP).build().unwrap());
    let most = u8::try_from(attr.max_qp_rd_atom).unwrap();
    assert_eq!(attr.max_qp_init_rd_atom, attr.max_qp_rd_atom);
    let fits = ConnectOptions { max_rd_atomic: most, max_dest_rd_atomic: most, ..patient() };
    let too_many = ConnectOptions { max_dest_rd_atomic: most + 1, ..fits.clone() };
    a.to_init(Access::empty()).unwrap();
    too_large(a.to_rtr(&b.endpoint(), &too_many));
    a.to_rtr(&b.endpoint(), &fits).unwrap();
    too_large(a.to_rts(&ConnectOptions { max_rd_atomic: most + 1, ..fits.clone() }));
    a.to_rts(&fits).unwrap();
    b.connect(&a.endpoint(), &fits).unwrap();

    let most = device.port_attr().max_msg_sz as usize;
    let memory = pd.register(most + 1, Access::LOCAL_WRITE).unwrap();
    too_large(a.send(1, &[memory.slice(..)]).post());
    b.recv(2, &[memory.slice(..most)]).unwrap();
    a.send(3, &[memory.slice(..most)]).post().unwrap();
    for _ in 0..2 {
        assert_eq!(cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    }
    too_large(a.send_bytes(4, &[0; 17]).post());
    too_large(a.send(4, &[memory.slice(..1); 3]).post());
    too_large(b.recv(4, &[memory.slice(..1); 3]));
    assert_eq!((a.sends_outstanding(), b.receives_outstanding()), (0, 0));
}

#[test]
fn groups_and_attachments_are_limited() {
    let device = small();
    let attr = device.attr();
    let pd = device.create_pd().unwrap();
    let cq = device.create_cq(16).unwrap();
    let qp = || {
        let qp = pd.qp(&cq).cap(CAP).service(QpType::Ud).build().unwrap();
        qp.activate().unwrap();
        qp
    };
    let qps = [qp(), qp(), qp()];
    let [one, two, three] =
        [1, 2, 3].map(|last| Gid::from(std::net::IpAddr::from([239, 9, 8, last])));
    let full = |result: Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    };
    assert_eq!((attr.max_mcast_grp, attr.max_mcast_qp_attach), (2, 2));
    qps[0].attach_multicast(one).unwrap();
    qps[1].attach_multicast(one).unwrap();
    full(qps[2].attach_multicast(one));
    qps[0].attach_multicast(one).unwrap();
    qps[0].attach_multicast(two).unwrap();
    assert_eq!(attr.max_total_mcast_qp_attach, 3);
    full(qps[1].attach_multicast(two));
    full(qps[2].attach_multicast(three));
    qps[1].detach_multicast(one).unwrap();
    full(qps[1].attach_multicast(three));
    qps[1].attach_multicast(two).unwrap();
}

#[test]
fn groups_and_attachments_are_limited_over_all_shards() {
    let device = Device::options("lo").address(address()).limits(SMALL).shards(3).open().unwrap();
    let pd = device.create_pd().unwrap();
    let cqs = [(); 3].map(|()| device.create_cq(16).unwrap());
    let qps = cqs.each_ref().map(|cq| {
        let qp = pd.qp(cq).cap(CAP).service(QpType::Ud).build().unwrap();
        qp.activate().unwrap();
        qp
    });
    assert_eq!(device.shard_count(), 3);
    let [one, two, three] =
        [1, 2, 3].map(|last| Gid::from(std::net::IpAddr::from([239, 9, 7, last])));
    let full = |result: Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    };
    qps[0].attach_multicast(one).unwrap();
    qps[1].attach_multicast(one).unwrap();
    full(qps[2].attach_multicast(one));
    qps[2].attach_multicast(two).unwrap();
    full(qps[1].attach_multicast(two));
    full(qps[2].attach_multicast(three));
    // Attaching again takes no further place, and a destroyed queue pair releases its place.
    qps[0].attach_multicast(one).unwrap();
    full(qps[0].attach_multicast(two));
    let [_, second, third] = qps;
    drop(third);
    second.attach_multicast(three).unwrap();
}

#[test]
fn a_device_tells_at_least_the_limits_of_kernel_rxe() {
    // The largest values in `drivers/infiniband/sw/rxe/rxe_param.h` and its older versions.
    let attr = open(address()).attr();
    let told = [
        ("max_qp_wr", attr.max_qp_wr, 1 << 20),
        ("max_sge", attr.max_sge, 32),
        ("max_inline_data", attr.max_inline_data, 512),
        ("max_cq", attr.max_cq, 1 << 20),
        ("max_cqe", attr.max_cqe, 32767),
        ("max_mr", attr.max_mr, 1 << 20),
        ("max_mw", attr.max_mw, 1 << 20),
        ("max_pd", attr.max_pd, 1 << 20),
        ("max_ah", attr.max_ah, 1 << 20),
        ("max_srq", attr.max_srq, 1 << 20),
        ("max_srq_wr", attr.max_srq_wr, 1 << 20),
        ("max_srq_sge", attr.max_srq_sge, 27),
        ("max_qp_rd_atom", attr.max_qp_rd_atom, 128),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom, 128),
        ("max_res_rd_atom", attr.max_res_rd_atom, 0x3_f000),
        ("max_mcast_grp", attr.max_mcast_grp, 8192),
        ("max_mcast_qp_attach", attr.max_mcast_qp_attach, 56),
        ("max_total_mcast_qp_attach", attr.max_total_mcast_qp_attach, 0x7_0000),
        // Kernel `rdma_rxe` reports 64, but its ports have a table of one entry, and so have ours.
        ("max_pkeys", attr.max_pkeys.into(), 1),
        ("max_qp", attr.max_qp, (1 << 20) - 16),
    ];
    for (name, ours, kernels) in told {
        assert!(ours >= kernels, "{name}: {ours}");
    }
}

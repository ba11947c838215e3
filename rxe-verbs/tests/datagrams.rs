//! UD: address handles, Q_Keys, the GRH, and datagrams to multicast groups.

mod common;

use common::*;
use rxe_verbs::*;

const QKEY: Qkey = Qkey::new(0x1111_1111);
const GRH: usize = 40;

/// A device with a UD queue pair in RTS and an inbox with posted receives.
struct Talker {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
    inbox: MemoryRegion,
}

const RECEIVE_SIZE: usize = 2048;

impl Talker {
    fn new(device: Device, receives: u64) -> Self {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(256).unwrap();
        let qp = pd.qp(&cq).service(QpType::Ud).qkey(QKEY).build().unwrap();
        qp.activate().unwrap();
        let inbox = pd.register(RECEIVE_SIZE * 16, Access::LOCAL_WRITE).unwrap();
        let talker = Self { device, pd, cq, qp, inbox };
        (0..receives).for_each(|id| talker.receive(id));
        talker
    }

    fn receive(&self, id: u64) {
        let start = usize::try_from(id).unwrap() * RECEIVE_SIZE;
        self.qp.recv(id, &[self.inbox.slice(start..start + RECEIVE_SIZE)]).unwrap();
    }

    fn gid(&self) -> Gid {
        self.device.gids()[usize::from(self.device.preferred_gid())]
    }

    fn say(&self, ah: &AddressHandle, qpn: Qpn, bytes: &[u8]) {
        self.qp.send_bytes(99, bytes).to(ah, qpn, QKEY).post().unwrap();
        let done = self.cq.wait_one(TIMEOUT).unwrap();
        assert_eq!((done.id, done.status, done.op), (99, Status::Success, CompletionOp::Send));
    }

    /// Waits for the next datagram. Returns its completion, GRH and payload.
    fn hear(&self) -> (Completion, Vec<u8>, Vec<u8>) {
        let done = self.cq.wait_one(TIMEOUT).unwrap();
        assert_eq!(done.status, Status::Success, "{:?}", self.device.explain());
        assert!(done.grh);
        let start = usize::try_from(done.id).unwrap() * RECEIVE_SIZE;
        let mut bytes = self.inbox.to_vec(start..start + done.byte_len as usize).unwrap();
        let payload = bytes.split_off(GRH);
        (done, bytes, payload)
    }
}

#[test]
fn a_datagram_can_be_answered_by_its_completion() {
    let (a, b) = (Talker::new(open(address()), 1), Talker::new(open(address()), 1));
    let ah = a.pd.create_ah_to(b.gid()).unwrap();
    a.qp.send_bytes(99, b"ping").imm(7).to(&ah, b.qp.qpn(), QKEY).post().unwrap();
    assert_eq!(a.cq.wait_one(TIMEOUT).unwrap().id, 99);
    let (done, grh, bytes) = b.hear();
    assert_eq!(bytes, b"ping");
    assert_eq!((done.src_qp, done.imm), (a.qp.qpn(), Some(Immediate::Data(7))));
    assert_eq!((done.byte_len, done.op), (44, CompletionOp::Recv));
    let back = b.pd.ah_from_completion(&done, &grh).unwrap();
    assert_eq!(back.address().dgid, a.gid());
    b.say(&back, done.src_qp, b"pong");
    assert_eq!(a.hear().2, b"pong");
}

#[test]
fn a_whole_path_mtu_goes_and_one_byte_more_does_not() {
    let (a, b) = (Talker::new(open(address()), 0), Talker::new(open(address()), 0));
    let mtu = a.device.active_mtu().bytes();
    let inbox = b.pd.register(GRH + mtu, Access::LOCAL_WRITE).unwrap();
    b.qp.recv(1, &[inbox.slice(..)]).unwrap();
    let outbox = a.pd.register(mtu + 1, Access::empty()).unwrap();
    let data = pattern(mtu + 1, 3);
    outbox.write_at(0, &data).unwrap();
    let ah = a.pd.create_ah_to(b.gid()).unwrap();
    let send = |len| {
        let request = a.qp.send(2, &[outbox.slice(..len)]).to(&ah, b.qp.qpn(), QKEY);
        request.post().unwrap();
        a.cq.wait_one(TIMEOUT).unwrap().status
    };
    assert_eq!(send(mtu), Status::Success);
    assert_eq!(b.cq.wait_one(TIMEOUT).unwrap().byte_len as usize, GRH + mtu);
    assert_eq!(inbox.to_vec(GRH..).unwrap(), data[..mtu]);
    assert_eq!(send(mtu + 1), Status::LocalLength);
    assert_eq!(a.qp.state(), QpState::Sqe);
}

#[test]
fn over_ipv6_the_grh_is_the_ipv6_header() {
    in_namespace("", || {
        let device = open("::1".parse().unwrap());
        let (a, b) = (Talker::new(device.clone(), 0), Talker::new(device, 1));
        let address = AddressVector {
            sgid_index: 0,
            dgid: b.gid(),
            flow_label: 0xa_bcde,
            traffic_class: 0x20,
            hop_limit: 9,
        };
        let ah = a.pd.create_ah(&address).unwrap();
        a.say(&ah, b.qp.qpn(), b"six");
        let (done, grh, bytes) = b.hear();
        assert_eq!(bytes, b"six");
        assert_eq!(grh[..4], [0x62, 0x0a, 0xbc, 0xde]);
        assert_eq!((&grh[8..24], grh[7]), (&a.gid().as_bytes()[..], 9));
        let back = b.pd.ah_from_completion(&done, &grh).unwrap();
        assert_eq!((back.address().flow_label, back.address().traffic_class), (0xa_bcde, 0x20));
    });
}

#[test]
fn a_wrong_q_key_is_not_let_in_and_counted() {
    let (a, b) = (Talker::new(open(address()), 0), Talker::new(open(address()), 1));
    let ah = a.pd.create_ah_to(b.gid()).unwrap();
    a.qp.send_bytes(1, b"let me in").to(&ah, b.qp.qpn(), Qkey::new(5)).post().unwrap();
    a.cq.wait_one(TIMEOUT).unwrap();
    a.say(&ah, b.qp.qpn(), b"friend");
    assert_eq!(b.hear().2, b"friend");
    let why = b.device.explain();
    assert!(why.iter().any(|line| line.contains("queue key")), "{why:?}");
}

#[test]
fn a_group_reaches_all_attached_the_sender_too_until_they_detach() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 up
        ip link set peer0 up
        for i in 1 2; do
            ip address add 10.9.0.$i/24 dev veth0
            ip address add fd09::$i/64 dev veth0 nodad
        done";
    in_namespace(setup, || {
        for (ip, own) in
            [("239.7.7.7", ["10.9.0.1", "10.9.0.2"]), ("ff0e::7:7", ["fd09::1", "fd09::2"])]
        {
            let group = Gid::from(ip.parse::<std::net::IpAddr>().unwrap());
            let open =
                |own: &str| Device::options("veth0").address(own.parse().unwrap()).open().unwrap();
            let [a, b] = own.map(|own| Talker::new(open(own), 5));
            let ah = a.pd.create_ah_to(group).unwrap();
            a.qp.attach_multicast(group).unwrap();
            b.qp.attach_multicast(group).unwrap();
            let second = b.pd.qp(&b.cq).service(QpType::Ud).qkey(QKEY).build().unwrap();
            second.activate().unwrap();
            second.recv(5, &[b.inbox.slice(5 * RECEIVE_SIZE..6 * RECEIVE_SIZE)]).unwrap();
            second.attach_multicast(group).unwrap();

            let shout = |text: &[u8]| {
                a.qp.send_bytes(99, text)
                    .to(&ah, Qpn::MULTICAST, QKEY)
                    .unsignaled()
                    .post()
                    .unwrap();
            };
            shout(b"all");
            let (done, grh, bytes) = a.hear();
            assert_eq!((bytes.as_slice(), done.src_qp), (&b"all"[..], a.qp.qpn()));
            let back = a.pd.ah_from_completion(&done, &grh).unwrap();
            assert_eq!(back.address().dgid, a.gid());
            let mut heard = [b.hear().0.qpn, b.hear().0.qpn];
            heard.sort();
            let mut expected = [b.qp.qpn(), second.qpn()];
            expected.sort();
            assert_eq!(heard, expected, "each of two queue pairs has a copy");

            // The last queue pair that is detached or destroyed leaves the group.
            if group.to_ip().is_ipv4() {
                b.qp.detach_multicast(group).unwrap();
                drop(second);
            } else {
                drop(second);
                b.qp.detach_multicast(group).unwrap();
            }
            shout(b"again");
            assert_eq!(a.hear().2, b"again");
            assert_eq!(b.cq.poll_one().unwrap(), None);
            assert_eq!(b.device.counters().rcvd_pkts, 1, "the interface has left the group");
        }
    });
}

#[test]
fn misuse_is_told_and_changes_nothing() {
    let a = Talker::new(open(address()), 0);
    let text = |result: Result<()>| result.unwrap_err().to_string();
    assert!(text(a.qp.send_bytes(1, b"x").post()).contains("address handle"));
    let rc = a.pd.qp(&a.cq).build().unwrap();
    assert!(text(a.qp.connect(&rc.endpoint(), &ConnectOptions::default())).contains("activate"));
    assert!(text(rc.activate()).contains("connect"));
    assert_eq!((a.qp.state(), rc.state()), (QpState::Rts, QpState::Reset));
    let foreign = a.pd.create_ah_to("::1".parse::<std::net::IpAddr>().unwrap().into());
    assert!(foreign.unwrap_err().to_string().contains("famil"));
    let group = Gid::from("239.7.7.7".parse::<std::net::IpAddr>().unwrap());
    assert!(text(rc.attach_multicast(group)).contains("only UD"));
    assert!(text(a.qp.attach_multicast(a.gid())).contains("group"));
    assert_eq!(a.qp.detach_multicast(group).unwrap_err().errno(), libc::EINVAL);
    let sent = Completion::new(1, Status::Success, a.qp.qpn(), rxe_core::types::Time::ZERO);
    assert!(a.pd.ah_from_completion(&sent, &[0; 40]).is_err());
    let received = Completion { grh: true, ..sent };
    assert!(a.pd.ah_from_completion(&received, &[0; 40]).is_err());
    assert!(a.pd.ah_from_completion(&received, &[0; 39]).is_err());
}

#[test]
fn an_address_handle_of_another_domain_can_not_be_used() {
    let (a, b) = (Talker::new(open(address()), 0), Talker::new(open(address()), 1));
    let other = a.device.create_pd().unwrap();
    let ah = other.create_ah_to(b.gid()).unwrap();
    a.qp.send_bytes(1, b"x").to(&ah, b.qp.qpn(), QKEY).post().unwrap();
    assert_eq!(a.cq.wait_one(TIMEOUT).unwrap().status, Status::LocalQpOperation);
}

/// Otherwise the datagram would leave from the other device's address.
#[test]
fn an_address_handle_of_another_device_can_not_be_used() {
    let (a, b) = (Talker::new(open(address()), 0), Talker::new(open(address()), 1));
    let ah = b.pd.create_ah_to(b.gid()).unwrap();
    a.qp.send_bytes(1, b"x").to(&ah, b.qp.qpn(), QKEY).post().unwrap();
    assert_eq!(a.cq.wait_one(TIMEOUT).unwrap().status, Status::LocalQpOperation);
}

#[test]
fn a_queue_pair_may_be_deaf_to_what_it_says_itself() {
    let group = Gid::from(std::net::IpAddr::from([239, 9, 9, 17]));
    let device = open(address());
    let (plain, other) = (Talker::new(device.clone(), 2), Talker::new(device.clone(), 2));
    let deaf = plain.pd.qp(&plain.cq).service(QpType::Ud).qkey(QKEY).block_own_multicast(true);
    let deaf = deaf.build().unwrap();
    deaf.activate().unwrap();
    deaf.recv(50, &[plain.inbox.slice(10 * RECEIVE_SIZE..11 * RECEIVE_SIZE)]).unwrap();
    for qp in [&plain.qp, &other.qp, &deaf] {
        qp.attach_multicast(group).unwrap();
    }
    let ah = plain.pd.create_ah_to(group).unwrap();
    // All other members receive the datagram.
    deaf.send_bytes(98, b"mine").to(&ah, Qpn::MULTICAST, QKEY).post().unwrap();
    assert_eq!(other.hear().2, b"mine");
    let ids = |count| {
        let mut ids: Vec<_> = (0..count).map(|_| plain.cq.wait_one(TIMEOUT).unwrap().id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids(2), [0, 98], "sent, and heard by the plain one");
    // The queue pair receives datagrams of others. A datagram of its own would have taken its
    // receive.
    other
        .qp
        .send_bytes(97, b"yours")
        .to(&other.pd.create_ah_to(group).unwrap(), Qpn::MULTICAST, QKEY)
        .post()
        .unwrap();
    assert_eq!(ids(2), [1, 50]);
    let connected = plain.pd.qp(&plain.cq).block_own_multicast(true).build().unwrap_err();
    assert_eq!(connected.errno(), libc::EINVAL, "{connected}");
}

//! Connections by address and port, where both ends are rxe.

mod common;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rxe_verbs::cm::*;
use rxe_verbs::*;

/// A device with an event channel, a protection domain and a completion queue.
struct Program {
    device: Device,
    channel: EventChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    ip: IpAddr,
}

impl Program {
    fn new() -> Self {
        let ip = address();
        Self::on(open(ip), ip)
    }

    fn on(device: Device, ip: IpAddr) -> Self {
        let channel = EventChannel::on(std::slice::from_ref(&device)).unwrap();
        let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(256).unwrap());
        Self { device, channel, pd, cq, ip }
    }

    fn id(&self, space: PortSpace) -> CmId {
        self.channel.create_id(space).unwrap()
    }

    fn listen(&self, space: PortSpace) -> CmId {
        let id = self.id(space);
        id.bind_addr(SocketAddr::new(self.ip, 0)).unwrap();
        id.listen(8).unwrap();
        id
    }

    fn expect(&self, kind: CmEventKind) -> CmEvent {
        let event = self.channel.wait_event(TIMEOUT).unwrap();
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    }

    fn quiet(&self) {
        assert!(self.channel.get_event(Some(Duration::ZERO)).unwrap().is_none());
    }

    /// Returns an identifier with a resolved route to a server.
    fn towards(&self, server: &CmId) -> CmId {
        self.towards_address(server.port_space(), server.local_addr().unwrap())
    }

    fn towards_address(&self, space: PortSpace, address: SocketAddr) -> CmId {
        let id = self.id(space);
        id.resolve_addr(None, address).unwrap();
        self.expect(CmEventKind::AddrResolved);
        id.resolve_route().unwrap();
        self.expect(CmEventKind::RouteResolved);
        id
    }
}

fn param(data: &[u8]) -> ConnParam {
    ConnParam { private_data: data.to_vec(), ..ConnParam::default() }
}

/// Connects two programs. Returns each with its end of the connection, the client first.
fn connected() -> ((Program, CmId), (Program, CmId)) {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    a.create_qp(client.pd.qp(&client.cq)).unwrap();
    a.connect(&ConnParam { responder_resources: 3, initiator_depth: 5, ..param(b"hello") })
        .unwrap();
    let request = server.expect(CmEventKind::ConnectRequest);
    assert_eq!(request.listener.unwrap().key(), listener.key());
    let CmParam::Conn(asked) = &request.param else { panic!() };
    assert_eq!(&asked.private_data[..6], b"hello\0");
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 3), "from this side");
    let b = request.id;
    assert_eq!(b.peer_addr(), a.local_addr());
    assert_eq!((b.local_addr(), a.peer_addr()), (listener.local_addr(), listener.local_addr()));
    b.create_qp(server.pd.qp(&server.cq)).unwrap();
    b.accept(&ConnParam { responder_resources: 4, initiator_depth: 3, ..param(b"welcome") })
        .unwrap();
    let established = client.expect(CmEventKind::Established);
    assert_eq!(&established.param.private_data()[..8], b"welcome\0");
    server.expect(CmEventKind::Established);
    ((client, a), (server, b))
}

#[test]
fn a_request_can_be_accepted_after_private_data_was_too_long() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    a.create_qp(client.pd.qp(&client.cq)).unwrap();
    assert!(a.connect(&param(&[1; 57])).is_err());
    a.connect(&param(&[1; 56])).unwrap();
    let b = server.expect(CmEventKind::ConnectRequest).id;
    b.create_qp(server.pd.qp(&server.cq)).unwrap();
    assert!(b.accept(&param(&[2; 197])).is_err());
    b.accept(&param(&[2; 196])).unwrap();
    assert_eq!(client.expect(CmEventKind::Established).param.private_data(), [2; 196]);
    server.expect(CmEventKind::Established);
}

/// The server's descriptor must not become readable. A program that is woken and then calls
/// `get_event` must find an event.
/// `get_event` must find an event there.
#[test]
fn a_request_with_a_larger_path_mtu_than_the_link_s_is_refused_without_the_program() {
    // A link of its own, because a device follows the MTU of its link even while it is open.
    let setup = "ip link add west mtu 1500 type veth peer name east; ip addr add 192.0.2.1/24 dev west; \
                 ip link set west up; ip link set east up";
    in_namespace(setup, || {
        let client = Program::new();
        let ip = IpAddr::from([192, 0, 2, 1]);
        let server = Program::on(Device::options("west").address(ip).open().unwrap(), ip);
        assert!(server.device.active_mtu() < client.device.active_mtu());
        let listener = server.listen(PortSpace::Tcp);
        let a = client.towards(&listener);
        a.create_qp(client.pd.qp(&client.cq)).unwrap();
        a.connect(&ConnParam::default()).unwrap();
        let event = client.channel.wait_event(TIMEOUT).unwrap();
        assert_eq!((event.kind, event.status), (CmEventKind::Rejected, 26), "invalid path MTU");
        assert!(!readable(&server.channel, Duration::ZERO));
    });
}

#[test]
fn two_programs_connect_talk_and_part() {
    let ((client, a), (server, b)) = connected();
    let (x, y) = (a.qp().unwrap(), b.qp().unwrap());
    let (mine, theirs) = (x.query().unwrap(), y.query().unwrap());
    assert_eq!((mine.qp_state, theirs.qp_state), (QpState::Rts, QpState::Rts));
    assert_eq!((mine.max_rd_atomic, mine.max_dest_rd_atomic), (4, 3), "what both allow");
    assert_eq!((theirs.max_rd_atomic, theirs.max_dest_rd_atomic), (3, 4));
    assert_ne!(mine.sq_psn, mine.rq_psn);
    assert_eq!((mine.sq_psn, mine.rq_psn), (theirs.rq_psn, theirs.sq_psn));
    let inbox = server.pd.register(64, Access::LOCAL_WRITE).unwrap();
    y.recv(1, &[inbox.slice(..)]).unwrap();
    x.send_bytes(2, b"hello").post().unwrap();
    assert_eq!(client.cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    assert_eq!(server.cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    assert_eq!(inbox.to_vec(..5).unwrap(), b"hello");
    a.disconnect().unwrap();
    server.expect(CmEventKind::Disconnected);
    b.disconnect().unwrap();
    client.expect(CmEventKind::Disconnected);
    assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err));
    client.expect(CmEventKind::TimewaitExit);
    server.expect(CmEventKind::TimewaitExit);
    assert!(a.disconnect().is_err() && b.disconnect().is_err());
}

/// Returns how many datagrams the kernel dropped because a socket buffer was full.
fn dropped_by_sockets() -> u32 {
    let counters = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut udp = counters.lines().filter(|line| line.starts_with("Udp: "));
    let mut words = || udp.next().unwrap().split(' ');
    let column = words().position(|name| name == "RcvbufErrors").unwrap();
    words().nth(column).unwrap().parse().unwrap()
}

#[test]
fn hundreds_connect_and_part_at_once_on_one_address_and_no_message_is_lost() {
    const COUNT: usize = 300;
    in_namespace("", || {
        let ip = "127.0.0.1".parse().unwrap();
        let open = || Device::options("lo").address(ip).shared_memory(false).open().unwrap();
        let (client, server) = (Program::on(open(), ip), Program::on(open(), ip));
        let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
        let listener = server.id(PortSpace::Tcp);
        listener.bind_addr(SocketAddr::new(ip, 0)).unwrap();
        listener.listen(COUNT).unwrap();
        let asking: Vec<_> = (0..COUNT).map(|_| client.towards(&listener)).collect();
        for id in &asking {
            id.create_qp(client.pd.qp(&client.cq).cap(cap)).unwrap();
        }
        for id in &asking {
            id.connect(&param(b"")).unwrap();
        }
        // Dropping an identifier ends its connection, so all are kept.
        let mut taken = HashMap::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..COUNT).for_each(|_| drop(client.expect(CmEventKind::Established)));
                for id in &asking {
                    id.disconnect().unwrap();
                }
                let mut parted = 0;
                while parted < COUNT {
                    match client.channel.wait_event(TIMEOUT).unwrap().kind {
                        CmEventKind::Disconnected => parted += 1,
                        CmEventKind::TimewaitExit => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
            let mut parted = 0;
            while parted < COUNT {
                let event = server.channel.wait_event(TIMEOUT).unwrap();
                match event.kind {
                    CmEventKind::ConnectRequest => {
                        event.id.create_qp(server.pd.qp(&server.cq).cap(cap)).unwrap();
                        event.id.accept(&param(b"")).unwrap();
                        taken.insert(event.id.key(), event.id);
                    }
                    CmEventKind::Disconnected => {
                        taken[&event.id.key()].disconnect().unwrap();
                        parted += 1;
                    }
                    CmEventKind::Established | CmEventKind::TimewaitExit => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        assert_eq!(dropped_by_sockets(), 0);
    });
}

#[test]
fn requests_for_a_service_whose_listener_has_ended_come_to_who_ended_it() {
    in_namespace("", || {
        let ip = "127.0.0.1".parse().unwrap();
        let server = Program::on(open(ip), ip);
        let listener = server.listen(PortSpace::Tcp);
        let at = listener.local_addr().unwrap();
        // After the listener ends there is one claim (bit 63) for both port spaces, because the
        // next listener may use either.
        let tcp = PortSpace::Tcp.service_id(at.port());
        let services = [tcp, PortSpace::Udp.service_id(at.port()), 1 << 63 | tcp];
        let directory = directory_of("127.0.0.1");
        let claimed = || services.map(|id| directory.join(format!("service-{id:016x}")).exists());
        assert_eq!(claimed(), [true, false, false]);
        drop(listener);
        assert_eq!(claimed(), [false, false, true]);
        let next = server.id(PortSpace::Udp);
        next.bind_addr(at).unwrap();
        next.listen(1).unwrap();
        assert_eq!(claimed(), [false, true, false]);
    });
}

#[test]
fn who_drops_an_identifier_ends_its_connection() {
    let ((client, a), (server, b)) = connected();
    drop(a);
    server.expect(CmEventKind::Disconnected);
    b.disconnect().unwrap();
    client.quiet();
}

#[test]
fn a_refusal_has_a_reason() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    let qp = a.create_qp(client.pd.qp(&client.cq)).unwrap();
    a.connect(&param(b"")).unwrap();
    let request = server.expect(CmEventKind::ConnectRequest);
    request.id.reject(b"not you").unwrap();
    let event = client.channel.wait_event(TIMEOUT).unwrap();
    assert_eq!(event.kind, CmEventKind::Rejected);
    assert_eq!(event.status, i32::from(RejReason::CONSUMER_DEFINED.0));
    assert_eq!(&event.param.private_data()[..8], b"not you\0");
    assert_eq!(qp.state(), QpState::Err);
    // No one listens on this port.
    drop(listener);
    let a = client.id(PortSpace::Tcp);
    let nowhere = SocketAddr::new(server.ip, 1);
    a.resolve_addr(None, nowhere).unwrap();
    client.expect(CmEventKind::AddrResolved);
    a.resolve_route().unwrap();
    client.expect(CmEventKind::RouteResolved);
    a.create_qp(client.pd.qp(&client.cq)).unwrap();
    a.connect(&param(b"")).unwrap();
    // The server's device answers although its connection manager is gone, because it had one
    // before.
    let event = client.channel.wait_event(TIMEOUT).unwrap();
    assert_eq!(event.status, i32::from(RejReason::INVALID_SERVICE_ID.0));
}

#[test]
fn requests_that_nobody_takes_are_refused_when_the_channel_goes() {
    let client = Program::new();
    let server = Program::new();
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    a.create_qp(client.pd.qp(&client.cq)).unwrap();
    a.connect(&param(b"")).unwrap();
    assert!(readable(&server.channel, TIMEOUT));
    drop(listener);
    drop(server.channel);
    let event = client.channel.wait_event(TIMEOUT).unwrap();
    assert_eq!(event.kind, CmEventKind::Rejected);
}

#[test]
fn a_program_may_manage_its_queue_pair_itself() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    let (x, y) =
        (client.pd.qp(&client.cq).build().unwrap(), server.pd.qp(&server.cq).build().unwrap());
    let step = |id: &CmId, qp: &QueuePair, to| {
        let (attr, mask) = id.init_qp_attr(to).unwrap();
        qp.modify(&attr, mask).unwrap();
    };
    step(&a, &x, QpState::Init);
    assert!(a.init_qp_attr(QpState::Rtr).is_err(), "the peer is not known");
    assert!(a.connect(&param(b"")).is_err(), "which queue pair?");
    a.connect(&ConnParam { qp_num: Some(x.qpn()), ..param(b"") }).unwrap();
    let b = server.expect(CmEventKind::ConnectRequest).id;
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        step(&b, &y, to);
    }
    b.accept(&ConnParam { qp_num: Some(y.qpn()), ..param(b"") }).unwrap();
    client.expect(CmEventKind::ConnectResponse);
    step(&a, &x, QpState::Rtr);
    step(&a, &x, QpState::Rts);
    a.establish().unwrap();
    server.expect(CmEventKind::Established);
    let inbox = server.pd.register(64, Access::LOCAL_WRITE).unwrap();
    y.recv(1, &[inbox.slice(..)]).unwrap();
    x.send_bytes(2, b"hello").post().unwrap();
    assert_eq!(server.cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
}

#[test]
fn the_first_packet_says_what_a_lost_rtu_would_have_said() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let a = client.towards(&listener);
    let x = client.pd.qp(&client.cq).build().unwrap();
    let step = |to| {
        let (attr, mask) = a.init_qp_attr(to).unwrap();
        x.modify(&attr, mask).unwrap();
    };
    step(QpState::Init);
    a.connect(&ConnParam { qp_num: Some(x.qpn()), ..param(b"") }).unwrap();
    let b = server.expect(CmEventKind::ConnectRequest).id;
    let y = b.create_qp(server.pd.qp(&server.cq)).unwrap();
    let inbox = server.pd.register(64, Access::LOCAL_WRITE).unwrap();
    y.recv(1, &[inbox.slice(..)]).unwrap();
    b.accept(&param(b"")).unwrap();
    client.expect(CmEventKind::ConnectResponse);
    step(QpState::Rtr);
    step(QpState::Rts);
    // The client sends no RTU, because it does not call `establish`.
    server.quiet();
    x.send_bytes(2, b"hello").post().unwrap();
    server.expect(CmEventKind::Established);
    assert!(server.device.poll_async_event().is_none(), "IBV_EVENT_COMM_EST is for RTR only");
}

#[test]
fn a_datagram_service_is_found_and_answers() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Udp);
    let a = client.towards(&listener);
    let x = a.create_qp(client.pd.qp(&client.cq)).unwrap();
    assert_eq!((x.service(), x.state()), (QpType::Ud, QpState::Rts));
    a.connect(&param(b"who?")).unwrap();
    let request = server.expect(CmEventKind::ConnectRequest);
    assert_eq!(&request.param.private_data()[..5], b"who?\0");
    let b = request.id;
    let y = b.create_qp(server.pd.qp(&server.cq)).unwrap();
    let inbox = server.pd.register(256, Access::LOCAL_WRITE).unwrap();
    y.recv(1, &[inbox.slice(..)]).unwrap();
    b.accept(&param(b"me")).unwrap();
    let CmParam::Ud(found) = client.expect(CmEventKind::Established).param else { panic!() };
    assert_eq!((found.qpn, found.qkey), (y.qpn(), UDP_QKEY));
    let ah = client.pd.create_ah(&found.ah).unwrap();
    x.send_bytes(2, b"hello").to(&ah, found.qpn, found.qkey).post().unwrap();
    assert_eq!(server.cq.wait_one(TIMEOUT).unwrap().byte_len, 45);
    // The server refuses this request.
    let c = client.towards(&listener);
    c.connect(&param(b"")).unwrap();
    server.expect(CmEventKind::ConnectRequest).id.reject(b"").unwrap();
    let event = client.channel.wait_event(TIMEOUT).unwrap();
    assert_eq!((event.kind, event.status), (CmEventKind::Unreachable, 2));
}

#[test]
fn a_group_is_joined_and_heard() {
    let (speaker, hearer) = (Program::new(), Program::new());
    let group: IpAddr = "239.47.91.7".parse().unwrap();
    let mapped: IpAddr = "::ffff:239.47.91.7".parse().unwrap();
    let join = |program: &Program, group| {
        let id = program.id(PortSpace::Udp);
        id.bind_addr(SocketAddr::new(program.ip, 0)).unwrap();
        let qp = id.create_qp(program.pd.qp(&program.cq)).unwrap();
        id.join_multicast(group).unwrap();
        let CmParam::Ud(to) = program.expect(CmEventKind::MulticastJoin).param else { panic!() };
        assert_eq!((to.qpn, to.qkey), (Qpn::MULTICAST, UDP_QKEY));
        (id, qp, to)
    };
    // An IPv4-mapped address, as getaddrinfo returns it for IPv6.
    let (id, qp, _) = join(&hearer, mapped);
    let inbox = hearer.pd.register(256, Access::LOCAL_WRITE).unwrap();
    qp.recv(1, &[inbox.slice(..)]).unwrap();
    let (_other, from, to) = join(&speaker, group);
    let ah = speaker.pd.create_ah(&to.ah).unwrap();
    from.send_bytes(2, b"all").to(&ah, to.qpn, to.qkey).post().unwrap();
    assert_eq!(hearer.cq.wait_one(TIMEOUT).unwrap().byte_len, 43);
    id.leave_multicast(group).unwrap();
    assert!(id.leave_multicast(group).is_err());
    for no_group in ["10.0.0.1", "::ffff:10.0.0.1", "ff02::1"] {
        assert!(id.join_multicast(no_group.parse().unwrap()).is_err());
    }
}

#[test]
fn a_group_is_left_whether_or_not_the_queue_pair_hears_it() {
    let program = Program::new();
    let group: IpAddr = "239.47.91.8".parse().unwrap();
    let id = program.id(PortSpace::Udp);
    id.bind_addr(SocketAddr::new(program.ip, 0)).unwrap();
    let join = || {
        id.join_multicast(group).unwrap();
        program.expect(CmEventKind::MulticastJoin);
    };
    // Without a queue pair, joining only returns where to send.
    join();
    let qp = id.create_qp(program.pd.qp(&program.cq)).unwrap();
    id.leave_multicast(group).unwrap();
    // The queue pair receives the group's datagrams until it has left as often as it has joined.
    join();
    join();
    id.leave_multicast(group).unwrap();
    let inbox = program.pd.register(256, Access::LOCAL_WRITE).unwrap();
    qp.recv(1, &[inbox.slice(..)]).unwrap();
    let ah = program.pd.create_ah_to(group.into()).unwrap();
    qp.send_bytes(2, b"all").to(&ah, Qpn::MULTICAST, UDP_QKEY).post().unwrap();
    for _ in 0..2 {
        assert_eq!(program.cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    }
    id.leave_multicast(group).unwrap();
    assert!(id.leave_multicast(group).is_err());
}

#[test]
fn ports_are_taken_and_given_back() {
    let server = Program::new();
    let listener = server.listen(PortSpace::Tcp);
    let address = listener.local_addr().unwrap();
    assert_ne!(address.port(), 0);
    let taken = server.id(PortSpace::Tcp).bind_addr(address).unwrap_err();
    assert_eq!(taken.errno(), 98, "{taken}");
    server.id(PortSpace::Udp).bind_addr(address).unwrap();
    assert!(listener.bind_addr(address).is_err(), "it has one");
    drop(listener);
    let again = server.id(PortSpace::Tcp);
    again.bind_addr(address).unwrap();
    again.listen(0).unwrap();
    let elsewhere = server.id(PortSpace::Tcp).bind_addr("192.0.2.1:5".parse().unwrap());
    assert_eq!(elsewhere.unwrap_err().errno(), 19, "no device has that address");
}

#[test]
fn all_of_ipv4_and_all_of_ipv6_are_two_listeners() {
    let (client, server) = (Program::new(), Program::new());
    let six = server.id(PortSpace::Tcp);
    six.set_afonly(true).unwrap();
    six.bind_addr("[::]:0".parse().unwrap()).unwrap();
    six.listen(0).unwrap();
    let port = six.local_addr().unwrap().port();
    let four = server.id(PortSpace::Tcp);
    four.bind_addr(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).unwrap();
    four.listen(0).unwrap();
    let ask = || {
        let id = client.id(PortSpace::Tcp);
        id.resolve_addr(None, SocketAddr::new(server.ip, port)).unwrap();
        client.expect(CmEventKind::AddrResolved);
        id.resolve_route().unwrap();
        client.expect(CmEventKind::RouteResolved);
        id.create_qp(client.pd.qp(&client.cq)).unwrap();
        id.connect(&param(b"")).unwrap();
        let asked = server.expect(CmEventKind::ConnectRequest);
        asked.listener.map(|listener| listener.key())
    };
    assert_eq!(ask(), Some(four.key()));
    drop((four, six));
    let both = server.id(PortSpace::Tcp);
    both.set_afonly(false).unwrap();
    both.bind_addr(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
    both.listen(0).unwrap();
    let four = server.id(PortSpace::Tcp);
    let taken = four.bind_addr(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).unwrap_err();
    assert_eq!(taken.errno(), libc::EADDRNOTAVAIL, "{taken}");
    assert_eq!(ask(), Some(both.key()));
}

/// Creates two identifiers that listen on one port, with room for one request each. The first
/// listens on all IPv4 addresses, the second on all IPv6 addresses.
fn four_and_six(server: &Program) -> [CmId; 2] {
    let four = server.id(PortSpace::Tcp);
    four.bind_addr("0.0.0.0:0".parse().unwrap()).unwrap();
    four.listen(1).unwrap();
    let port = four.local_addr().unwrap().port();
    [four, listen_on_six(server, port)]
}

fn listen_on_six(server: &Program, port: u16) -> CmId {
    let six = server.id(PortSpace::Tcp);
    six.set_afonly(true).unwrap();
    six.bind_addr(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).unwrap();
    six.listen(1).unwrap();
    six
}

#[test]
fn a_request_to_one_of_two_listeners_is_refused_when_that_one_goes() {
    let (client, server) = (Program::new(), Program::new());
    let [four, _six] = four_and_six(&server);
    let port = four.local_addr().unwrap().port();
    let id = client.towards_address(PortSpace::Tcp, SocketAddr::new(server.ip, port));
    id.create_qp(client.pd.qp(&client.cq)).unwrap();
    id.connect(&param(b"")).unwrap();
    assert!(readable(&server.channel, TIMEOUT));
    drop(four);
    let event = client.channel.wait_event(TIMEOUT).unwrap();
    let reason = i32::from(RejReason::CONSUMER_DEFINED.0);
    assert_eq!((event.kind, event.status), (CmEventKind::Rejected, reason));
    server.quiet();
}

#[test]
fn a_listener_that_goes_takes_its_backlog_with_it() {
    let (client, server) = (Program::new(), Program::new());
    let [four, six] = four_and_six(&server);
    let port = four.local_addr().unwrap().port();
    drop(six);
    for _ in 0..3 {
        drop(listen_on_six(&server, port));
    }
    let other = server.listen(PortSpace::Tcp);
    let ask = |port| {
        let id = client.towards_address(PortSpace::Tcp, SocketAddr::new(server.ip, port));
        id.create_qp(client.pd.qp(&client.cq)).unwrap();
        id.connect(&param(b"")).unwrap();
        id
    };
    let [first, second] = [ask(port), ask(port)];
    let third = ask(other.local_addr().unwrap().port());
    // The second request finds no room, is dropped, and is sent again, before or after the third.
    let [mut came, mut asked] = [[None; 3], [&first, &second, &third].map(|id| id.local_addr())];
    for peer in &mut came {
        *peer = server.expect(CmEventKind::ConnectRequest).id.peer_addr();
    }
    assert_eq!(came[0], asked[0]);
    came.sort();
    asked.sort();
    assert_eq!(came, asked);
}

/// Drops a client's requests while threads wait on the server's channel. Each request that was
/// reported must also be reported as ended.
fn requests_that_are_given_up(client: &Program, server: &Program) {
    const COUNT: usize = 300;
    const LAST: &[u8] = b"the last";
    let listener = server.id(PortSpace::Tcp);
    listener.bind_addr(SocketAddr::new(server.ip, 0)).unwrap();
    listener.listen(0).unwrap();
    let (requests, ends) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (last, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let known = Mutex::new(HashMap::new());
    // Acts as a program that keeps a table of its identifiers and is slow to insert one.
    let learn = |event: CmEvent| {
        let key = event.id.key();
        match event.kind {
            CmEventKind::ConnectRequest if event.param.private_data().starts_with(LAST) => {
                last.store(true, Ordering::Relaxed);
            }
            CmEventKind::ConnectRequest => {
                thread::sleep(Duration::from_millis(1));
                known.lock().unwrap().insert(key, event.id);
                requests.fetch_add(1, Ordering::Relaxed);
            }
            CmEventKind::Rejected if known.lock().unwrap().contains_key(&key) => {
                ends.fetch_add(1, Ordering::Relaxed);
            }
            other => println!("{other:?} of an unknown identifier"),
        }
        Some(())
    };
    let hears = || {
        while !over.load(Ordering::Relaxed) {
            if server.channel.take_event(learn).is_none() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    };
    let heard = || [&requests, &ends].map(|count| count.load(Ordering::Relaxed));
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(hears)));
        let ask = |data| {
            let id = client.towards(&listener);
            id.connect(&ConnParam { qp_num: Some(Qpn::from_wire(0x77)), ..param(data) }).unwrap();
            id
        };
        (0..COUNT).for_each(|_| drop(ask(b"")));
        // Messages arrive in order, so this request arrives after all others.
        let _asks = ask(LAST);
        let until = Instant::now() + TIMEOUT;
        while !(last.load(Ordering::Relaxed) && heard()[0] == heard()[1]) && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
    });
    let [requests, ends] = heard();
    assert!(requests > 0 && requests == ends, "{requests} requests, {ends} ends");
}

#[test]
fn threads_on_one_channel_hear_every_event() {
    requests_that_are_given_up(&Program::new(), &Program::new());
}

#[test]
fn a_client_on_the_same_address_that_gives_up_is_heard() {
    let server = Program::new();
    let client = Program::on(open(server.ip), server.ip);
    requests_that_are_given_up(&client, &server);
}

#[test]
fn a_loopback_address_of_no_device_can_be_asked_for_but_not_listened_on() {
    let program = Program::new();
    let id = program.id(PortSpace::Tcp);
    id.bind_addr(SocketAddr::new(address(), 0)).unwrap();
    assert!(id.device().is_none());
    assert_eq!(id.listen(1).unwrap_err().errno(), libc::ENODEV);
    // For an address that is not assigned here, binding already fails.
    let elsewhere = program.id(PortSpace::Tcp).bind_addr("192.0.2.1:5".parse().unwrap());
    assert_eq!(elsewhere.unwrap_err().errno(), libc::ENODEV);
}

#[test]
fn events_follow_an_identifier_to_another_channel() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let other = EventChannel::on(std::slice::from_ref(&client.device)).unwrap();
    let id = client.id(PortSpace::Tcp);
    id.resolve_addr(None, listener.local_addr().unwrap()).unwrap();
    id.migrate(&other);
    client.quiet();
    let event = other.wait_event(TIMEOUT).unwrap();
    assert_eq!(event.kind, CmEventKind::AddrResolved);
    drop(event);
    let channel = client.channel;
    drop(channel);
    id.resolve_route().unwrap();
    assert_eq!(other.wait_event(TIMEOUT).unwrap().kind, CmEventKind::RouteResolved);
    assert!(!readable(&other, Duration::ZERO), "nothing waits");
}

#[test]
fn a_request_follows_its_listener_to_another_channel() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let other = EventChannel::on(std::slice::from_ref(&server.device)).unwrap();
    let a = client.towards(&listener);
    a.create_qp(client.pd.qp(&client.cq)).unwrap();
    a.connect(&param(b"")).unwrap();
    assert!(readable(&server.channel, TIMEOUT));
    listener.migrate(&other);
    drop(server.channel);
    let request = other.wait_event(TIMEOUT).unwrap();
    assert_eq!(request.kind, CmEventKind::ConnectRequest);
    request.id.create_qp(server.pd.qp(&server.cq)).unwrap();
    request.id.accept(&param(b"")).unwrap();
    client.expect(CmEventKind::Established);
    let event = other.wait_event(TIMEOUT).unwrap();
    assert_eq!((event.kind, event.id.key()), (CmEventKind::Established, request.id.key()));
}

#[test]
fn what_is_asked_out_of_turn_is_refused_and_harms_nothing() {
    let (client, server) = (Program::new(), Program::new());
    let listener = server.listen(PortSpace::Tcp);
    let id = client.id(PortSpace::Tcp);
    assert!(id.resolve_route().is_err());
    assert!(id.connect(&param(b"")).is_err());
    assert!(id.accept(&param(b"")).is_err());
    assert!(id.reject(b"").is_err());
    assert!(id.establish().is_err());
    assert!(id.disconnect().is_err());
    assert!(id.create_qp(client.pd.qp(&client.cq)).is_err(), "no device yet");
    assert!(listener.resolve_addr(None, "127.0.0.1:1".parse().unwrap()).is_err());
    let id = client.towards(&listener);
    id.create_qp(client.pd.qp(&client.cq)).unwrap();
    assert!(id.connect(&param(&[0; 57])).is_err(), "a request has room for 56 bytes");
    id.connect(&param(&[1; 56])).unwrap();
    assert!(id.connect(&param(b"")).is_err());
    let request = server.expect(CmEventKind::ConnectRequest);
    request.id.create_qp(server.pd.qp(&server.cq)).unwrap();
    request.id.accept(&param(b"")).unwrap();
    client.expect(CmEventKind::Established);
}

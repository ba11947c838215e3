//! Refused connections leave nothing behind. This test runs alone in its process, whose descriptors
//! it counts.

mod common;

use std::fs;
use std::net::SocketAddr;

use common::*;
use rxe_verbs::cm::*;

#[test]
fn refused_connections_leave_no_descriptor() {
    let (server, client) = (open(address()), open(address()));
    let channel = EventChannel::on(std::slice::from_ref(&server)).unwrap();
    let listener = channel.create_id(PortSpace::Tcp).unwrap();
    let ip = server.gids()[0].to_ip();
    listener.bind_addr(SocketAddr::new(ip, 0)).unwrap();
    listener.listen(8).unwrap();
    let nowhere = SocketAddr::new(ip, 1);
    let refused = || {
        // The descriptor of the channel stays open as long as anything refers to the channel.
        let channel = EventChannel::on(std::slice::from_ref(&client)).unwrap();
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, nowhere).unwrap();
        channel.wait_event(TIMEOUT).unwrap();
        id.resolve_route().unwrap();
        channel.wait_event(TIMEOUT).unwrap();
        let pd = client.create_pd().unwrap();
        let cq = client.create_cq(4).unwrap();
        id.create_qp(pd.qp(&cq)).unwrap();
        id.connect(&ConnParam::default()).unwrap();
        let event = channel.wait_event(TIMEOUT).unwrap();
        assert_eq!(event.kind, CmEventKind::Rejected);
    };
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    refused();
    let before = descriptors();
    for _ in 0..100 {
        refused();
    }
    assert_eq!(descriptors(), before);
}

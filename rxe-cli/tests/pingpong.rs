//! `rxe pingpong` with itself: over a link between two namespaces, and on one host. (With
//! ibv_rc_pingpong on a kernel device: the interop tests.)

mod util;

use util::{Both, LOOPBACK, VETH, both};

#[track_caller]
fn talked(both: &Both, size: u64, iters: u64) {
    for said in [&both.server, &both.client] {
        assert_eq!(said.code, 0, "{both:?}");
        assert_eq!(said.err, "");
        let lines: Vec<_> = said.out.lines().collect();
        assert_eq!(lines.len(), 4, "{both:?}");
        assert!(lines[0].starts_with("  local address:  LID 0x0000, QPN 0x"), "{}", lines[0]);
        assert!(lines[1].starts_with("  remote address: LID 0x0000, QPN 0x"), "{}", lines[1]);
        let bytes = format!("{} bytes in ", size * iters * 2);
        assert!(lines[2].starts_with(&bytes) && lines[2].ends_with(" Mbit/sec"), "{}", lines[2]);
        let iters = format!("{iters} iters in ");
        assert!(lines[3].starts_with(&iters) && lines[3].ends_with(" usec/iter"), "{}", lines[3]);
    }
    // Each says of the other what that says of itself.
    let part = |line: Option<&str>| line.unwrap().split(": ").nth(1).unwrap().trim().to_owned();
    let (server, client) = (&both.server.out, &both.client.out);
    assert_eq!(part(server.lines().next()), part(client.lines().nth(1)));
    assert_eq!(part(client.lines().next()), part(server.lines().nth(1)));
}

#[test]
fn two_hosts_exchange_messages() {
    let name = "two_hosts_exchange_messages";
    for (server, client, size, iters) in [
        ("", "10.9.0.1", 4096, 1000),
        ("-c -e", "-c -e 10.9.0.1", 4096, 1000),
        ("-s 1 -n 100 -r 4 -c", "-s 1 -n 100 -r 4 -c 10.9.0.1", 1, 100),
        ("-m 256 -s 100001 -n 30 -c", "-m 256 -s 100001 -n 30 -c 10.9.0.1", 100_001, 30),
        ("-d veth0 -g 2 -l 3", "-d rxe_veth1 -g 2 -N -o fd09::1", 4096, 1000),
    ] {
        let server = format!("pingpong {server}");
        let Some(said) = both(name, VETH, &server, &format!("pingpong {client}")) else { return };
        talked(&said, size, iters);
    }
}

#[test]
fn every_service_exchanges_messages() {
    let name = "every_service_exchanges_messages";
    for (options, size, iters) in [
        ("--transport uc -c", 4096, 1000),
        ("--transport uc -s 5000 -e", 5000, 1000),
        ("--transport ud -c", 1024, 1000),
        ("--transport ud -s 64 -e", 64, 1000),
    ] {
        let (server, client) =
            (format!("pingpong {options}"), format!("pingpong {options} 10.9.0.1"));
        let Some(said) = both(name, VETH, &server, &client) else { return };
        talked(&said, size, iters);
    }
    for options in ["", "-q 3 -r 5 -e -s 1", "-q 256 -n 3000"] {
        let server = format!("pingpong --transport srq --json -c {options}");
        let Some(said) = both(name, VETH, &server, &format!("{server} 10.9.0.1")) else { return };
        for end in [&said.server, &said.client] {
            assert_eq!(end.json()["transport"], "srq", "{said:?}");
        }
    }
}

#[test]
fn the_packet_backend_talks_with_the_udp_one() {
    let name = "the_packet_backend_talks_with_the_udp_one";
    for (server, client) in [("packet", "udp"), ("udp", "packet"), ("packet", "packet")] {
        let server = format!("pingpong -c --backend {server} --json");
        let client = format!("pingpong -c --backend {client} --json 10.9.0.1");
        let Some(said) = both(name, VETH, &server, &client) else { return };
        for end in [&said.server, &said.client] {
            let json = end.json();
            assert_eq!((&json["checked"], &json["iters"]), (&true.into(), &1000.into()));
        }
    }
}

#[test]
fn one_host_has_addresses_for_both_ends() {
    let name = "one_host_has_addresses_for_both_ends";
    for (server, client) in [
        ("pingpong", "pingpong 127.0.0.1"),
        ("pingpong -d lo", "pingpong -d lo 127.0.0.1"),
        ("pingpong --address 127.0.0.5", "pingpong --address 127.0.0.6 localhost"),
    ] {
        let Some(said) = both(name, LOOPBACK, server, client) else { return };
        talked(&said, 4096, 1000);
    }
}

#[test]
fn ends_that_do_not_fit_say_so() {
    let name = "ends_that_do_not_fit_say_so";
    for (server, client, who, what) in [
        ("-d veth0 -g 1", "-d veth1 -g 2 10.9.0.1", "server", "fd09::2 is IPv6: choose a GID"),
        ("--transport ud -s 1025", "--transport ud 10.9.0.1", "server", "use -s 1024 or less here"),
        ("-q 2", "-q 2 10.9.0.1", "server", "only --transport srq has several queue pairs"),
        ("-s 100 -n 10", "-s 200 -n 10 10.9.0.1", "client", "remote invalid request error"),
    ] {
        let server = format!("pingpong {server}");
        let Some(said) = both(name, VETH, &server, &format!("pingpong {client}")) else { return };
        assert!(said.server.code != 0 && said.client.code == 1, "{said:?}");
        let err = if who == "server" { &said.server.err } else { &said.client.err };
        assert!(err.contains(what) && err.lines().count() == 1, "{said:?}");
    }
}

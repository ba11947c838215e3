//! `rxe pingpong` with itself, over a link between two namespaces and on one host. The interop
//! tests run it with `ibv_rc_pingpong` on a kernel device.

use rxe_test_support::skipped;

mod util;

use util::{Both, Dir, L2, LOOPBACK, Said, VETH, both, both_as_root, in_namespace};

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
    // Each end's remote address is the other end's local address.
    let part = |line: Option<&str>| line.unwrap().split(": ").nth(1).unwrap().trim().to_owned();
    let (server, client) = (&both.server.out, &both.client.out);
    assert_eq!(part(server.lines().next()), part(client.lines().nth(1)));
    assert_eq!(part(client.lines().next()), part(server.lines().nth(1)));
}

/// The exchange still works over shared memory.
#[test]
fn an_interface_without_a_link_is_named_with_what_to_do() {
    let name = "an_interface_without_a_link_is_named_with_what_to_do";
    for (setup, said) in [
        (
            "ip link set veth0 down",
            "is down, so only this host can be reached: `ip link set veth0 up`",
        ),
        (
            "ip -n far link set veth1 down",
            "has no carrier, so only this host can be reached: connect it, or set the link up at its other end",
        ),
    ] {
        // Both ends are in one namespace, because the other cannot be reached.
        let setup = format!("{VETH} {setup}\n");
        let client = "pingpong -d veth0 -g 1 10.9.0.1";
        let Some(both) = both(name, &setup, "pingpong -d veth0 -g 1", client) else { return };
        for end in [&both.server, &both.client] {
            assert_eq!((end.code, &*end.err), (0, &*format!("rxe: interface veth0 {said}\n")));
        }
    }
}

/// On a full disk, the results are shown, and the end whose capture lacks packets fails.
#[test]
fn a_capture_that_does_not_fit_on_the_disk_is_an_error() {
    let name = "a_capture_that_does_not_fit_on_the_disk_is_an_error";
    let setup = format!("{LOOPBACK}\nmount -t tmpfs -o size=64k none /mnt\n");
    const PCAP: &str = "--pcap /mnt/capture";
    for command in ["pingpong", "pingpong --transport xrc", "perf write lat"] {
        let plain = format!("{command} --json -s 65536");
        let whole = format!("{plain} {PCAP}");
        for (server, client) in [(&plain, &whole), (&whole, &plain)] {
            let Some(both) = both(name, &setup, server, &format!("{client} 127.0.0.1")) else {
                return;
            };
            for (end, command) in [(&both.server, server), (&both.client, client)] {
                assert!(!end.out.is_empty(), "{both:?}");
                let fails = command.contains(PCAP);
                assert_eq!(end.code, i32::from(fails), "{both:?}");
                let said = match fails {
                    true => {
                        "rxe: the capture /mnt/capture ends: No space left on device (os error 28)\n\
                         rxe: the capture /mnt/capture lacks packets: name another file with --pcap\n"
                    }
                    false => "",
                };
                assert_eq!(end.err, said, "{both:?}");
            }
        }
    }
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
    // Two ends with XRC print the lines of ibv_xsrq_pingpong.
    for options in ["", "-e -n 1000", "-s 100001 -m 256 -n 30", "-s 1"] {
        let server = format!("pingpong --transport xrc {options}");
        let Some(said) = both(name, VETH, &server, &format!("{server} 10.9.0.1")) else { return };
        parted(&said.server, "remote", "local");
        parted(&said.client, "local", "remote");
    }
    for options in ["", "-q 3 -r 5 -e -s 1", "-q 256 -n 3000"] {
        let server = format!("pingpong --transport srq --json -c {options}");
        let Some(said) = both(name, VETH, &server, &format!("{server} 10.9.0.1")) else { return };
        for end in [&said.server, &said.client] {
            assert_eq!(end.json()["transport"], "srq", "{said:?}");
        }
    }
}

/// Checks the output of an XRC end. `first` and `second` are the order of the addresses.
#[track_caller]
fn parted(said: &Said, first: &str, second: &str) {
    assert_eq!((said.code, &*said.err), (0, ""), "{said:?}");
    let lines: Vec<_> = said.out.lines().collect();
    assert_eq!(lines.len(), 3, "{said:?}");
    for (line, whose) in lines.iter().zip([first, second]) {
        let start = format!("{whose:>8}: LID 0000, QPN RECV ");
        assert!(line.starts_with(&start) && line.contains(", SRQN "), "{line}");
    }
    assert_eq!(lines[2], "success");
}

#[test]
fn an_xrc_server_has_several_clients() {
    let name = "an_xrc_server_has_several_clients";
    let script = r#"
        $RXE pingpong --transport xrc --clients 3 -n 200 --json > server & server=$!
        tries=0
        until ss -Htln 'sport = :18515' | grep -q . || [ $tries -gt 1200 ]; do
            tries=$((tries + 1))
            kill -0 $server 2> gone || break
            sleep 0.05
        done
        for n in 2 3 4; do
            $RXE pingpong --transport xrc -n 200 --address 127.0.0.$n 127.0.0.1 > client$n &
        done
        wait $server
        wait
        cat client2 client3 client4
    "#;
    let dir = Dir::new();
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    assert_eq!(said.lines().filter(|line| *line == "success").count(), 3, "{said}");
    let server = std::fs::read_to_string(dir.file("server")).unwrap();
    let server: serde_json::Value = serde_json::from_str(&server).unwrap();
    let connections = server["connections"].as_array().unwrap();
    let gids = connections.iter().map(|ends| ends[1]["gid"].as_str().unwrap());
    let gids: std::collections::BTreeSet<_> = gids.collect();
    assert!(gids.iter().eq(&["::ffff:127.0.0.2", "::ffff:127.0.0.3", "::ffff:127.0.0.4"]));
}

#[test]
fn timestamps_show_the_times_between_messages() {
    let name = "timestamps_show_the_times_between_messages";
    for transport in ["rc", "uc", "ud", "srq"] {
        let server = format!("pingpong -t -n 100 --transport {transport}");
        let client = format!("pingpong -t -n 100 --json --transport {transport} 10.9.0.1");
        let Some(said) = both(name, VETH, &server, &client) else { return };
        let stamps = &said.client.json()["receive_completions"];
        let [min, average, max] =
            ["min_ns", "average_ns", "max_ns"].map(|name| stamps[name].as_f64().unwrap());
        // Completions that the engine finds in one pass have equal timestamps.
        assert!(0.0 < max && min <= average && average <= max, "{stamps}");
        let lines = said.server.out.lines().skip_while(|line| !line.contains(" usec/iter"));
        let names = lines.skip(1).map(|line| line.split(" = ").next().unwrap());
        assert!(
            names
                .eq(["Max", "Min", "Average"]
                    .map(|n| format!("{n} receive completion clock cycles"))),
            "{said:?}"
        );
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
fn the_xdp_backend_talks_with_all_of_them() {
    let name = "the_xdp_backend_talks_with_all_of_them";
    for backends in [["xdp", "xdp:driver"], ["xdp:generic", "udp"], ["packet", "xdp:generic"]] {
        for options in ["", "-s 300000 -n 100", "-s 300000 -n 100 -m 256", "--transport ud"] {
            let [server, client] =
                backends.map(|backend| format!("pingpong -c {options} --backend {backend} --json"));
            let client = format!("{client} 10.9.0.1");
            let Some(said) = both_as_root(name, VETH, &server, &client) else { return };
            if [&said.server, &said.client].iter().any(|end| end.err.contains("needs CAP_BPF")) {
                return skipped(name, "BPF is not permitted here");
            }
            for (end, asked) in [&said.server, &said.client].into_iter().zip(backends) {
                let json = end.json();
                assert_eq!(json["checked"], true, "{said:?}");
                // With a veth pair, xdp runs in driver mode.
                let name = if asked == "xdp" { "xdp:driver" } else { asked };
                assert_eq!(json["backend"], name);
            }
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
fn endpoints_of_layer_2_exchange_messages() {
    let name = "endpoints_of_layer_2_exchange_messages";
    for options in ["-c", "-c -e -s 100001 -n 30", "--transport ud -c -n 100", "--transport srq -c"]
    {
        let server = format!("pingpong -d own1 --json {options}");
        let client = format!("pingpong -d own2 --json {options} 127.0.0.1");
        let Some(said) = both(name, L2, &server, &client) else { return };
        for (end, gid) in [(&said.server, "10.0.0.1"), (&said.client, "10.0.0.2")] {
            let json = end.json();
            assert_eq!((&json["backend"], &json["checked"]), (&"l2".into(), &true.into()));
            assert_eq!(json["local"]["gid"], format!("::ffff:{gid}"), "{json}");
        }
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
        (
            "-n 10",
            "-n 20 10.9.0.1",
            "client",
            "the peer has finished, after 11 messages sent, all acknowledged, and 10",
        ),
        ("-n 20", "-n 10 10.9.0.1", "server", "the peer has finished, after 10 messages sent"),
        (
            "-d veth0",
            "-d lo 10.9.0.1",
            "server",
            "127.0.0.1 is a loopback address, which leads to no other",
        ),
        (
            "-d lo",
            "10.9.0.1",
            "client",
            "127.0.0.1 is a loopback address, which leads to no other host",
        ),
        ("--transport srq -q 4", "--transport srq -q 5 10.9.0.1", "server", "more queue pairs"),
        ("--transport srq -q 5", "--transport srq -q 4 10.9.0.1", "client", "more queue pairs"),
        ("--transport xrc", "--transport xrc -n 6 10.9.0.1", "server", "give the same -n on both"),
        ("", "--transport uc 10.9.0.1", "both", "--transport uc: give the same on both ends"),
        ("--transport ud", "--transport srq 10.9.0.1", "both", "--transport srq: give the"),
        ("--transport srq", "10.9.0.1", "both", "--transport rc: give the same on both ends"),
        ("--transport uc", "--transport xrc 10.9.0.1", "both", "--transport xrc: give the same"),
        ("--transport xrc", "--transport ud 10.9.0.1", "both", "--transport ud: give the same"),
    ] {
        let server = format!("pingpong {server}");
        let Some(said) = both(name, VETH, &server, &format!("pingpong {client}")) else { return };
        let (server, client) = (&said.server, &said.client);
        if who == "both" {
            // Each end names its own service and the peer's, so the messages differ.
            assert!(server.err.contains(what), "{said:?}");
            assert!(client.err.contains("give the same on both ends"), "{said:?}");
            assert_eq!((server.code, client.code), (1, 1), "{said:?}");
            continue;
        }
        let said_it = if who == "server" { server } else { client };
        assert_eq!(said_it.code, 1, "{said:?}");
        assert!(said_it.err.contains(what) && said_it.err.lines().count() == 1, "{said:?}");
    }
}

#[test]
fn a_peer_that_is_killed_is_missed_at_once() {
    let name = "a_peer_that_is_killed_is_missed_at_once";
    for transport in ["rc -e", "uc", "ud", "srq", "xrc"] {
        // The exchange would take hours, and a timeout 30 s of silence, longer than this test
        // waits.
        let script = format!(
            r#"
            set +e
            $RXE pingpong --transport {transport} -n 1000000000 2> err & server=$!
            tries=0
            until ss -Htln 'sport = :18515' | grep -q . || [ $tries -gt 1200 ]; do
                tries=$((tries + 1))
                kill -0 $server 2> gone || break
                sleep 0.05
            done
            $RXE pingpong --transport {transport} -n 1000000000 127.0.0.1 2>&1 & client=$!
            # In the middle: they exchange messages.
            until $RXE stat --json --of $client 2> stat.err | grep '"sent_pkts"' | grep -q '[1-9]'; do
                kill -0 $client 2> gone || break
                sleep 0.05
            done
            kill -KILL $client
            begin=$(date +%s)
            wait $server
            echo $? > code
            end=$(date +%s)
            [ $((end - begin)) -lt 15 ] && echo soon > soon
            true
            "#
        );
        let dir = Dir::new();
        let Some(out) = in_namespace(name, LOOPBACK, &script, &dir.file("")) else { return };
        let read = |file: &str| std::fs::read_to_string(dir.file(file)).unwrap_or_default();
        assert_eq!(
            (read("code").trim(), read("soon").trim()),
            ("1", "soon"),
            "{transport}: {out:?}"
        );
        let err = read("err");
        // On a busy machine, retries may run out before the end checks the connection.
        let retried = !transport.starts_with('u') && err.contains("retry counter exceeded");
        let noticed = err.contains("the peer has gone, after ") || retried;
        assert!(noticed && err.lines().count() == 1, "{err}");
    }
}

/// The timeout and the retries of ibv_rc_pingpong would run out after half a second.
#[test]
fn a_peer_that_is_stopped_for_a_second_is_not_given_up() {
    let name = "a_peer_that_is_stopped_for_a_second_is_not_given_up";
    for transport in ["rc", "rc -e --no-shm", "srq", "xrc"] {
        // Both ends are killed once they have continued.
        let script = format!(
            r#"
            $RXE pingpong --transport {transport} -n 1000000000 > out 2>&1 & server=$!
            until ss -Htln 'sport = :18515' | grep -q .; do
                kill -0 $server || exit 1
                sleep 0.05
            done
            $RXE pingpong --transport {transport} -n 1000000000 127.0.0.1 2>&1 & client=$!
            sent() {{ $RXE stat --json --of $client 2> stat.err | grep '"sent_pkts"' | tr -cd 0-9; }}
            more_than() {{
                until [ "$(sent)" -gt $1 ] 2> test.err; do
                    kill -0 $client || exit 1
                    sleep 0.05
                done
            }}
            more_than 100
            kill -STOP $server
            sleep 1.2
            before=$(sent)
            kill -CONT $server
            # More than is sent again.
            more_than $((before + 1000))
            kill $server $client
            "#
        );
        let dir = Dir::new();
        let Some(out) = in_namespace(name, LOOPBACK, &script, &dir.file("")) else { return };
        assert!(out.status.success(), "{transport}: {out:?}");
    }
}

#[test]
fn a_path_mtu_that_the_link_does_not_carry_is_refused() {
    let test = "a_path_mtu_that_the_link_does_not_carry_is_refused";
    let dir = Dir::new();
    let Some(out) = in_namespace(test, VETH, r#""$RXE" pingpong -d veth0 -m 2048"#, &dir.file(""))
    else {
        return;
    };
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    let expected = "rxe: path MTU 2048 does not fit the link of rxe_veth0: use -m 1024, or raise \
                    the MTU of veth0 to 2128 or more\n";
    assert_eq!(said, expected);
}

//! Unmodified programs of librdmacm with the preloaded library, both sides on our devices: between
//! two hosts, which are network namespaces of the test's own, and between two processes on one
//! address. A test whose program is not installed is skipped.

use rxe_harness::c::{Compiled, TUTORIALS};
use rxe_harness::or_skip;

mod common;
use common::{alone, in_namespace, installed};

#[test]
fn rping() {
    // rping compares every byte (-V).
    both("rping", "-s -C 10 -V", "-c -a 10.9.0.1 -C 10 -V");
    both("rping", "-s -a fd09::1 -C 3 -V -S 60000", "-c -a fd09::1 -C 3 -V -S 60000");
    on_one_address("rping", "-s -C 10 -V", "-c -a 10.9.0.1 -C 10 -V");
}

/// Programs then see the devices under other names.
#[test]
fn devices_with_a_card_s_identity_connect_by_address() {
    let script = "
        timeout 60 $RXE run --as mlx5 -- rping -s -a 10.9.0.1 -C 3 -V > server 2>&1 & server=$!
        until listens 10.9.0.1; do kill -0 $server; sleep 0.05; done
        timeout 60 $RXE run --as mlx5 -- rping -c -a 10.9.0.1 -C 3 -V > client 2>&1 ||
            succeeded $? client
        wait $server || succeeded $? server
    ";
    alone("rping with an identity", "rping", script);
}

/// The loopback device is not in the list that programs get, but an address leads to it.
#[test]
fn a_loopback_address_leads_to_a_device_that_is_not_listed() {
    on_one_address("rping", "-s -C 3 -V", "-c -a 127.0.0.1 -C 3 -V");
    let script = "
        timeout 60 $RXE run -- rping -s -a 127.0.0.1 -C 3 -V > server 2>&1 & server=$!
        until listens 127.0.0.1; do kill -0 $server; sleep 0.05; done
        timeout 60 $RXE run -- rping -c -a 127.0.0.1 -C 3 -V > client 2>&1 || succeeded $? client
        wait $server || succeeded $? server
        timeout 60 $RXE run -- rping -s -a ::1 -C 3 -V > server 2>&1 & server=$!
        until listens ::1; do kill -0 $server; sleep 0.05; done
        timeout 60 $RXE run -- rping -c -a ::1 -C 3 -V > client 2>&1 || succeeded $? client
        wait $server || succeeded $? server
    ";
    alone("rping on loopback", "rping", script);
}

/// The kernel has no route there: an endpoint of layer 2 on the peer's network is found by its
/// address, also by one mapped into IPv6, but never an endpoint that is hidden from the program. In
/// another process, the endpoint is refused.
#[test]
fn an_endpoint_of_layer_2_leads_to_the_other_end_of_its_socket() {
    let script = "
        export XDG_RUNTIME_DIR=$PWD
        add() { $RXE link add $1 type rxe l2 qemu:$PWD/link address $2 nodad; }
        add near 10.77.0.1/24
        add far 10.77.0.2/24
        for address in 10.77.0.1 ::ffff:10.77.0.1; do
            timeout 60 $RXE run --device near -- \\
                rping -s -a $address -C 3 -V > server 2>&1 & server=$!
            until [ -S link ]; do kill -0 $server; sleep 0.05; done
            timeout 60 $RXE run -d far -- rping -c -a $address -C 3 -V > client 2>&1 ||
                succeeded $? client
            wait $server || succeeded $? server
            rm -f link
        done
        $RXE pingpong -d far > first 2>&1 & first=$!
        until [ -S link ]; do kill -0 $first; sleep 0.05; done
        ! $RXE pingpong -d far 2> second
        kill $first
        grep \"is in use by process $first (rxe)\" second || { cat second; exit 1; }
    ";
    alone("rping between endpoints of layer 2", "rping", script);
}

/// QEMU carries frames between its two kinds of sockets, so each end is a neighbour of the other.
#[test]
fn endpoints_reach_each_other_through_qemu() {
    let script = "
        mkdir -m 700 near far
        qemu-system-x86_64 -machine none -nodefaults -display none \\
            -netdev dgram,id=d,local.type=unix,local.path=$PWD/vm,remote.type=unix,remote.path=$PWD/own \\
            -netdev stream,id=s,server=on,addr.type=unix,addr.path=$PWD/link \\
            -netdev hubport,id=hd,hubid=0,netdev=d -netdev hubport,id=hs,hubid=0,netdev=s \\
            2> said & qemu=$!
        until [ -S vm ] && [ -S link ]; do kill -0 $qemu || { cat said >&2; exit 3; }; sleep 0.05; done
        trap 'kill $qemu' EXIT
        add() { XDG_RUNTIME_DIR=$PWD/$1 $RXE link add $1 type rxe l2 $2 address $3 nodad; }
        add near dgram:own,vm 10.77.0.1/24
        add far qemu:link 10.77.0.2/24
        XDG_RUNTIME_DIR=$PWD/near timeout 60 $RXE run --device near -- \\
            rping -s -a 10.77.0.1 -C 20 -S 60000 -V > server 2>&1 & server=$!
        until [ -S own ]; do kill -0 $server; sleep 0.05; done
        export XDG_RUNTIME_DIR=$PWD/far
        client() {
            timeout 60 $RXE run --device far -- \\
                rping -c -a 10.77.0.1 -C 20 -S 60000 -V > client 2>&1 || succeeded $? client
        }
        until client; do
            kill -0 $server
            sleep 0.05
        done
        wait $server || succeeded $? server
    ";
    let test = "rping between endpoints through QEMU";
    if !installed(test, "qemu-system-x86_64") || !installed(test, "rping") {
        return;
    }
    let Some(out) = in_namespace(test, script) else { return };
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.code() == Some(3) && said.contains("dgram") {
        // QEMU before 7.2 lacks this.
        return rxe_test_support::skipped(test, said.trim());
    }
    assert!(out.status.success(), "{}{said}", String::from_utf8_lossy(&out.stdout));
}

/// In addition to the host's stack: a process on the host's own address and an endpoint on the same
/// interface, each with a program of the other host.
#[test]
fn an_endpoint_on_an_interface_leads_to_other_hosts_beside_this_one() {
    let script = "
        mkdir -m 700 own
        XDG_RUNTIME_DIR=$PWD/own $RXE link add own0 type rxe l2 if:veth0 \\
            address 10.9.0.11/24 address fd09::11/64
        timeout 60 $RXE run -- rping -s -a 10.9.0.1 -C 50 -V > host 2>&1 & host=$!
        XDG_RUNTIME_DIR=$PWD/own timeout 60 $RXE run --device own0 -- \\
            rping -s -a fd09::11 -C 50 -V > server 2>&1 & server=$!
        until listens 10.9.0.1; do kill -0 $host; sleep 0.05; done
        at_far() {
            timeout 60 ip netns exec far $RXE run -- rping -c -a $1 -C 50 -V > client-$1 2>&1 ||
                succeeded $? client-$1
        }
        at_far 10.9.0.1 & beside=$!
        # It looks for duplicates first, and then the program listens.
        until at_far fd09::11; do kill -0 $server; sleep 0.05; done
        wait $beside
        wait $host || succeeded $? host
        wait $server || succeeded $? server
    ";
    alone("rping beside the host's stack", "rping", script);
}

#[test]
fn ucmatose() {
    both("ucmatose", "-c 5 -C 10 -S 3000", "-s 10.9.0.1 -c 5 -C 10 -S 3000");
    on_one_address("ucmatose", "-c 5", "-s 10.9.0.1 -c 5");
    both("ucmatose", "-b fd09::1 -c 2 -C 5", "-s fd09::1 -c 2 -C 5");
    // Each end uses a channel of its own after a migration.
    both("ucmatose", "-c 2 -m", "-s 10.9.0.1 -c 2 -m");
}

#[test]
fn udaddy() {
    both("udaddy", "-c 3 -C 10 -S 800", "-s 10.9.0.1 -c 3 -C 10 -S 800");
    both("udaddy", "-b fd09::1 -c 2 -C 5", "-s fd09::1 -c 2 -C 5");
}

#[test]
fn cmtime() {
    // Its clients always exit with 0, and print what has failed.
    for address in ["10.9.0.1", "fd09::1"] {
        let client = format!("sh -c 'cmtime -s {address} -c 20 > said && ! grep error said'");
        pair("cmtime", &format!("-b {address}"), "ip netns exec far", &client, "");
    }
}

#[test]
fn mckey() {
    // The sender of datagrams to a group does not know its members, so the receiver must start
    // first. Its queue pair joins the group before its interface does.
    if !installed("mckey", "mckey") {
        return;
    }
    let script = "
        timeout 30 $RXE run -- mckey -m 239.47.91.1 -b 10.9.0.1 -C 5 > server 2>&1 & server=$!
        until ip maddress show dev veth0 | grep -q 239.47.91.1; do sleep 0.05; done
        timeout 30 ip netns exec far $RXE run -- mckey -m 239.47.91.1 -b 10.9.0.2 -s -C 5
        wait $server
        cat server
    ";
    let Some(out) = in_namespace("mckey", script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}");
}

#[test]
fn rdma_client_and_server() {
    pair("rdma_server", "", "ip netns exec far", "rdma_client", "-s 10.9.0.1");
    pair("rdma_server", "-s fd09::1", "ip netns exec far", "rdma_client", "-s fd09::1");
    for kind in ["r", "x"] {
        let (server, client) = (format!("-c {kind}"), format!("-c {kind} -s 10.9.0.1"));
        pair("rdma_xserver", &server, "ip netns exec far", "rdma_xclient", &client);
    }
}

#[test]
fn first_programs_by_events_and_by_short_calls() {
    let Some(c) = or_skip(Compiled::new(&TUTORIALS[1..])) else { return };
    for name in &TUTORIALS[1..] {
        let program = c.path(name).display().to_string();
        both(&program, "10.9.0.1", "-c 10.9.0.1");
        on_one_address(&program, "10.9.0.1", "-c 10.9.0.1");
        both(&program, "fd09::1", "-c fd09::1");
    }
}

#[test]
fn rsockets_of_librdmacm_go_through_this_library() {
    both("riostream", "-S 1000 -I 3", "-s 10.9.0.1 -S 1000 -I 3");
    both("riostream", "-b fd09::1 -S 1000 -I 3", "-s fd09::1 -S 1000 -I 3");
    both("rstream", "-S 1000 -I 3", "-s 10.9.0.1 -S 1000 -I 3");
}

#[test]
fn perftest_connects_by_the_communication_manager() {
    both("ib_send_bw", "-R -F -n 200", "-R -F -n 200 10.9.0.1");
    both("ib_write_lat", "-R -F -n 100", "-R -F -n 100 10.9.0.1");
    both("ib_send_lat", "-R -F -c UD -n 100", "-R -F -c UD -n 100 10.9.0.1");
}

#[test]
fn perftest_changes_listeners_and_its_client_need_not_know() {
    perftest_with_new_listeners("");
}

#[test]
fn perftest_changes_listeners_and_its_client_need_not_know_without_shared_memory() {
    perftest_with_new_listeners("--no-shm");
}

/// Both ends of perftest agree to connect again. The server then replaces its listener without
/// telling the client, so a request that arrives too early must wait for the new listener.
fn perftest_with_new_listeners(options: &str) {
    let script = format!(
        r#"
        for _ in $(seq 12); do
            timeout 60 $RXE run {options} -- ib_write_bw -R -F -n 200 > server 2>&1 & server=$!
            until listens 10.9.0.1; do
                kill -0 $server
                sleep 0.02
            done
            timeout 60 $RXE run {options} -- ib_write_bw -R -F -n 200 10.9.0.1 > client 2>&1 ||
                {{ cat client server; exit 1; }}
            wait $server || {{ cat server; exit 1; }}
        done
        "#
    );
    alone(&format!("perftest -R {options}"), "ib_write_bw", &script);
}

#[test]
fn a_second_listener_is_told_what_it_asked_for() {
    let script = "
        set +e
        timeout 60 $RXE run -- rping -s -p 7001 > first 2>&1 & first=$!
        until listens 10.9.0.1; do kill -0 $first || exit 1; sleep 0.05; done
        timeout 60 $RXE run -- rping -s -p 7001 2>&1
        timeout 60 $RXE run -- rping -s -a 10.9.0.1 -p 7001 2>&1
        kill $first
        wait $first
        timeout 60 $RXE run -- rping -s -a 10.9.0.1 -p 7002 > first 2>&1 & first=$!
        until listens 10.9.0.1; do sleep 0.05; done
        timeout 60 $RXE run -- rping -s -p 7002 2>&1
        timeout 60 $RXE run -- rping -s -a 10.9.0.1 -p 7002 2>&1
        kill $first
        true
    ";
    let Some(out) = alone("listeners", "rping", script) else { return };
    let said: Vec<_> = out.lines().filter(|line| line.starts_with("rxe: rdma_listen: ")).collect();
    let expected = [
        "port 7001 of all addresses, 0.0.0.0 is listened to already by another program; end that listener",
        "port 7001 of 10.9.0.1 is listened to already: another program does so on all addresses, 0.0.0.0;",
        "port 7002 of all addresses, 0.0.0.0 is listened to already: another program does so on 10.9.0.1;",
        "port 7002 of 10.9.0.1 is listened to already by another program; end that listener",
    ];
    assert_eq!(said.len(), expected.len(), "{out}");
    for (line, told) in said.iter().zip(expected) {
        assert!(line.contains(told), "{told}: {out}");
    }
}

#[test]
fn a_refusal_is_what_the_program_prints() {
    if !installed("refusal", "rping") {
        return;
    }
    let script = "
        set +e
        timeout 60 $RXE run -- rping -s -p 7000 > server 2>&1 & server=$!
        until listens 10.9.0.1; do
            kill -0 $server || break
            sleep 0.05
        done
        timeout 60 ip netns exec far $RXE run -- rping -c -a 10.9.0.1 -p 7001 > client 2>&1
        echo exit code $?; cat client; kill $server
    ";
    let Some(out) = in_namespace("refusal", script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{said}");
}

#[test]
fn a_program_that_uses_more_of_librdmacm() {
    let libraries = ["-lrdmacm", "-libverbs", "-ldl"];
    let Some(c) = or_skip(Compiled::linked(&["tests/c/cm.c"], &libraries)) else { return };
    let program = c.path("tests/c/cm.c").display().to_string();
    let script = format!("timeout 60 $RXE run -- {program} 10.9.0.1 fd09::1 2>&1");
    let Some(out) = alone("cm", "cc", &script) else { return };
    assert!(out.contains("all as librdmacm says"), "{out}");
    let explanation = "rdma_connect: the identifier was made before fork()";
    assert_eq!(out.matches(explanation).count(), 1, "{out}");
}

#[test]
fn many_clients_are_heard_to_their_ends() {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let Some(c) = or_skip(Compiled::linked(&["tests/c/crowd.c"], &libraries)) else { return };
    let program = c.path("tests/c/crowd.c").display().to_string();
    for (at, address) in [("", "10.9.0.1"), ("", "127.0.0.1"), ("ip netns exec far", "10.9.0.1")] {
        let script = format!(
            "
            timeout 60 $RXE run -- {program} hear {address} 4 > server 2>&1 & server=$!
            until listens {address}; do kill -0 $server; sleep 0.05; done
            timeout 60 {at} $RXE run -- {program} give-up {address} 300 > client 2>&1 & client=$!
            wait $server || {{ cat server client; exit 1; }}
            kill $client
            "
        );
        alone(&format!("crowd {at} {address}"), "cc", &script);
    }
    // All clients connect simultaneously, and the backlog has room for one.
    let script = format!("timeout 120 $RXE run -- {program} backlog 10.9.0.1 128 2>&1");
    let Some(out) = alone("crowd backlog", "cc", &script) else { return };
    assert!(out.contains("128 established"), "{out}");
}

#[test]
fn calls_do_what_the_manual_pages_of_librdmacm_say() {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let Some(c) = or_skip(Compiled::linked(&["tests/c/pages_cm.c"], &libraries)) else { return };
    let program = c.path("tests/c/pages_cm.c").display().to_string();
    let script = format!("timeout 60 $RXE run --explain off -- {program} 10.9.0.1 2>&1");
    let Some(out) = alone("pages_cm", "cc", &script) else { return };
    assert_eq!(out, "all as the pages say\n");
}

/// Runs the same program at both ends.
#[track_caller]
fn both(program: &str, server: &str, client: &str) {
    pair(program, server, "ip netns exec far", program, client);
}

/// Runs two processes on one address.
#[track_caller]
fn on_one_address(program: &str, server: &str, client: &str) {
    pair(program, server, "", program, client);
}

/// Runs a server here and its client at `at`. Both must succeed. If the server never ends, only the
/// client must.
#[track_caller]
fn pair(server: &str, server_args: &str, at: &str, client: &str, client_args: &str) {
    let test = format!("{server} {server_args} and {at} {client} {client_args}");
    let program = client.split(' ').next().unwrap_or(client);
    if !installed(&test, server) || !installed(&test, program) {
        return;
    }
    let script = format!(
        r#"
        set +e
        timeout 60 $RXE run -- {server} {server_args} > server 2>&1 & server=$!
        # The claim is made under the lock under which requests are looked at.
        for _ in $(seq 1000); do
            (listens 10.9.0.1 || listens fd09::1) && break
            kill -0 $server 2> gone || break
            sleep 0.05
        done
        timeout 60 {at} $RXE run -- {client} {client_args} > client 2>&1
        client=$?
        # A server that goes on for ever has done its part.
        ( sleep 5; kill $server ) > gone 2>&1 &
        wait $server
        server=$?
        succeeded $server server && server=0
        succeeded $client client && client=0
        echo "exit codes: server $server, client $client"
        echo "-- server"; cat server
        echo "-- client"; cat client
        "#
    );
    let Some(out) = in_namespace(&test, &script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    let good = ["exit codes: server 0, client 0", "exit codes: server 143, client 0"];
    assert!(good.iter().any(|good| said.starts_with(good)), "{test}\n{said}");
}

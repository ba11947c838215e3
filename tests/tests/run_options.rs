//! Tests of the settings of `rxe run` and the `RXE_*` variables for unmodified programs: the
//! backend, shared memory, the devices, and the amount of explanation.

mod common;

use common::{alone, in_bpf_namespace, installed};
use rxe_test_support::skipped;

/// Shell functions. `serve NAME PORT COMMAND…` starts a server and waits until it listens on this
/// port. `ask NAME COMMAND…` runs a client. `seen` prints the number of packet sockets, and the
/// number of packets that were sent over loopback.
const FUNCTIONS: &str = r#"
    serve() {
        name=$1 port=$2
        shift 2
        timeout 60 "$@" > "$name" 2>&1 & eval "$name=$!"
        until ss -Htln "sport = :$port" | grep -q .; do
            kill -0 $! || { cat "$name"; exit 1; }
            sleep 0.05
        done
    }
    ask() {
        name=$1
        shift
        timeout 60 "$@" > "$name" 2>&1 || { cat "$name"; exit 1; }
    }
    finish() {
        for each in "$@"; do
            eval "wait \$$each" || { cat "$each"; exit 1; }
        done
    }
    seen() {
        echo "$1: packet sockets $(($(wc -l < /proc/net/packet) - 1)), over loopback" \
            "$(awk '$1 == "lo:" { print $3 }' /proc/net/dev)"
    }
"#;

/// Returns the numbers in a line of `seen`.
fn seen(out: &str, what: &str) -> (u32, u32) {
    let line = out.lines().find(|line| line.starts_with(&format!("{what}: ")));
    let line = line.unwrap_or_else(|| panic!("{what}: {out}"));
    let numbers: Vec<u32> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

/// Programs and their options.
const PAIRS: [(&str, &str); 3] = [
    ("ibv_rc_pingpong", "-g 1 -n 200"),
    ("ib_write_bw", "-x 1 -F -n 200"),
    ("ib_send_lat", "-x 1 -F -n 200"),
];

#[test]
fn programs_on_two_hosts_go_over_the_backend_that_was_chosen() {
    for (program, options) in &PAIRS[..2] {
        for (chosen, sockets) in [
            ("$RXE run --backend packet --", true),
            ("env RXE_BACKEND=packet $RXE run --", true),
            ("env RXE_BACKEND=packet $RXE run --backend udp --", false),
        ] {
            let script = format!(
                "{FUNCTIONS}
                serve server 18515 {chosen} {program} -d rxe_veth0 {options}
                seen here
                ask client ip netns exec far {chosen} {program} -d rxe_veth1 {options} 10.9.0.1
                finish server"
            );
            let test = format!("{chosen} {program}");
            let Some(out) = alone(&test, program, &script) else { return };
            // perftest opens its device after it has begun to listen.
            if *program == "ibv_rc_pingpong" {
                assert_eq!(seen(&out, "here").0 > 0, sockets, "{test}: {out}");
            }
        }
    }
}

/// AF_XDP needs capabilities outside of any user namespace.
#[test]
fn programs_on_two_hosts_go_over_af_xdp_where_bpf_is_permitted() {
    const TEST: &str = "programs_on_two_hosts_go_over_af_xdp_where_bpf_is_permitted";
    if !installed(TEST, "ib_send_bw") {
        return;
    }
    let run = "$RXE run --backend xdp -- ib_send_bw -x 1 -F --run_infinitely";
    let script = format!(
        r#"{FUNCTIONS}
        serve server 18515 {run} -d rxe_veth0
        timeout 60 ip netns exec far {run} -d rxe_veth1 10.9.0.1 > client 2>&1 & client=$!
        stat() {{ $RXE stat $1 --of $(pgrep -P $server) 2> stat.err; }}
        until [ "$(stat --json | grep '"rx_packets"' | tr -cd 0-9)" -gt 1000 ] 2> test.err; do
            kill -0 $client && kill -0 $server || {{ cat client server; exit 1; }}
            sleep 0.05
        done
        stat
        kill $(pgrep -P $server) $client"#
    );
    let Some(out) = in_bpf_namespace(TEST, &script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    let refused = ["the xdp backend needs CAP_BPF", "this kernel has no AF_XDP"];
    if let Some(why) = refused.iter().find(|why| said.contains(**why)) {
        return skipped(TEST, why);
    }
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("backend xdp"), "{said}");
}

#[test]
fn several_programs_share_an_address_over_each_backend() {
    for chosen in [["udp", "udp"], ["packet", "packet"], ["udp", "packet"], ["packet", "udp"]] {
        let [server, client] =
            chosen.map(|backend| format!("$RXE run --backend {backend} --no-shm --"));
        let mut script = FUNCTIONS.to_owned();
        // All servers listen before the first client starts.
        for (at, (program, options)) in PAIRS.iter().enumerate() {
            let options = format!("-d rxe_veth0 {options} -p {}", 19000 + at);
            script += &format!("serve server{at} {} {server} {program} {options}\n", 19000 + at);
        }
        script += "seen before\n";
        for (at, (program, options)) in PAIRS.iter().enumerate() {
            let options = format!("-d rxe_veth0 {options} -p {} 10.9.0.1", 19000 + at);
            script += &format!("ask client{at} {client} {program} {options}\n");
        }
        script += "finish server0 server1 server2\nseen after\n";
        let test = format!("{chosen:?}");
        let Some(out) = alone(&test, "ib_write_bw", &script) else { return };
        let (before, after) = (seen(&out, "before"), seen(&out, "after"));
        assert_eq!(before.0 > 0, chosen[0] == "packet", "{test}: {out}");
        assert!(after.1 > before.1 + 1000, "{test}: they do not go over loopback: {out}");
    }
}

#[test]
fn shared_memory_leaves_the_wire_alone_unless_it_is_switched_off() {
    for (chosen, off) in [
        ("$RXE run --", false),
        ("$RXE run --backend packet --", false),
        ("env RXE_SHM=on $RXE run --", false),
        ("env RXE_SHM=off $RXE run --", true),
        ("$RXE run --no-shm --", true),
    ] {
        let script = format!(
            "{FUNCTIONS}
            serve server 18515 {chosen} ib_write_bw -d rxe_veth0 -x 1 -F -n 1000
            seen before
            ask client {chosen} ib_write_bw -d rxe_veth0 -x 1 -F -n 1000 10.9.0.1
            finish server
            seen after"
        );
        let Some(out) = alone(chosen, "ib_write_bw", &script) else { return };
        let (before, after) = (seen(&out, "before").1, seen(&out, "after").1);
        // The TCP exchange of the programs uses some packets too.
        assert_eq!(after - before > 1000, off, "{chosen}: {out}");
    }
}

/// Between processes of one host, many packets of a message are one record of the ring. A capture
/// contains each packet.
#[test]
fn a_capture_has_every_packet_of_long_messages_on_one_host() {
    for captured in ["server", "client"] {
        let [server, client] = ["server", "client"].map(|end| {
            let pcap = if end == captured { "--pcap capture.pcapng" } else { "" };
            format!("$RXE run {pcap} --")
        });
        let program = "ib_send_bw -d rxe_veth0 -x 1 -F -n 100 -s 65536 -m 1024";
        let script = format!(
            "{FUNCTIONS}
            serve server 18515 {server} {program}
            ask client {client} {program} 10.9.0.1
            finish server
            $RXE check capture.pcapng
            echo wrong: $($RXE decode --json --only bad-icrc,malformed capture.pcapng | wc -l)
            echo sends: $($RXE decode capture.pcapng | grep -c RC_SEND)
            echo payloads: $($RXE decode --json -v capture.pcapng | grep -o '\"Data\":\"[0-9a-f]*\"' |
                sort -u | wc -l)"
        );
        let Some(out) = alone(captured, "ib_send_bw", &script) else { return };
        let number = |what: &str| {
            let number = out.lines().find_map(|line| line.strip_prefix(what)?.parse::<u32>().ok());
            number.expect(&out)
        };
        assert_eq!(number("wrong: "), 0, "{captured}: {out}");
        assert!(number("sends: ") >= 100 * 64, "{captured}: {out}");
        // The program sends the same random bytes each time.
        assert_eq!(number("payloads: "), 64, "{captured}: {out}");
        for said in ["messages 100 (6553600 B)", "errors 0,"] {
            assert!(out.contains(said), "{captured}: {out}");
        }
    }
}

#[test]
fn without_gso_each_packet_is_a_frame_of_its_own() {
    for (chosen, off) in [
        ("$RXE run --no-shm --", false),
        ("$RXE run --no-shm --no-gso --", true),
        ("env RXE_GSO=off $RXE run --no-shm --", true),
        ("env RXE_GSO=on $RXE run --no-shm --backend packet --no-gso --", true),
    ] {
        // 200 messages of 64 packets, over a named device.
        let options = "-d rxe0 -x 1 -F -n 200 -s 65536";
        let script = format!(
            "{FUNCTIONS}
            $RXE link add rxe0 type rxe netdev veth0
            serve server 18515 {chosen} ib_write_bw {options}
            seen before
            ask client {chosen} ib_write_bw {options} 10.9.0.1
            finish server
            seen after"
        );
        let Some(out) = alone(chosen, "ib_write_bw", &script) else { return };
        let (before, after) = (seen(&out, "before").1, seen(&out, "after").1);
        assert_eq!(after - before > 200 * 64, off, "{chosen}: {out}");
    }
}

/// The usual timeout and retries would expire after half a second.
#[test]
fn a_peer_that_is_stopped_for_a_second_is_not_given_up_with_a_longer_timeout() {
    for run in ["$RXE run --ack-timeout 19 --", "env RXE_ACK_TIMEOUT=19 $RXE run --"] {
        let script = format!(
            r#"{FUNCTIONS}
            serve server 18515 {run} ibv_rc_pingpong -d rxe_veth0 -g 1 -n 1000000000
            {run} ibv_rc_pingpong -d rxe_veth0 -g 1 -n 1000000000 10.9.0.1 > client 2>&1 & client=$!
            sent() {{ $RXE stat --json --of $client 2> stat.err | grep '"sent_pkts"' | tr -cd 0-9; }}
            more_than() {{
                until [ "$(sent)" -gt $1 ] 2> test.err; do
                    kill -0 $client || {{ cat client; exit 1; }}
                    sleep 0.05
                done
            }}
            more_than 100
            kill -STOP $(pgrep -P $server)
            sleep 1.2
            before=$(sent)
            kill -CONT $(pgrep -P $server)
            # More than what was on the way or is sent again.
            more_than $((before + 1000))
            kill $(pgrep -P $server) $client"#
        );
        if alone(run, "ibv_rc_pingpong", &script).is_none() {
            return;
        }
    }
}

#[test]
fn a_variable_that_means_nothing_is_said_and_the_program_runs() {
    for (variable, said) in [
        (
            "RXE_BACKEND=ethernet",
            "RXE_BACKEND=ethernet means nothing: set it to udp or packet or xdp or \
             xdp:driver or xdp:generic or xdp:zerocopy",
        ),
        ("RXE_SHM=never", "RXE_SHM=never means nothing: set it to on or off"),
        ("RXE_GSO=no", "RXE_GSO=no means nothing: set it to on or off"),
        ("RXE_KEEPALIVE=no", "RXE_KEEPALIVE=no means nothing: set it to on or off"),
        ("RXE_REALTIME=no", "RXE_REALTIME=no means nothing: set it to on or off"),
        ("RXE_ACK=late", "RXE_ACK=late means nothing: set it to adaptive or prompt"),
        (
            "RXE_SOURCE_PORT=udp",
            "RXE_SOURCE_PORT=udp means nothing: set it to a number from 1 to 65535 or to per-qp",
        ),
        ("RXE_SHARDS=0", "RXE_SHARDS=0 means nothing: set it to a number from 1 to 32"),
        ("RXE_ACK_TIMEOUT=0", "RXE_ACK_TIMEOUT=0 means nothing: set it to a number from 1 to 31"),
        ("RXE_EXPLAIN=much", "RXE_EXPLAIN=much means nothing: set it to errors or off or all"),
    ] {
        // The program creates a queue pair, so that all variables are read.
        let script = format!(
            "{FUNCTIONS}
            serve server 18515 env {variable} $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 -n 10
            ask client $RXE run -- ibv_rc_pingpong -d rxe_veth0 -g 1 -n 10 10.9.0.1
            finish server
            cat server"
        );
        let Some(out) = alone(variable, "ibv_rc_pingpong", &script) else { return };
        assert_eq!(out.matches(said).count(), 1, "{out}");
    }
    for (variable, said) in [
        ("RXE_PCAP=/nowhere/at/all", "/nowhere/at/all: No such file or directory"),
        ("RXE_DEVICE=rxe_eth7", "rxe_eth7"),
    ] {
        // With the library alone, as `rxe env` sets it for a shell.
        let script = format!(
            "eval \"$($RXE env)\"
            {variable} timeout 60 ibv_rc_pingpong -d rxe_veth0 -g 1 2>&1 && exit 1
            true"
        );
        let Some(out) = alone(variable, "ibv_rc_pingpong", &script) else { return };
        let line = out.lines().find(|line| line.starts_with("rxe: ") && line.contains(said));
        assert!(line.is_some(), "{variable}: {out}");
    }
    let script = "eval \"$($RXE env)\"
        RXE_SYSFS=/nowhere cat /sys/class/infiniband/rxe_veth0/node_guid 2>&1 || true";
    let Some(out) = alone("RXE_SYSFS", "ibv_devices", script) else { return };
    assert!(out.contains("rxe: RXE_SYSFS=/nowhere is no directory"), "{out}");
}

#[test]
fn a_variable_for_devices_or_explanations_holds_under_run_too() {
    let script = "
        RXE_DEVICE=rxe_lo $RXE run -- ibv_devices
        RXE_DEVICE=rxe_lo $RXE run -- ls /sys/class/infiniband
        RXE_DEVICE=rxe_eth7 $RXE run -- ibv_devices 2>&1 || true
        for explain in off errors; do
            RXE_EXPLAIN=$explain timeout 60 $RXE run -- ibv_rc_pingpong -r 3000000 2>&1 || true
        done
    ";
    let Some(out) = alone("RXE_DEVICE", "ibv_rc_pingpong", script) else { return };
    let listed = |name: &str| out.lines().any(|line| line.trim_start().starts_with(name));
    assert!(listed("rxe_lo") && !listed("rxe_veth0"), "{out}");
    assert!(out.contains("rxe: no device \"rxe_eth7\""), "{out}");
    assert_eq!(out.matches("rxe: ibv_create_cq: ").count(), 1, "one is told why: {out}");
}

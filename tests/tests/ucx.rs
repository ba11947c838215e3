//! Unmodified UCX with the preloaded library, both sides on our devices: between two hosts, which
//! are network namespaces of the test's own, and between two processes on one address. With
//! kernels: `programs_kernel.rs`. MPI over UCX: `mpi.rs`.

mod common;
use common::{Where, alone};

/// Tag matching, puts, gets, atomics, active messages and streams: in one packet, in several, and
/// by rendezvous.
const OPERATIONS: [&str; 13] = [
    "-t tag_bw -s 5000",
    "-t tag_lat -s 8",
    "-t tag_bw -s 200000",
    "-t ucp_put_bw -s 5000",
    "-t ucp_put_lat -s 200000",
    "-t ucp_get -s 8",
    "-t ucp_get -s 200000",
    "-t ucp_add -s 8",
    "-t ucp_fadd -s 8",
    "-t ucp_cswap -s 8",
    "-t ucp_am_bw -s 5000",
    "-t ucp_am_lat -s 200000",
    "-t stream_bw -s 5000",
];

#[test]
fn reliable_connections_between_two_hosts() {
    perftest("rc_verbs,ud_verbs:aux", &OPERATIONS, Where::TwoHosts);
}

#[test]
fn reliable_connections_on_one_address() {
    perftest("rc_verbs,ud_verbs:aux", &OPERATIONS, Where::OneAddress);
}

#[test]
fn datagrams_between_two_hosts() {
    perftest("ud_verbs", &OPERATIONS, Where::TwoHosts);
}

#[test]
fn datagrams_on_one_address() {
    perftest("ud_verbs", &OPERATIONS, Where::OneAddress);
}

/// The transports alone, without the protocols that UCX adds.
#[test]
fn transports_by_themselves() {
    let rc = [
        "-t am_lat -D short",
        "-t am_bw -D bcopy -s 1000",
        "-t am_bw -D zcopy -s 1000",
        "-t put_lat -D short",
        "-t put_bw -D zcopy -s 100000",
        "-t get -D bcopy -s 1000",
        "-t get -D zcopy -s 100000",
        "-t add_mr",
        "-t fadd",
        "-t cswap",
    ];
    perftest("-x rc_verbs", &rc, Where::TwoHosts);
    perftest("-x ud_verbs", &["-t am_lat -D short", "-t am_bw -D zcopy -s 1000"], Where::TwoHosts);
}

#[test]
fn connections_by_address_between_two_hosts() {
    by_address(Where::TwoHosts);
}

#[test]
fn connections_by_address_on_one_address() {
    by_address(Where::OneAddress);
}

/// UCX's `io_demo` connects by rdma_cm. Both ends check all bytes that they receive (`-q`), first
/// with tags and then with active messages. The server notices the end of each client.
#[track_caller]
fn by_address(place: Where) {
    let enter = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let script = format!(
        r#"
        export UCX_TLS=rc_verbs,ud_verbs:aux UCX_NET_DEVICES=rxe0:1 UCX_SOCKADDR_TLS_PRIORITY=rdmacm
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        demo='io_demo -v -q -d 64:300000'
        for api in '' -A; do
            timeout -k 1 60 $RXE run -- $demo $api -p 1337 > server 2>&1 & server=$!
            trap 'kill $server' EXIT
            until grep -q 'started listener' server; do
                kill -0 $server || {{ cat server; exit 1; }}
                sleep 0.05
            done
            ss -Htln 'sport = :1337'
            timeout -k 1 60 {enter} $RXE run -- $demo $api -i 100 -o read,write 10.9.0.1:1337                 > client 2>&1 || {{ cat server client; exit 1; }}
            until grep -q 'Connection reset by remote peer' server; do
                kill -0 $server || {{ cat server; exit 1; }}
                sleep 0.05
            done
            grep -o "Client exit with status 'OK'" client
            kill $server
            trap - EXIT
            wait $server || true
        done"#
    );
    let Some(said) = alone(&format!("UCX by address ({place:?})"), "io_demo", &script) else {
        return;
    };
    // Nothing else was printed, which shows that no TCP socket listened either.
    assert_eq!(said, "Client exit with status 'OK'\n".repeat(2));
}

/// Runs `ucx_perftest` with each of these options. The transports are those of `UCX_TLS`, or one
/// with `-x`. No other transport and no other devices are available.
#[track_caller]
fn perftest(transports: &str, operations: &[&str], place: Where) {
    let program = match transports.strip_prefix("-x ") {
        Some(one) => format!("ucx_perftest -x {one} -d rxe0:1"),
        None => format!("env UCX_TLS={transports} UCX_NET_DEVICES=rxe0:1 ucx_perftest"),
    };
    let enter = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let plays: String = operations.iter().map(|o| format!("play {o} -n 100 -w 10\n")).collect();
    let script = format!(
        r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        port=13337
        play() {{
            port=$((port + 1))
            timeout 60 $RXE run -- {program} -p $port "$@" > server 2>&1 & server=$!
            until ss -Htln "sport = :$port" | grep -q . || ! kill -0 $server 2> gone; do
                sleep 0.02
            done
            ended=0
            timeout 60 {enter} $RXE run -- {program} -p $port "$@" 10.9.0.1 > client 2>&1 || ended=$?
            # It looks for a GID in a table with empty entries.
            grep -q 'rxe: ibv_query_gid' server client && ended=1
            wait $server && [ $ended = 0 ] && return
            echo "$*: exit codes: server $?, client $ended"
            echo "-- server"; cat server
            echo "-- client"; cat client
            exit 1
        }}
        {plays}"#
    );
    alone(&format!("{transports} ({place:?})"), "ucx_perftest", &script);
}

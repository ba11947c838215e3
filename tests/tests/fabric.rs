//! libfabric's verbs provider and qperf with the preloaded library, both sides on our devices:
//! between two hosts, which are network namespaces of the test's own, and between two processes on
//! one address.

mod common;

use common::{Where, alone, in_namespace, installed};

#[test]
fn fi_info_lists_the_devices() {
    let Some(out) = alone("fi_info", "fi_info", "$RXE run -- fi_info 2> said") else { return };
    for (domain, kind) in
        [("rxe_veth0", "FI_EP_MSG"), ("rxe_veth0", "FI_EP_RDM"), ("rxe_veth0-dgram", "FI_EP_DGRAM")]
    {
        let entry = out.split("provider: ").find(|entry| {
            let has = |line: &str| entry.lines().any(|l| l.trim() == line);
            entry.starts_with("verbs")
                && has(&format!("domain: {domain}"))
                && has(&format!("type: {kind}"))
        });
        assert!(entry.is_some(), "{domain} {kind}: {out}");
    }
    // The first device must be one that leads to other hosts.
    let verbs = out.find("domain: rxe_").map(|at| &out[at..]);
    assert!(verbs.is_some_and(|first| first.starts_with("domain: rxe_veth0")), "{out}");
}

#[test]
fn fi_info_tells_what_an_endpoint_can_do() {
    let script = "$RXE run -- fi_info -v -p verbs -t FI_EP_MSG -d rxe_veth0 2> said";
    let Some(out) = alone("fi_info -v", "fi_info", script) else { return };
    for line in [
        "caps: [ FI_MSG, FI_RMA, FI_ATOMIC, FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ, \
         FI_REMOTE_WRITE, FI_LOCAL_COMM, FI_REMOTE_COMM ]",
        "src_addr: fi_sockaddr_in://10.9.0.1:0",
        "src_addr: fi_sockaddr_in6://[fd09::1]:0",
        "protocol: FI_PROTO_RDMA_CM_IB_RC",
        "name: rxe_veth0",
        "state: FI_LINK_UP",
        "network_type: Ethernet",
    ] {
        assert!(out.lines().any(|l| l.trim() == line), "{line}: {out}");
    }
}

#[test]
fn messages() {
    pingpong("-p verbs -e msg -c -I 5 -S all", Where::TwoHosts);
    pingpong("-p verbs -e msg -c -I 5 -S all", Where::OneAddress);
}

#[test]
fn reliable_datagrams() {
    pingpong("-p verbs -e rdm -c -I 5 -S all", Where::TwoHosts);
    pingpong("-p verbs -e rdm -c -I 5 -S all", Where::OneAddress);
}

#[test]
fn datagrams() {
    pingpong("-p verbs -e dgram -c -I 5 -S all", Where::TwoHosts);
    pingpong("-p verbs -e dgram -c -I 5 -S all", Where::OneAddress);
}

/// Runs fi_pingpong with all sizes that the endpoint supports (-S all), and compares every byte
/// (-c). Datagrams use GID 0, the link-local address, which is not immediately usable.
///
/// The rdm endpoint of libfabric 1.17 has a bug at its end: if it learns that the peer has left
/// before it has polled the last completions, it destroys the queue pair, and its completions with
/// it. Then it reports them as flushed (125), waits for them (124 by `timeout`), or posts a receive
/// to a closed object (139). A capture of the first case shows that the last message was
/// acknowledged before the peer left. Therefore an rdm endpoint is judged by the lines of all
/// sizes, and the bug is reported.
#[track_caller]
fn pingpong(options: &str, place: Where) {
    let name = format!("fi_pingpong {options} ({place:?})");
    if !installed(&name, "fi_pingpong") {
        return;
    }
    let at = match place {
        Where::TwoHosts => FAR,
        Where::OneAddress => HERE,
    };
    let script = format!(
        r#"
        set +e
        while ip -6 address show tentative | grep -q . ||
            ip -n far -6 address show tentative | grep -q .
        do sleep 0.05; done
        timeout 60 $RXE run -- fi_pingpong {options} > server 2>&1 & server=$!
        until ss -Htln 'sport = :47592' | grep -q . || ! kill -0 $server; do sleep 0.05; done
        timeout 60 {at} $RXE run -- fi_pingpong {options} 10.9.0.1 > client 2>&1
        client=$?
        wait $server
        server=$?
        echo "exit codes: server $server, client $client"
        echo "-- server"; cat server
        echo "-- client"; cat client
        "#
    );
    let Some(out) = in_namespace(&name, &script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    if said.starts_with("exit codes: server 0, client 0") {
        return;
    }
    let codes = said.lines().next().unwrap_or_default();
    let mut ends =
        codes.split_whitespace().filter_map(|word| word.trim_end_matches(',').parse().ok());
    let known = ends.all(|code: u32| [0, 124, 125, 139].contains(&code));
    let sizes = |end: &str| end.lines().filter(|line| line.starts_with("6m ")).count();
    let whole = said
        .split_once("-- client")
        .is_some_and(|(server, client)| sizes(server) == 1 && sizes(client) == 1);
    assert!(options.contains("-e rdm") && known && whole, "{name}\n{said}");
    eprintln!("{name}: all sizes passed; then libfabric met its own fault: {codes}");
}

#[test]
fn qperf_by_rdma_cm() {
    let rc = |at, tests| qperf(at, "", "-cm1", tests);
    rc(FAR, "rc_bw rc_bi_bw rc_lat rc_compare_swap_mr rc_fetch_add_mr");
    rc(HERE, "rc_bi_bw rc_rdma_read_lat ver_rc_compare_swap ver_rc_fetch_add");
}

#[test]
fn qperf_reads_and_writes_by_rdma_cm() {
    let tests = "rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat \
                 rc_rdma_write_poll_lat";
    qperf(FAR, "", "-cm1", tests);
}

#[test]
fn qperf_by_lid() {
    let tests = "rc_lat uc_bw uc_bi_bw uc_lat uc_rdma_write_bw uc_rdma_write_lat \
                 uc_rdma_write_poll_lat";
    qperf(FAR, "--lids", "-mt 1024", tests);
    qperf(FAR, "--lids", "-m 1K", "ud_bw ud_bi_bw ud_lat");
    qperf(HERE, "--lids", "-m 1K", "ud_bw ud_lat");
}

#[test]
fn without_lids_a_program_that_knows_nothing_else_hears_why_it_is_refused() {
    let script = "
        set +e
        $RXE run -- ibv_devinfo -d rxe_veth0 | grep -w port_lid
        $RXE run -- qperf > server 2>&1 & server=$!
        until ss -Htln 'sport = :19765' | grep -q . || ! kill -0 $server; do sleep 0.05; done
        timeout 60 ip netns exec far $RXE run -- qperf 10.9.0.1 -mt 1024 uc_lat 2>&1
        echo exit code $?
        cat server
        kill $server
    ";
    if !installed("refused", "qperf") {
        return;
    }
    let Some(out) = alone("refused", "ibv_devinfo", script) else { return };
    let lid = out.lines().next().and_then(|line| line.split_whitespace().last());
    assert_eq!(lid, Some("0"), "{out}");
    assert!(out.contains("exit code 1") && out.contains("`rxe run --lids` at both ends"), "{out}");
}

const FAR: &str = "ip netns exec far";
const HERE: &str = "";

/// Runs tests of one second each, with the options `run` at both ends. With rdma_cm, qperf's server
/// tells its client the port before it listens there. A client that is faster is refused, and tries
/// again. The client ends the server at the end.
#[track_caller]
fn qperf(at: &str, run: &str, options: &str, tests: &str) {
    let name = format!("qperf {options} {tests} ({run} {at})");
    if !installed(&name, "qperf") {
        return;
    }
    let script = format!(
        r#"
        set +e
        timeout 100 $RXE run {run} -- qperf > server 2>&1 & server=$!
        until ss -Htln 'sport = :19765' | grep -q . || ! kill -0 $server; do sleep 0.05; done
        for test in {tests}; do
            for try in $(seq 20); do
                timeout 60 {at} $RXE run {run} -- qperf 10.9.0.1 {options} -t 1 $test > client 2>&1
                code=$?
                grep -q "Event rejected" client || break
            done
            echo "$test: exit code $code"
            [ $code = 0 ] || cat client
        done
        timeout 60 {at} $RXE run {run} -- qperf 10.9.0.1 quit
        wait $server
        echo "server: exit code $?"
        cat server
        "#
    );
    let Some(out) = in_namespace(&name, &script) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    for test in tests.split_whitespace().chain(["server"]) {
        let good = format!("{test}: exit code 0");
        assert!(said.lines().any(|line| line == good), "{name}: {test}\n{said}");
    }
}

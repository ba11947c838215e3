//! `rxe perf`: every operation runs and counts its messages. Speed is not checked.

mod util;

use serde_json::Value;
use util::{Dir, L2, LOOPBACK, VETH, both, in_namespace};

/// Runs a measurement, and returns the JSON of the client and of the server.
fn perf(name: &str, test: &str, options: &str) -> Option<(Value, Value)> {
    let server = format!("perf {test} --json");
    let client = format!("perf {test} {options} --json 10.9.0.1");
    let said = both(name, VETH, &server, &client)?;
    Some((said.client.json(), said.server.json()))
}

#[test]
fn every_operation_has_bandwidth() {
    let name = "every_operation_has_bandwidth";
    for (op, options, messages) in [
        ("send", "-n 300", 300),
        ("write", "-n 300 -q 3", 900),
        ("write", "-n 140 -q 300 -s 64", 42_000),
        ("read", "-n 300 -o 4 -e", 300),
        ("atomic", "-n 300 -A CMP_AND_SWAP", 300),
        ("write", "-n 205 -b -Q 1 -t 7 -I 64 -s 64", 205),
        ("send", "-n 205 -b -e -r 16", 205),
    ] {
        let Some((client, server)) = perf(name, &format!("{op} bw"), options) else { return };
        let row = &client["results"][0];
        assert_eq!(row["iterations"], messages, "{op} {options}: {client}");
        for rate in ["bw_peak_bytes_per_second", "bw_average_bytes_per_second"] {
            assert!(row[rate].as_f64() > Some(0.0), "{op} {options}: {client}");
        }
        assert!(row["sent_pkts"].as_u64() >= Some(messages), "{op} {options}: {client}");
        assert!(row["retransmitted_pkts"].as_u64() <= row["sent_pkts"].as_u64(), "{client}");
        // Each side's rates may cover another time span, so only the messages are compared.
        assert_eq!(server["results"][0]["iterations"], messages, "{op} {options}: {server}");
        assert_eq!(client["local"], server["remote"]);
        assert_eq!(client["gid_index"], 1, "the first is the link-local address: {client}");
    }
}

#[test]
fn every_operation_has_latency() {
    let name = "every_operation_has_latency";
    for (op, options, messages) in [
        ("send", "-n 200", 200),
        ("send", "-n 200 -e", 200),
        ("write", "-n 300 -s 5000", 300),
        ("read", "-n 200", 200),
        ("atomic", "-n 200 -e", 200),
    ] {
        let Some((client, server)) = perf(name, &format!("{op} lat"), options) else { return };
        assert_eq!(client["results"], server["results"], "{op} {options}");
        let row = &client["results"][0];
        assert_eq!(row["iterations"], messages, "{op} {options}");
        let times = ["t_min_usec", "t_typical_usec", "percentile_99_usec", "t_max_usec"];
        let times = times.map(|name| row[name].as_f64().unwrap());
        // The histogram rounds to a thousandth.
        assert!(times[0] > 0.0 && times.is_sorted_by(|a, b| *a <= b * 1.002), "{row}");
    }
}

#[test]
fn packets_that_are_sent_again_are_counted_for_each_size() {
    let name = "packets_that_are_sent_again_are_counted_for_each_size";
    // Each message has 16 packets. With -b, both sides send.
    for (options, packets) in [("-n 100 -s 16K", 1600), ("-n 100 -s 16K -b", 3200)] {
        let options = format!("{options} -m 1024 --seed 1 --fault 'drop 3%'");
        let Some((client, server)) = perf(name, "write bw", &options) else { return };
        let row = &client["results"][0];
        let [sent, again] = ["sent_pkts", "retransmitted_pkts"].map(|n| row[n].as_u64().unwrap());
        assert!(again > 0 && sent >= packets + again, "{options}: {client}");
        assert_eq!(row["retransmitted_pkts"], server["results"][0]["retransmitted_pkts"]);
    }
    // The second size does not include the retransmissions of the first.
    let options = "-a -n 5 -m 1024 --seed 1 --fault 'out: drop 1'";
    let Some((client, _)) = perf(name, "write bw", options) else { return };
    let rows = client["results"].as_array().unwrap();
    assert!(rows[0]["retransmitted_pkts"].as_u64() > Some(0), "{client}");
    assert!(rows[1]["sent_pkts"].as_u64() < Some(5 + 5), "{client}");
}

#[test]
fn a_receive_buffer_is_as_large_as_was_asked() {
    let name = "a_receive_buffer_is_as_large_as_was_asked";
    let script = r#"
        $RXE perf write bw -d lo --recv-buffer 64K > out 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do sleep 0.05; kill -0 $server; done
        ss -Huanm 'sport = :4791'
        kill $server
    "#;
    let dir = Dir::new();
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    // The kernel also counts its overhead per packet, and doubles the size for that.
    assert!(String::from_utf8_lossy(&out.stdout).contains(",rb131072,"), "{out:?}");
}

#[test]
fn endpoints_of_layer_2_are_measured() {
    let name = "endpoints_of_layer_2_are_measured";
    for test in ["send bw", "read bw", "write lat"] {
        let server = format!("perf {test} -d own1 --json");
        let client = format!("perf {test} -d own2 -n 200 --json 127.0.0.1");
        let Some(said) = both(name, L2, &server, &client) else { return };
        for (end, device) in [(said.server.json(), "own1"), (said.client.json(), "own2")] {
            assert_eq!(end["results"][0]["iterations"], 200, "{test}: {end}");
            assert_eq!((&end["backend"], &end["device"]), (&"l2".into(), &device.into()), "{end}");
        }
    }
}

#[test]
fn what_unreliable_services_lose_is_counted() {
    let name = "what_unreliable_services_lose_is_counted";
    for (op, options, messages) in [
        ("send", "-c UC -n 300", 300),
        ("send", "--transport uc -n 300 -s 300 -q 3 -e", 900),
        ("write", "-c UC -n 300", 300),
        ("write", "-c UC -n 300 -s 64 -I 64 -e", 300),
        ("write", "-c UC -n 205 -b -m 256", 205),
        ("send", "-c UD -n 300", 300),
        ("send", "-c UD -n 300 -b -q 2 -s 1", 600),
    ] {
        let Some((client, server)) = perf(name, &format!("{op} bw"), options) else { return };
        let row = &client["results"][0];
        assert_eq!(row["iterations"], messages, "{op} {options}: {client}");
        let directions = if options.contains("-b") { 2 } else { 1 };
        let lost = row["lost"].as_u64().unwrap();
        assert!(lost <= messages * directions, "{op} {options}: {client}");
        let rate = row["messages_per_second"].as_f64().unwrap();
        assert_eq!(rate > 0.0, lost < messages * directions, "{op} {options}: {client}");
        assert_eq!(server["results"][0]["lost"], lost, "{op} {options}: {server}");
    }
    // The sender posts more at a time than the one posted receive.
    let Some((client, _)) = perf(name, "send bw", "-c UD -n 2000 -r 1 -s 8") else { return };
    let lost = client["results"][0]["lost"].as_u64().unwrap();
    assert!(0 < lost && lost < 2000, "{client}");
}

#[test]
fn unreliable_services_have_latency() {
    let name = "unreliable_services_have_latency";
    for (op, options) in [
        ("send", "-c UC -n 200"),
        ("send", "-c UC -n 200 -e -s 5000"),
        ("write", "-c UC -n 200 -s 5000"),
        ("send", "-c UD -n 200"),
        ("send", "-c UD -n 200 -e -s 1024"),
    ] {
        let Some((client, server)) = perf(name, &format!("{op} lat"), options) else { return };
        assert_eq!(client["results"], server["results"], "{op} {options}");
        let row = &client["results"][0];
        let rounds = row["iterations"].as_u64().unwrap() + row["lost"].as_u64().unwrap();
        assert_eq!(rounds, 200, "{op} {options}: {row}");
        assert!(row["t_min_usec"].as_f64() > Some(0.0), "{op} {options}: {row}");
    }
}

#[test]
fn datagrams_are_at_most_a_path_mtu() {
    let name = "datagrams_are_at_most_a_path_mtu";
    let sizes = |client: &Value| {
        let rows = client["results"].as_array().unwrap().iter();
        rows.map(|r| r["bytes"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let Some((client, _)) = perf(name, "send bw", "-c UD -n 100") else { return };
    assert_eq!(sizes(&client), [1024]);
    let Some((client, _)) = perf(name, "send bw", "-c UD -n 100 -a -m 512") else { return };
    assert_eq!(sizes(&client), (1..=9).map(|bit| 1 << bit).collect::<Vec<u64>>());
    let Some((client, _)) = perf(name, "send lat", "-c UD -n 10 -a") else { return };
    assert_eq!(sizes(&client), (1..=10).map(|bit| 1 << bit).collect::<Vec<u64>>());
}

#[test]
fn all_sizes_and_a_duration_can_be_asked_for() {
    let name = "all_sizes_and_a_duration_can_be_asked_for";
    let Some((client, _)) = perf(name, "write bw", "-a -n 5 -t 4") else { return };
    let rows = client["results"].as_array().unwrap();
    let sizes: Vec<_> = rows.iter().map(|r| r["bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, (1..=23).map(|bit| 1 << bit).collect::<Vec<u64>>());

    for test in ["send bw", "read lat", "write bw -c UC", "send lat -c UD"] {
        let Some((client, _)) = perf(name, test, "-D 1 -s 64") else { return };
        let row = &client["results"][0];
        // A peer that got no CPU for the whole second sends no response.
        let rounds = [&row["iterations"], &row["lost"]].map(|n| n.as_u64().unwrap_or(0));
        assert!(rounds != [0, 0], "{test}: {row}");
    }
}

#[test]
fn it_looks_like_perftest() {
    let name = "it_looks_like_perftest";
    let options = "perf write bw -n 100 -s 4K --report_gbits 127.0.0.1";
    let Some(said) = both(name, LOOPBACK, "perf write bw", options) else { return };
    assert_eq!((said.client.code, said.server.code), (0, 0), "{said:?}");
    assert!(said.client.out.contains("RDMA_Write BW Test"), "{said:?}");
    let heading =
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]";
    let mut rest = said.client.out.lines().skip_while(|line| *line != heading).skip(1);
    let row: Vec<_> = rest.next().unwrap_or_default().split_whitespace().collect();
    assert_eq!((row.len(), &row[..2]), (5, &["4096", "100"][..]), "{said:?}");
    assert!(said.server.out.contains("* Waiting for client on port 18515 *"));
    assert_eq!(said.client.err, "", "no progress bar where there is no terminal");
}

#[test]
fn it_looks_like_perftest_where_messages_get_lost() {
    let name = "it_looks_like_perftest_where_messages_get_lost";
    for (test, cells) in [("send bw", 7), ("send lat", 11)] {
        let options = format!("perf {test} -c UD -n 100 127.0.0.1");
        let Some(said) = both(name, LOOPBACK, &format!("perf {test}"), &options) else { return };
        assert_eq!((said.client.code, said.server.code), (0, 0), "{said:?}");
        assert!(said.client.out.contains(" Connection type : UD "), "{said:?}");
        let mut rest = said.client.out.lines().skip_while(|line| !line.starts_with(" #bytes"));
        assert!(rest.next().unwrap().ends_with("   Lost       Lost[%]"), "{said:?}");
        assert_eq!(rest.next().unwrap().split_whitespace().count(), cells, "{said:?}");
    }
}

#[test]
fn a_peer_that_is_killed_is_missed_at_once() {
    let name = "a_peer_that_is_killed_is_missed_at_once";
    let script = r#"
        set +e
        # Kills one of the two in the middle; says what the other one said, and its exit code.
        one() {
            who=$1
            shift
            $RXE perf "$@" > out.server 2>&1 & server=$!
            tries=0
            until ss -Htln 'sport = :18515' | grep -q . || [ $tries -gt 1200 ]; do
                tries=$((tries + 1))
                kill -0 $server 2> gone || break
                sleep 0.05
            done
            $RXE perf "$@" -D 3600 127.0.0.1 > out.client 2>&1 & client=$!
            tries=0
            until grep -q '#bytes' out.client || [ $tries -gt 1200 ]; do
                tries=$((tries + 1))
                kill -0 $client 2> gone || break
                sleep 0.05
            done
            sleep 0.3
            if [ $who = client ]; then
                kill -KILL $client
                wait $server
            else
                kill -KILL $server
                wait $client
            fi
            echo "$who $?: $(cat out.server out.client | grep ^rxe:)"
        }
        for who in client server; do
            # Retries run out after half a minute only: it is not by them.
            one $who send bw -u 20
            one $who send bw -c UC
            one $who write bw -c UC -b
            one $who send bw -c UD -e
            one $who send lat -e -u 20
            one $who send lat -c UD
            one $who write lat -c UC
        done
    "#;
    let dir = Dir::new();
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(said.lines().count(), 14, "{out:?}");
    for line in said.lines() {
        let (_, rest) = line.split_once(' ').unwrap();
        assert_eq!(
            rest,
            "1: rxe: the peer hung up before it was done: see what it printed, or whether it was killed"
        );
    }
}

#[test]
fn ends_that_do_not_fit_say_so() {
    let name = "ends_that_do_not_fit_say_so";
    for (server, client, what) in [
        (
            "write bw",
            "send lat",
            "the server runs `rxe perf write bw`, the client `rxe perf send lat`",
        ),
        ("write bw -m 256", "write bw -m 512", "the server wants path MTU 256, the client 512"),
        ("send bw -c RC", "send bw -c UC", "the server wants RC, the client UC: give the same"),
        (
            "send bw -d veth0",
            "send bw -d lo",
            "127.0.0.1 is a loopback address, which leads to no other",
        ),
        ("send bw -m 256", "send bw -c UD -s 512", "512 bytes do not fit a datagram, which holds"),
    ] {
        let client = format!("perf {client} 10.9.0.1");
        let Some(said) = both(name, VETH, &format!("perf {server}"), &client) else { return };
        for end in [&said.server, &said.client] {
            assert_eq!(end.code, 1, "{said:?}");
            assert!(end.err.contains(what) && end.err.lines().count() == 1, "{said:?}");
        }
    }
}

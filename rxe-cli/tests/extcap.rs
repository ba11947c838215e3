//! The requests of Wireshark to `rxe-extcap`, a link to `rxe` in its extcap directory, by hand and
//! by tshark.

use std::fs;
use std::process::{Command, Stdio};

use rxe_lab::capture::Reader;
use rxe_lab::frame::{self, Content};
use rxe_test_support::skipped;

mod util;
use util::{Dir, LOOPBACK, in_namespace};

/// Starts a server and a client that exchange packets. Other programs of this host are not visible.
const PROGRAMS: &str = r#"
    mount -t tmpfs none /dev/shm
    mkdir extcap
    ln -s "$RXE" extcap/rxe-extcap
    "$RXE" perf write bw -D 200 -d lo > server.out 2>&1 & server=$!
    until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
    "$RXE" perf write bw -D 200 -d lo 127.0.0.1 > client.out 2>&1 & client=$!
    echo $client > client.pid
    until "$RXE" stat --json --of $client 2> stat.err | grep '"sent_pkts"' | grep -q '[0-9][0-9][0-9]'; do
        sleep 0.05
    done
"#;

/// Asks like Wireshark. Captures until the reader ends, until a signal arrives, and until the
/// reader of a capture without packets ends.
const ASK: &str = r#"
    extcap/rxe-extcap --extcap-interfaces --extcap-version=4.4 > interfaces.out
    extcap/rxe-extcap --extcap-dlts --extcap-interface rxe > dlts.out
    extcap/rxe-extcap --extcap-interface rxe-$client --extcap-config > config.out
    extcap/rxe-extcap --extcap-capture-filter udp --extcap-interface rxe > filter.out

    mkfifo fifo
    extcap/rxe-extcap --capture --extcap-interface rxe-$client --fifo fifo 2> part.err & capture=$!
    head -c 20000 fifo > part.pcapng
    wait $capture
    extcap/rxe-extcap --capture --extcap-interface rxe --fifo fifo 2> ended.err & capture=$!
    cat fifo > ended.pcapng & reader=$!
    # More than what comes before the first packet.
    until [ "$(stat -c %s ended.pcapng)" -gt 20000 ]; do sleep 0.05; done
    kill -TERM $capture
    wait $capture $reader

    refused() { extcap/rxe-extcap $2 2> $1 || echo refused >> $1; }
    cat fifo > nobody.pcapng &
    refused nobody.err "--capture --extcap-interface rxe-1 --fifo fifo"
    refused filtered.err "--capture --extcap-interface rxe --extcap-capture-filter udp --fifo fifo"
    refused pipe.err "--capture --extcap-interface rxe --fifo no-pipe"
    refused bare.err

    kill $client $server
    wait $client $server || true
    extcap/rxe-extcap --extcap-interfaces > none.out
    extcap/rxe-extcap --capture --extcap-interface rxe --fifo fifo 2> idle.err & capture=$!
    head -c 1 fifo > idle.pcapng
    wait $capture
"#;

#[test]
fn it_answers_what_wireshark_asks() {
    let dir = Dir::new();
    let script = format!("{PROGRAMS}{ASK}");
    let Some(out) =
        in_namespace("it_answers_what_wireshark_asks", LOOPBACK, &script, &dir.file(""))
    else {
        return;
    };
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    assert!(out.status.success(), "{out:?} {}{}", read("server.out"), read("client.out"));

    let client = read("client.pid");
    let client = client.trim();
    let listed = read("interfaces.out");
    assert!(listed.starts_with("extcap {version="), "{listed}");
    assert!(listed.contains("\ninterface {value=rxe}{display=RDMA packets of all"), "{listed}");
    let line = format!("\ninterface {{value=rxe-{client}}}{{display=RDMA packets of rxe, process ");
    assert!(listed.contains(&line), "{listed}");
    assert_eq!(listed.lines().count(), 4, "{listed}");
    assert_eq!(read("none.out").lines().count(), 2, "{}", read("none.out"));
    assert_eq!(read("dlts.out"), "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    assert_eq!(read("config.out"), "");
    assert_eq!(read("filter.out").lines().count(), 1);

    // Wireshark shows all standard error output as an error.
    for name in ["part.err", "ended.err", "idle.err"] {
        assert_eq!(read(name), "", "{name}");
    }
    assert!(packets(&dir, "ended.pcapng").unwrap() > 0);
    assert_eq!(fs::metadata(dir.file("part.pcapng")).unwrap().len(), 20_000);
    for (name, said) in [
        ("nobody.err", "rxe: process 1 has no device open: "),
        ("filtered.err", "rxe: cannot capture: rxe has no capture filters: use a display filter\n"),
        ("pipe.err", "rxe: no-pipe is no named pipe: "),
        ("bare.err", "rxe: Wireshark runs this itself: "),
    ] {
        let text = read(name);
        assert!(text.starts_with(said) && text.ends_with("\nrefused\n"), "{name}: {text}");
    }
    assert!(!dir.file("no-pipe").exists());
}

/// Mounts over tshark's extcap directory, because root may not choose another.
const TSHARK: &str = r#"
    path=$(tshark -G folders 2> folders.err | sed -n 's/^\(Global \)\?Extcap path:[[:space:]]*//p')
    mount --bind extcap "$path"
    tshark -D > interfaces.out 2> interfaces.err
    tshark -i rxe -c 20 -w all.pcapng 2> all.err
    tshark -i rxe-$client -c 20 -w one.pcapng 2> one.err
    kill $client $server
"#;

#[test]
fn tshark_lists_and_captures() {
    let test = "tshark_lists_and_captures";
    let there = Command::new("tshark").arg("--version").stdout(Stdio::null()).status();
    if there.is_err() {
        return skipped(test, "tshark is not installed");
    }
    let dir = Dir::new();
    let script = format!("{PROGRAMS}{TSHARK}");
    let Some(out) = in_namespace(test, LOOPBACK, &script, &dir.file("")) else { return };
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    let all = ["folders.err", "interfaces.out", "interfaces.err", "all.err", "one.err"].map(read);
    assert!(out.status.success(), "{out:?} {all:#?}");
    let listed = read("interfaces.out");
    assert!(listed.contains(". rxe (RDMA packets of all your programs)\n"), "{listed}");
    let client = read("client.pid");
    assert!(
        listed.contains(&format!(". rxe-{} (RDMA packets of rxe, ", client.trim())),
        "{listed}"
    );
    for name in ["all.pcapng", "one.pcapng"] {
        assert_eq!(packets(&dir, name), Ok(20), "{all:#?}");
    }
}

/// Returns the number of packets in a capture, which must all be RDMA packets.
fn packets(dir: &Dir, name: &str) -> Result<u64, String> {
    let mut reader = Reader::open(dir.file(name)).map_err(|e| e.to_string())?;
    let mut count = 0;
    while let Some(record) = reader.next().map_err(|e| e.to_string())? {
        let frame = frame::decode(&record);
        assert!(matches!(frame.content, Content::Rdma(_)), "{:?}", frame.content);
        count += 1;
    }
    Ok(count)
}

//! Mistakes of a user get one line that says what is wrong and what to do, and an exit code that is
//! not 0. Each test has a loopback address of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rxe_test_support::skipped;

mod util;
use util::RXE;

/// Runs `rxe` in a directory of its own, in which it must leave nothing.
fn rxe(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(RXE).args(args).stdin(Stdio::null()).current_dir(&dir).output().unwrap();
    let left: Vec<_> = fs::read_dir(&dir).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.is_empty(), "{args:?} leaves {left:?}");
    out
}

/// Checks that `out` is a refusal whose message has all of `parts`.
#[track_caller]
fn refused(out: &Output, parts: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(matches!(out.status.code(), Some(1 | 2)), "{:?}: {said}", out.status);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("rxe: "), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
}

#[test]
fn a_choice_that_does_not_exist() {
    for (args, parts) in [
        (&["pingpong", "-d", "mlx5_0"][..], &["no device \"mlx5_0\": use "][..]),
        (&["pingpong", "-d", "lo", "-g", "99"], &["rxe_lo has no GID 99: choose one from 0 to "]),
        (&["pingpong", "-d", "lo", "-i", "2"], &["rxe_lo has no port 2: use port 1"]),
        (&["pingpong", "--address", "192.0.2.77"], &["no device has the address 192.0.2.77: "]),
        (&["pingpong", "-d", "lo", "--address", "10.1.1.1"], &["rxe_lo has no address 10.1.1.1: "]),
        (
            &["pingpong", "--address", "127.71.0.1", "-m", "1500"],
            &["1500 is not a path MTU: choose"],
        ),
        (&["demo", "-m", "1000"], &["1000 is not a path MTU: choose 256, 512"]),
        (&["pingpong", "--backend", "dpdk"], &["no backend dpdk: choose udp, packet or xdp"]),
        (
            &["pingpong", "-d", "lo", "--backend", "xdp"],
            &["needs an Ethernet interface, and lo is none"],
        ),
        (&["pingpong", "--transport", "xrc", "-t"], &["leave -t out"]),
        (&["pingpong", "--transport", "xrc", "-r", "9"], &["leave -r out"]),
        (&["pingpong", "--transport", "xrc", "-c", "3"], &["--clients 3 is the number of clients"]),
        (&["pingpong", "--clients", "3"], &["only --transport xrc has several clients"]),
        (&["pingpong", "-j"], &["leave -j out"]),
        (
            &["decode", "-", "--opcode", "sned"],
            &["'sned'", "no opcode is this number or has this in its name"],
        ),
        (
            &["decode", "-", "--only", "nonsense"],
            &[
                "'nonsense'",
                "[possible values: retransmitted, ",
                "bad-icrc, malformed, sequence-nak, ",
            ],
        ),
        (&["decode", "-", "--opcode", "300"], &["write a number up to 255, or a part of a name"]),
        (&["decode", "-", "--qp", "16777216"], &["a number of at most 24 bits is expected"]),
        (&["capture", "-i", ""], &["a value is required for '--interface <NETDEV>'"]),
        (&["capture", "-i", "none0"], &["there is no network interface none0: see `ip link`"]),
        (&["capture", "--of", "all", "-w", "-", "--ladder"], &["on standard output: name a file"]),
        (&["capture", "--of", "all", "-w", "a", "--ring", "1M"], &["are expected, as in 100Mx5"]),
        (&["ladder", "-", "--svg", "a", "--html", "a"], &["--svg and --html name the same file"]),
        (&["explain", "errno", "-1000"], &["there is no topic \"errno -1000\""]),
        (&["explain", "wc", "-1"], &["there is no topic \"wc -1\""]),
        (&["pingpong", "--fault", "errno=EIO@ibv_reg_mr"], &["of which this command makes none"]),
        (&["perf", "send", "bw", "--fault", "errno=EIO@ibv_reg_mr"], &["use it with `rxe run`"]),
        (&["pingpong", "no-such-host.invalid"], &["no-such-host.invalid", "check its name"]),
        (&["perf", "send", "sideways"], &["'sideways'", "bw, lat"]),
        (&["perf", "read", "bw", "-c", "UC", "::1"], &["UC has no read: it has send and write"]),
        (&["perf", "send", "bw", "-c", "XRC", "::1"], &["'XRC'", "rc, uc, ud"]),
        (&["perf", "-x", "99", "-d", "lo", "write", "bw"], &["rxe_lo has no GID 99"]),
    ] {
        refused(&rxe(args), parts);
    }
}

#[test]
fn numbers_out_of_range() {
    for args in [
        &["pingpong", "-s", "0"][..],
        &["pingpong", "-n", "0"],
        &["pingpong", "-r", "40000"],
        &["pingpong", "-p", "70000"],
        &["pingpong", "-p", "0"],
        &["pingpong", "-l", "16"],
        &["perf", "write", "bw", "-s", "0", "::1"],
        &["perf", "write", "bw", "-s", "9G", "::1"],
        &["perf", "write", "bw", "-n", "1", "::1"],
        &["perf", "write", "bw", "-D", "0", "::1"],
        &["perf", "write", "bw", "-q", "0", "::1"],
        &["perf", "write", "bw", "-u", "32", "::1"],
        &["perf", "write", "bw", "-q", "256", "-t", "15000", "::1"],
        &["perf", "write", "lat", "-q", "2", "::1"],
        &["perf", "write", "lat", "-e", "::1"],
        &["perf", "send", "lat", "-b", "::1"],
        &["perf", "atomic", "bw", "-s", "16", "::1"],
        &["perf", "read", "bw", "--transport", "uc", "::1"],
        &["perf", "atomic", "lat", "-c", "UC", "::1"],
        &["perf", "write", "bw", "-c", "UD", "::1"],
    ] {
        refused(&rxe(args), &[": "]);
    }
}

#[test]
fn a_udp_port_in_use() {
    let owner = UdpSocket::bind("127.73.0.1:4791").unwrap();
    for args in [&["pingpong"][..], &["perf", "read", "lat"]] {
        let args = [args, &["--address", "127.73.0.1"]].concat();
        let me = format!("process {}", std::process::id());
        refused(&rxe(&args), &["UDP port 4791 on 127.73.0.1 is in use", &me, "another address"]);
    }
    drop(owner);
}

#[test]
fn a_tcp_port_in_use() {
    let owner = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = owner.local_addr().unwrap().port().to_string();
    for args in [&["pingpong", "--address", "127.74.0.1"][..], &["perf", "read", "lat"]] {
        let args = [args, &["-p", &port]].concat();
        refused(&rxe(&args), &[&format!("TCP port {port} is in use: "), "-p"]);
    }
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for (args, start) in [
        (&["pingpong", "--address", "127.75.0.1"][..], "start `rxe pingpong` there first"),
        (&["perf", "read", "lat", "--address", "127.75.0.2"], "start `rxe perf read lat` there"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let capture = dir.path().join("capture.pcapng");
        fs::write(&capture, "yesterday's").unwrap();
        let pcap = ["--pcap", capture.to_str().unwrap()];
        let args = [args, &["-p", &port, "127.0.0.1"], &pcap].concat();
        refused(&rxe(&args), &["cannot connect to 127.0.0.1, TCP port", start]);
        assert_eq!(fs::read_to_string(&capture).unwrap(), "yesterday's", "{args:?}");
    }
}

#[test]
fn a_capture_that_can_not_be_written() {
    let file = "/nonexistent/capture.pcapng";
    for args in [
        &["demo"][..],
        &["pingpong", "--address", "127.76.0.1"],
        &["perf", "read", "lat", "--address", "127.76.0.1"],
    ] {
        let out = rxe(&[args, &["--pcap", file]].concat());
        refused(&out, &["cannot write the capture /nonexistent/capture.pcapng", "--pcap"]);
    }
    // The check runs before a file is read, a packet is sent, or a test is run.
    for report in [
        &["check", "/dev/null", "--junit"][..],
        &["conform", "--peer", "127.0.0.1:1", "--junit"],
        &["conform", "--peer", "127.0.0.1:1", "--html"],
    ] {
        for (file, why) in [
            ("/nonexistent/report", "No such file"),
            ("/proc", "is a directory"),
            ("-", "reports are not written to standard output"),
        ] {
            let out = rxe(&[report, &[file]].concat());
            refused(&out, &[&format!("cannot write {file}: "), why, "name another file"]);
            assert_eq!(out.status.code(), Some(2), "{report:?}");
        }
    }
    // Standard output carries the results.
    let write = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/scenarios/rc_send.toml");
    for args in [
        &["demo", "--pcap", "-"][..],
        &["pingpong", "--pcap", "-"],
        &["perf", "read", "lat", "--pcap", "-"],
        &["run", "--pcap", "-", "--", "true"],
        &["env", "--pcap", "-"],
        &["send", write, "--to", "127.0.0.1:1", "-w", "-"],
    ] {
        let out = rxe(args);
        refused(&out, &[" - asks for the capture on standard output", "name a file"]);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
    }
    // The check runs before the program is started.
    for (file, why) in [
        (file, "capture.pcapng: /nonexistent: No such file"),
        ("/proc", "/proc: it is a directory"),
        ("/proc/self/exe", "exe: it is a symbolic link, which is not followed"),
    ] {
        for args in [&["run", "--pcap", file, "--", "true"][..], &["env", "--pcap", file]] {
            refused(&rxe(args), &["cannot write the capture", why, "--pcap"]);
        }
    }
}

#[test]
fn a_capture_that_can_not_be_read() {
    for command in ["decode", "check", "ladder"] {
        let out = rxe(&[command, "/nowhere/at.pcap"]);
        refused(&out, &["/nowhere/at.pcap", "No such file"]);
        assert_eq!(String::from_utf8_lossy(&out.stdout), "", "{command}");
    }
    for picture in [["--svg", "out.svg"], ["--html", "out.html"]] {
        let args = [&["ladder", "/nowhere/at.pcap"][..], &picture].concat();
        refused(&rxe(&args), &["/nowhere/at.pcap", "No such file"]);
    }
}

#[test]
fn an_output_that_is_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("file"), dir.path().join("other"));
    let contents = "it is no capture, and no scenario";
    fs::write(&file, contents).unwrap();
    fs::hard_link(&file, &other).unwrap();
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    for output in [file, other] {
        for args in [
            &["ladder", file, "--svg", output][..],
            &["ladder", file, "--html", output],
            &["check", "/dev/null", file, "--junit", output],
            &["gen", file, "-w", output],
            &["send", file, "--to", "127.0.0.1:1", "-w", output],
            &["replay", file, "--to", "127.0.0.1:1", "-w", output],
        ] {
            let out = rxe(args);
            refused(&out, &[output, ": name another file for the output"]);
            assert_eq!(out.status.code(), Some(2), "{args:?}");
            assert_eq!(fs::read_to_string(file).unwrap(), contents, "{args:?}");
        }
    }
    // Standard input has no path to compare, so the message calls it by that name.
    let stdin = fs::File::open(file).unwrap();
    let out = Command::new(RXE).args(["gen", "-", "-w", other]).stdin(stdin).output().unwrap();
    refused(&out, &["other is the same file as standard input, which is read: name another"]);
    assert_eq!(fs::read_to_string(file).unwrap(), contents);
}

#[test]
fn a_backend_without_privilege() {
    // Root drops its privileges; other users have none.
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    let args = ["pingpong", "--address", "127.79.0.1", "--backend", "packet"];
    let out = if root {
        let drop = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
        Command::new("setpriv").args(drop).arg(util::reachable()).args(args).output()
    } else {
        Command::new(RXE).args(args).output()
    };
    match out {
        Ok(out) if String::from_utf8_lossy(&out.stderr).contains("setpriv") => {
            skipped("a_backend_without_privilege", "setpriv cannot drop privileges here");
        }
        Ok(out) => refused(&out, &["needs CAP_NET_RAW", "udp backend"]),
        Err(e) => skipped("a_backend_without_privilege", format_args!("setpriv: {e}")),
    }
}

/// Returns the output of a client whose server sends `says` and then hangs up.
fn client_of(says: &'static [u8], args: &[&str]) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(says).unwrap();
        // Read the client's message first, or closing the connection would reset it.
        let _ = stream.read(&mut [0; 4096]);
    });
    let out = rxe(&[args, &["-p", &port, "127.0.0.1"]].concat());
    server.join().unwrap();
    out
}

#[test]
fn a_server_that_hangs_up_or_is_something_else() {
    let pingpong = ["pingpong", "--address", "127.77.0.1"];
    let perf = ["perf", "read", "lat", "--address", "127.77.0.2"];
    for args in [&pingpong[..], &perf] {
        refused(&client_of(b"", args), &["the peer hung up before it was done"]);
        let parts = ["the peer speaks something else: \"SSH-2.0", "run `rxe p"];
        refused(&client_of(b"SSH-2.0-OpenSSH_9.2\r\n", args), &parts);
    }
    let other = b"{\"rxe-perf\":1}\n";
    refused(&client_of(other, &perf), &["version 1 of this exchange, not 2", "same release"]);
    // The GID is zero, as from a server that was started without -g.
    let no_gid = b"0000:000011:0a0b0c:00000000000000000000000000000000\0";
    refused(&client_of(no_gid, &pingpong), &["did not choose a GID", "-g INDEX"]);
    let ipv6 = b"0000:000011:0a0b0c:fd000000000000000000000000000001\0";
    refused(&client_of(ipv6, &pingpong), &["fd00::1 is IPv6", "same family"]);
}

/// Returns the output of a server whose client sends `says` and then hangs up. `port` belongs to
/// the test.
fn server_of(says: &[u8], port: u16, args: &[&str]) -> Output {
    let port_text = port.to_string();
    let server: Child = Command::new(RXE)
        .args([args, &["-p", &port_text]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let connected = (0..500).find_map(|_| {
        thread::sleep(Duration::from_millis(20));
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let mut stream = connected.expect("the server listens");
    stream.write_all(says).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    server.wait_with_output().unwrap()
}

#[test]
fn a_client_that_hangs_up_or_is_something_else() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let pingpong = ["pingpong", "--address", "127.78.0.1"];
    let perf = ["perf", "read", "lat", "--address", "127.78.0.2"];
    for args in [&pingpong[..], &perf] {
        refused(&server_of(b"", port, args), &["the peer hung up before it was done"]);
        let stranger = server_of(b"GET / HTTP/1.1\r\n\r\n", port, args);
        refused(&stranger, &["the peer speaks something else: \"GET / HTTP/1.1"]);
    }
    // A client that hangs up before it has sent "done".
    let message = b"0000:000011:0a0b0c:00000000000000000000ffff7f000001\0";
    refused(&server_of(message, port, &pingpong), &["the peer hung up before it was done"]);
    refused(&server_of(message, port, &perf), &["something else: \"0000:000011:", "rxe perf"]);
    refused(&server_of(b"{\"rxe-perf\":7}\n", port, &perf), &["version 7 of this exchange"]);
}

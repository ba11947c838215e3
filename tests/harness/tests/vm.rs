//! The harness of kernel VMs: a command behaves in a VM as it does on the host.

use rxe_harness::or_skip;
use rxe_harness::peer::{Peer, pattern};
use rxe_harness::scenario::{ALL, End, Gid};
use rxe_harness::vm::{Cmd, HOST_V4, Kernel, Net, Result, Spec, Vm};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Boots one VM for all tests, because booting is slow. The VM ends with this process.
fn boot() -> Result<&'static (Net, Vm)> {
    static ONCE: OnceLock<Result<(Net, Vm)>> = OnceLock::new();
    let made = ONCE.get_or_init(|| {
        let net = Net::tap(4200)?;
        let vm = Vm::boot(&net, &Kernel::find("6.1")?, &Spec::default())?;
        Ok((net, vm))
    });
    made.as_ref().map_err(Clone::clone)
}

#[test]
fn commands_in_a_vm_behave_as_commands_here() {
    let Some((net, vm)) = or_skip(boot()) else { return };

    let out = vm.run(Cmd::sh("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!((out.code, out.stdout, out.stderr), (7, b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(vm.run(Cmd::sh("kill -TERM $$")).unwrap().code, 128 + 15);
    assert!(vm.run(["/no/such/program"]).unwrap_err().to_string().contains("No such file"));

    // The VM can read the host's files, except in /run and /dev. Files that a command writes are
    // the VM's own.
    let on_host = tempfile::Builder::new().prefix("a space, 新").tempdir_in("/var/tmp").unwrap();
    let file = on_host.path().join("file");
    fs::write(&file, "the host's").unwrap();
    let read = Cmd::new("cat").arg(file.to_str().unwrap());
    assert_eq!(vm.run(read).unwrap().ok().unwrap(), "the host's");
    let own = vm.run(Cmd::sh("cd; echo own > $TMPDIR/own; cat own")).unwrap();
    assert_eq!(own.ok().unwrap(), "own\n");

    let devices = vm.run(["ibv_devices"]).unwrap().ok().unwrap();
    assert!(devices.contains("rxe0"), "{devices}");
    let active = vm.run(["ibv_devinfo"]).unwrap().ok().unwrap();
    assert!(active.contains("active_mtu:\t\t4096"), "{active}");

    // Two commands run simultaneously. One gets input while it runs, and is then killed.
    let cat = vm.spawn(["cat"]).unwrap();
    let mut input = cat.stdin();
    let mut output = BufReader::new(cat.stdout());
    let sleeper = vm.spawn(["sleep", "1000"]).unwrap();
    for word in ["one\n", "two\n"] {
        input.write_all(word.as_bytes()).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, word);
    }
    sleeper.kill("KILL");
    assert_eq!(sleeper.wait().unwrap(), 128 + 9);
    drop(input);
    assert_eq!(cat.wait().unwrap(), 0);

    // The output is larger than any buffer on the way.
    let out = vm.run(Cmd::sh("head -c 3000000 /dev/zero; echo end")).unwrap();
    assert_eq!((out.stdout.len(), out.code), (3_000_004, 0));

    // A TCP connection from the host end of the link.
    let server = vm.spawn(["busybox", "nc", "-l", "-p", "7000", "-e", "echo", "hello"]).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let hello = loop {
        let mut client = net.command("busybox");
        let client = client.args(["nc", &vm.v4().to_string(), "7000"]).output().unwrap();
        if client.status.success() || Instant::now() > end {
            break client.stdout;
        }
    };
    assert_eq!(String::from_utf8_lossy(&hello), "hello\n");
    assert_eq!(server.wait().unwrap(), 0);
    assert_eq!(HOST_V4.octets()[..3], vm.v4().octets()[..3]);
}

/// The kernel halts after a panic. An emulated one may halt although it was told to end the VM.
#[test]
fn a_kernel_that_panics_ends_what_waits_for_it() {
    let booted = Net::tap(1500).and_then(|net| {
        let vm = Vm::boot(&net, &Kernel::find("6.1")?, &Spec::default())?;
        Ok((net, vm))
    });
    let Some((_net, vm)) = or_skip(booted) else { return };
    let sleeper = vm.spawn(["sleep", "1000"]).unwrap();
    let crash =
        "cd /proc; echo 0 > sys/kernel/panic; echo 1 > sys/kernel/sysrq; echo c > sysrq-trigger";
    for ended in [vm.run(Cmd::sh(crash)).map(drop), sleeper.wait().map(drop)] {
        let why = ended.unwrap_err().to_string();
        assert!(why.starts_with("vm1's kernel panicked; console: "), "{why}");
        assert!(why.contains("Kernel panic - not syncing: sysrq triggered crash"), "{why}");
    }
    assert!(vm.run(["true"]).unwrap_err().to_string().contains("kernel panicked"));
}

#[test]
fn the_peers_pattern_is_the_one_the_protocol_defines() {
    let Some((_, vm)) = or_skip(boot()) else { return };
    let mut peer = Peer::in_vm(vm).unwrap();
    let ctx = peer.call("open", json!({})).unwrap()["ctx"].clone();
    let pd = peer.call("pd", json!({"ctx": ctx})).unwrap()["pd"].clone();
    peer.call("mr", json!({"pd": pd, "size": 40000})).unwrap();
    for (seed, at, len) in [(7, 0, 40000), (0xffff_fff0, 63, 1000), (0x1234, 64 * 255 + 8, 57)] {
        let range = json!({"mr": 1, "seed": seed, "at": at, "len": len});
        peer.call("fill", range.clone()).unwrap();
        let answer = peer.call("read", json!({"mr": 1, "len": len})).unwrap();
        let want: String = pattern(seed, at, len).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(answer["hex"], want);
        assert_eq!(peer.call("check", range).unwrap()["equal"], true);
        peer.call("write", json!({"mr": 1, "offset": 50, "hex": "a5"})).unwrap();
        let range = json!({"mr": 1, "seed": seed, "at": at, "len": len});
        assert_eq!(peer.call("check", range).unwrap()["first_diff"], 50);
    }
    let refused = peer.call("check", json!({"mr": 1, "seed": 1, "offset": 1, "len": 40000}));
    assert!(refused.unwrap_err().to_string().contains("PROTOCOL"));
}

/// The reference by which every other pair of implementations is judged.
#[test]
fn two_kernel_peers_hold_every_conversation() {
    let Some((_, vm)) = or_skip(boot()) else { return };
    let (mut a, mut b) = (Peer::in_vm(vm).unwrap(), Peer::in_vm(vm).unwrap());
    let open = a.call("open", json!({})).unwrap();
    let ctx = |open: &Value| open["ctx"].as_u64().unwrap();
    let (ctx_a, ctx_b) = (ctx(&open), ctx(&b.call("open", json!({})).unwrap()));
    let gid = Gid::pick(&open, &format!("::ffff:{}", vm.v4())).unwrap();
    for scenario in ALL {
        let ends = [End::new(&mut a, ctx_a, gid.clone()), End::new(&mut b, ctx_b, gid.clone())];
        let log = scenario.run(ends).unwrap_or_else(|e| panic!("{}: {e}", scenario.name));
        let first = log.iter().filter(|l| l["end"] == "a").find_map(|l| {
            Some(l["answer"]["wcs"].as_array()?.first()?["status"].as_str()?.to_owned())
        });
        let want = match scenario.name {
            "rnr_never" => "RNR_RETRY_EXC_ERR",
            "send_too_long" => "REM_OP_ERR",
            "peer_gone" => "RETRY_EXC_ERR",
            denied if denied.contains("wrong") || denied.contains("out_of") => "REM_ACCESS_ERR",
            denied if denied.contains("no_permission") => "REM_ACCESS_ERR",
            _ => "SUCCESS",
        };
        assert_eq!(first.as_deref(), Some(want), "{}", scenario.name);
    }
}

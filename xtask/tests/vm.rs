//! The kernel VM harness itself: commands in a VM behave as commands here do.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};
use xtask::or_skip;
use xtask::vm::{Cmd, HOST_V4, Kernel, Net, Result, Spec, Vm};

fn boot() -> Result<(Net, Vm)> {
    let net = Net::tap(4200)?;
    let vm = Vm::boot(&net, &Kernel::find("6.1")?, &Spec::default())?;
    Ok((net, vm))
}

/// One VM serves all of it: booting is what costs.
#[test]
fn commands_in_a_vm_behave_as_commands_here() {
    let Some((net, vm)) = or_skip(boot()) else { return };

    let out = vm.run(Cmd::sh("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!((out.code, out.stdout, out.stderr), (7, b"out\n".to_vec(), b"err\n".to_vec()));
    assert_eq!(vm.run(Cmd::sh("kill -TERM $$")).unwrap().code, 128 + 15);
    assert!(vm.run(["/no/such/program"]).unwrap_err().to_string().contains("No such file"));

    let devices = vm.run(["ibv_devices"]).unwrap().ok().unwrap();
    assert!(devices.contains("rxe0"), "{devices}");
    let active = vm.run(["ibv_devinfo"]).unwrap().ok().unwrap();
    assert!(active.contains("active_mtu:\t\t4096"), "{active}");

    // Two at once, one of them talked to as it runs and then killed.
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

    // More than any buffer on the way holds.
    let out = vm.run(Cmd::sh("head -c 3000000 /dev/zero; echo end")).unwrap();
    assert_eq!((out.stdout.len(), out.code), (3_000_004, 0));

    // The link: a connection from the host's end.
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

//! A program with more rights than its user (setuid) ignores all variables of the user. It loads no
//! file of the user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rxe_harness::c::Compiled;
use rxe_harness::or_skip;
use rxe_test_support::skipped;

mod common;
use common::{Dir, rxe};

const TEST: &str = "in_a_setuid_program_no_variable_counts";
/// The user ID of the user `nobody`, who runs the program.
const USER: u32 = 65534;

/// Returns the output of the program, and the number of files in the user's directory afterwards.
/// [`USER`] runs the program in a network of its own.
fn run(dir: &Path, mode: u32, device: &str) -> Result<(String, usize), String> {
    let program = dir.join("privileged");
    fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
    let users = dir.join(format!("users-{mode:o}-{device}"));
    fs::create_dir(&users).unwrap();
    chown(&users, Some(USER), Some(USER)).map_err(|e| format!("not root: {e}"))?;
    let script = format!(
        "ip link set lo up
        cd {users}
        export RXE_PCAP=$PWD/capture.pcapng RXE_DEVICE={device}
        exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all \
            env LD_PRELOAD={preloaded} {program} 2>&1",
        users = users.display(),
        preloaded = dir.join("preloaded.so").display(),
        program = program.display(),
    );
    // Not in a user namespace, which would have only one user.
    let out = Command::new("timeout").args(["60", "unshare", "-n", "sh", "-ec", &script]).output();
    let out = out.map_err(|e| format!("timeout: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() && !said.contains("secure ") {
        return Err(format!("{said}{}", String::from_utf8_lossy(&out.stderr)).replace('\n', "; "));
    }
    assert!(out.status.success() && said.ends_with("used\n"), "{said}");
    Ok((said, fs::read_dir(&users).unwrap().count()))
}

#[test]
fn in_a_setuid_program_no_variable_counts() {
    let dir = Dir::new();
    let library = dir.0.join("librxe_preload.so");
    fs::copy(rxe().with_file_name("librxe_preload.so"), &library).unwrap();
    let rpath = format!("-Wl,-rpath,{}", dir.0.display());
    let (program, preloaded) = ("tests/c/privileged.c", "tests/c/preloaded.c");
    let built = Compiled::linked(&[program], &[library.to_str().unwrap(), &rpath]);
    let Some(built) = or_skip(built) else { return };
    fs::copy(built.path(program), dir.0.join("privileged")).unwrap();
    let Some(built) = or_skip(Compiled::linked(&[preloaded], &["-shared", "-fPIC"])) else {
        return;
    };
    fs::copy(built.path(preloaded), dir.0.join("preloaded.so")).unwrap();

    // Without the setuid bit, all variables apply.
    let plain = run(&dir.0, 0o755, "rxe_lo").and_then(|one| Ok([one, run(&dir.0, 0o755, "none")?]));
    let [(captured, files), (other, _)] = match plain {
        Ok(plain) => plain,
        Err(why) => return skipped(TEST, &why),
    };
    assert!(captured.contains("secure 0, user 65534 of 65534\n"), "{captured}");
    assert!(captured.contains("is loaded") && captured.contains("devices: rxe_lo\n"), "{captured}");
    assert_eq!(files, 1, "a capture");
    assert!(other.contains("devices:\n"), "{other}");

    let (said, files) = run(&dir.0, 0o4755, "none").unwrap();
    if said.contains("secure 0") {
        return skipped(TEST, "the system ignores setuid here");
    }
    assert!(said.contains("secure 1, user 0 of 65534\n"), "{said}");
    assert!(said.contains("devices: rxe_lo\n"), "{said}");
    assert!(!said.contains("is loaded"), "{said}");
    assert_eq!(files, 0, "no capture");
}

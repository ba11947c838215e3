//! Helpers of the tests of commands that connect: a new network namespace in which two `rxe` run.
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rxe_harness::paths;
use rxe_test_support::skipped;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const RXE: &str = env!("CARGO_BIN_EXE_rxe");

/// Returns the path of `rxe`, with the preload library next to it if that is built. Shells and
/// other users can use the path.
pub(crate) fn reachable() -> PathBuf {
    let (rxe, library) = (Path::new(RXE), "librxe_preload.so");
    if paths::is_usable(rxe) {
        return rxe.to_owned();
    }
    let built = rxe.parent().expect("a directory");
    let files = if built.join(library).exists() { &["rxe", library][..] } else { &["rxe"] };
    paths::programs(built, files, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap().join("rxe")
}

/// Sets up loopback only.
pub(crate) const LOOPBACK: &str = "ip link set lo up";

/// Sets up two namespaces with a link: 10.9.0.1 and fd09::1 here, 10.9.0.2 and fd09::2 in `far`.
pub(crate) const VETH: &str = "
    mount -t tmpfs none /run
    ip netns add far
    ip link set lo up
    ip link add veth0 address 52:54:00:00:00:01 type veth peer name veth1 \
        address 52:54:00:00:00:02 netns far
    ip address add 10.9.0.1/24 dev veth0
    ip address add fd09::1/64 dev veth0 nodad
    ip link set veth0 up
    ip -n far address add 10.9.0.2/24 dev veth1
    ip -n far address add fd09::2/64 dev veth1 nodad
    ip -n far link set veth1 up
    ip -n far link set lo up
";

/// Sets up two layer 2 endpoints, `own1` and `own2`, on one Unix socket. Loopback is for the TCP
/// connection of the two commands.
pub(crate) const L2: &str = r#"
    ip link set lo up
    export XDG_RUNTIME_DIR=$PWD
    for n in 1 2; do
        # This runs twice in one directory.
        "$RXE" link delete own$n 2> /dev/null || true
        "$RXE" link add own$n type rxe l2 qemu:$PWD/wire address 10.0.0.$n/24 nodad
    done
"#;

/// A directory that is removed when the value is dropped.
pub(crate) struct Dir(TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("rxe-cli-").tempdir().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Runs a shell script in a new network namespace after `setup`, in `dir`. `$RXE` is the program.
/// Returns `None` and prints a line if this host does not allow one.
pub(crate) fn in_namespace(test: &str, setup: &str, script: &str, dir: &Path) -> Option<Output> {
    in_namespaces(test, "-Urnm", setup, script, dir)
}

/// Like [`in_namespace`], with these options of unshare(1).
fn in_namespaces(
    test: &str,
    options: &str,
    setup: &str,
    script: &str,
    dir: &Path,
) -> Option<Output> {
    let unshare = |script: &str| {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        Command::new("timeout")
            .args(["300", "unshare", options, "sh", "-ec", script])
            .env("PATH", path)
            .env("RXE", reachable())
            .current_dir(dir)
            .output()
    };
    let why = match unshare(setup) {
        Ok(out) if out.status.success() => return unshare(&format!("{setup}\n{script}")).ok(),
        Ok(out) => String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; "),
        Err(e) => format!("unshare: {e}"),
    };
    skipped(test, &why);
    None
}

/// The output of the two sides of a conversation.
#[derive(Debug)]
pub(crate) struct Both {
    pub(crate) server: Said,
    pub(crate) client: Said,
}

#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: i32,
}

impl Said {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// Runs `server` in the namespace that `setup` creates and, once it listens, `client`, which runs
/// in `far` if there is one. Both are arguments of `rxe`.
pub(crate) fn both(test: &str, setup: &str, server: &str, client: &str) -> Option<Both> {
    both_in_namespaces(test, "-Urnm", setup, server, client)
}

/// Like [`both`], in this process's user namespace, for operations that a new user namespace does
/// not permit.
pub(crate) fn both_as_root(test: &str, setup: &str, server: &str, client: &str) -> Option<Both> {
    both_in_namespaces(test, "-nm", setup, server, client)
}

fn both_in_namespaces(
    test: &str,
    options: &str,
    setup: &str,
    server: &str,
    client: &str,
) -> Option<Both> {
    let dir = Dir::new();
    let far = if setup == VETH { "ip netns exec far " } else { "" };
    let script = format!(
        r#"
        set +e
        "$RXE" {server} > server.out 2> server.err & server=$!
        tries=0
        until ss -Htln 'sport = :18515' | grep -q . || [ $tries -gt 1200 ]; do
            tries=$((tries + 1))
            kill -0 $server 2> kill.err || break
            sleep 0.05
        done
        {far}"$RXE" {client} > client.out 2> client.err
        echo $? > client.code
        # A server that nobody came to waits for ever; others may have something to say first.
        if [ $(cat client.code) != 0 ]; then
            tries=0
            while kill -0 $server 2> kill.err && [ $tries -lt 40 ]; do
                tries=$((tries + 1))
                sleep 0.05
            done
            kill $server 2> kill.err
        fi
        wait $server
        echo $? > server.code
        "#
    );
    let ran = in_namespaces(test, options, setup, &script, dir.file("").as_path())?;
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    let said = |who: &str| Said {
        out: read(&format!("{who}.out")),
        err: read(&format!("{who}.err")),
        code: read(&format!("{who}.code")).trim().parse().unwrap_or_else(|_| panic!("{ran:?}")),
    };
    Some(Both { server: said("server"), client: said("client") })
}

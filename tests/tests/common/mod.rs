//! Runs unmodified programs with the command `rxe`, in network namespaces of the test's own.

// Each test program uses only some of these functions.
#![allow(dead_code)]

use std::env;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rxe_harness::c::Compiled;
use rxe_harness::paths;
use rxe_test_support::skipped;
use tempfile::TempDir;

/// Two namespaces connected by a link: 10.9.0.1 and fd09::1 here, 10.9.0.2 and fd09::2 in `far`.
/// GID 1 of either is its IPv4 address.
const VETH: &str = "
    mount -t tmpfs none /run
    mount -t tmpfs none /dev/shm
    # Whether a program listens to a service of rdma_cm on this address. Of one that has ended the file
    # may be left, but not its lock. To try the lock would be to hold it for a moment.
    listens() {
        for claim in /dev/shm/rxe-*/*/$1/service-*; do
            [ -e $claim ] && inode=$(stat -c %i $claim) &&
                grep -q FLOCK'.* [^ ]*:'$inode' ' /proc/locks && return 0
        done
        return 1
    }
    # Whether a program that ended with exit code $1 and printed file $2 has succeeded. Before rdma-core
    # 61, rping may fail when all is done: one thread destroys the event channel, and another then asks
    # for an event. If anything else went wrong, it says what failed.
    succeeded() {
        [ $1 = 0 ] && return
        grep -q '^rdma_get_cm_event: Bad file descriptor' $2 && ! grep -q failed $2
    }
    ip netns add far
    ip link set lo up
    ip link add veth0 address 52:54:00:00:00:01 type veth peer name veth1 \
        address 52:54:00:00:00:02 netns far
    ip address add 10.9.0.1/24 dev veth0
    ip -6 address add fd09::1/64 dev veth0 nodad
    ip link set veth0 up
    ip -n far address add 10.9.0.2/24 dev veth1
    ip -n far -6 address add fd09::2/64 dev veth1 nodad
    ip -n far link set veth1 up
    ip -n far link set lo up
";

/// The place of the client. The server runs in the first namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Where {
    /// The client runs in `far`.
    TwoHosts,
    /// The client runs next to the server, on the same device and address.
    OneAddress,
}

/// Runs a server and, when it listens on `port`, a client, over UDP sockets. Both must succeed.
/// Returns their output.
#[track_caller]
pub(crate) fn both(
    program: &str,
    port: u16,
    setup: &str,
    server: &str,
    client: &str,
    place: Where,
) -> Option<String> {
    let test = format!("{setup} {client} ({place:?})");
    if !installed(&test, program) {
        return None;
    }
    let enter = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let script = format!(
        r#"
        set +e
        {setup}
        timeout 60 $RXE run -- {server} > server 2>&1 & server=$!
        tries=0
        until ss -Htln 'sport = :{port}' | grep -q . || [ $tries -gt 1200 ]; do
            tries=$((tries + 1))
            kill -0 $server 2> gone || break
            sleep 0.05
        done
        client='was not started'
        if kill -0 $server 2> gone; then
            timeout 60 {enter} $RXE run -- {client} > client 2>&1
            client=$?
        fi
        wait $server
        server=$?
        succeeded $server server && server=0
        [ -e client ] && succeeded $client client && client=0
        echo "exit codes: server $server, client $client"
        echo "-- server"; cat server
        echo "-- client"; [ ! -e client ] || cat client
        "#
    );
    let out = in_namespace(&test, &script)?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.starts_with("exit codes: server 0, client 0"), "{test}\n{said}");
    Some(said)
}

/// Runs a script with `program`. Returns its output.
pub(crate) fn alone(test: &str, program: &str, script: &str) -> Option<String> {
    if !installed(test, program) {
        return None;
    }
    let out = in_namespace(test, script)?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    Some(said)
}

/// The peer program of `rxe conform` and `rxe replay`.
pub(crate) const PEER: &str = "rxe-cli/src/common/peer/peer.c";

/// Returns lines of a script that start the peer program in `far` with `rxe run RUN`. They wait
/// until it listens. Then `$peer` is its process ID and `peer.log` its output.
pub(crate) fn start_peer(c: &Compiled, run: &str) -> String {
    let peer = c.path(PEER);
    let peer = peer.display();
    format!(
        r#"
        ip netns exec far $RXE run --explain off {run} -- {peer} > peer.log 2>&1 & peer=$!
        tries=0
        until grep -q listens peer.log || [ $tries -gt 1200 ]; do
            tries=$((tries + 1))
            kill -0 $peer || {{ cat peer.log >&2; exit 1; }}
            sleep 0.05
        done"#
    )
}

/// Returns whether a program is installed. If not, reports the test as skipped.
pub(crate) fn installed(test: &str, program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|out| out.status.success());
    if !found {
        skipped(test, format_args!("{program} is not installed"));
    }
    found
}

/// Whether the kernel permits namespaces, or the reason why not.
type Allowed = OnceLock<Result<(), String>>;

/// Runs a shell script in namespaces of its own; `$RXE` is the command. If this host does not
/// permit namespaces, reports the test as skipped and returns `None`.
pub(crate) fn in_namespace(test: &str, script: &str) -> Option<Output> {
    static ALLOWED: Allowed = OnceLock::new();
    in_namespaces("-Urnm", &ALLOWED, test, script)
}

/// Like [`in_namespace`], but in the user namespace of this process. There root may be permitted to
/// use BPF.
pub(crate) fn in_bpf_namespace(test: &str, script: &str) -> Option<Output> {
    static ALLOWED: Allowed = OnceLock::new();
    in_namespaces("-nm", &ALLOWED, test, script)
}

/// Like [`in_namespace`], with these options of unshare(1).
fn in_namespaces(options: &str, allowed: &Allowed, test: &str, script: &str) -> Option<Output> {
    let allowed = allowed.get_or_init(|| match unshare(options, &Dir::new(), VETH) {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ")),
        Err(e) => Err(format!("unshare: {e}")),
    });
    if let Err(why) = allowed {
        skipped(test, why);
        return None;
    }
    let dir = Dir::new();
    let mut out = unshare(options, &dir, &format!("{VETH}\n{script}")).unwrap();
    if !out.status.success() {
        out.stderr.extend(files(&dir.0));
    }
    Some(out)
}

/// Returns what the script has left in its directory. A failing script may have written the reason
/// there, with the output of a program in the background.
fn files(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap()) {
        let length = file.metadata().map_or(0, |it| if it.is_file() { it.len() } else { 0 });
        if (1..1 << 16).contains(&length) {
            all.extend(format!("-- {}\n", file.file_name().display()).bytes());
            all.extend(fs::read(file.path()).unwrap_or_default());
        }
    }
    all
}

fn unshare(options: &str, dir: &Dir, script: &str) -> io::Result<Output> {
    Command::new("timeout")
        .args(["300", "unshare", options, "sh", "-ec", script])
        .env("PATH", env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin")
        .env("RXE", rxe())
        // Programs set 67 ms, so a peer that gets no processor for 0.54 s would be abandoned.
        .env("RXE_ACK_TIMEOUT", "17")
        .current_dir(&dir.0)
        .output()
}

/// Returns the path of the command `rxe`, next to its library. Both belong to other packages, so
/// cargo does not tell a test where they are.
///
/// The paths are links to the files that cargo built, in a directory that every user may use.
pub(crate) fn rxe() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `cargo xtask test` has already built both with everything else. Building them alone would
        // compile them again, because the tests of a whole workspace enable additional features.
        if env::var_os("RXE_BUILT").is_none() {
            let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--package", "rxe-cli", "--package", "rxe-preload"]);
            assert!(build.status().is_ok_and(|s| s.success()), "rxe does not build");
        }
        let built = Path::new(env!("CARGO_BIN_EXE_rxe-peer")).parent().unwrap();
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        paths::programs(built, &FILES, tmp).unwrap().join("rxe")
    })
}

/// Returns a directory with the command, its library, and versioned libraries. The latter have the
/// names and symbol versions of rdma-core's. The directory is private, because other tests would
/// use these libraries too.
pub(crate) fn with_libraries() -> Dir {
    let bin = Dir::new();
    for name in FILES {
        fs::copy(rxe().with_file_name(name), bin.0.join(name)).unwrap();
    }
    let made = rxe_harness::libs::build(&bin.0).unwrap();
    assert!(made.iter().any(|library| library.ends_with("libibverbs.so.1")), "{made:?}");
    bin
}

/// The command and its library.
const FILES: [&str; 2] = ["rxe", "librxe_preload.so"];

/// A directory that is removed when this is dropped.
pub(crate) struct Dir(pub(crate) PathBuf, #[allow(dead_code, reason = "removes it")] TempDir);

impl Dir {
    /// Creates an empty directory.
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("rxe-programs-").tempdir().unwrap();
        // Everyone may read the directory, whatever the umask: some tests run programs as another
        // user.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Self(dir.path().to_owned(), dir)
    }
}

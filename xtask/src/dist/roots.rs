//! Installs the packages on clean systems and uses them there.
//!
//! The systems are Debian's releases from the machine's own mirror, made by mmdebstrap and kept in the
//! cache. Each check unpacks one into a temporary directory and enters it in namespaces of its own: no
//! network, no other processes, no file of the host.

use super::Arch;
use crate::vm::{Error, Result, cache, mirror};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's releases 11, 12 and 13.
pub const RELEASES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// What is installed there besides the essential packages: a program of rdma-core, one that loads
/// libibverbs by itself, and what reads manual pages.
const PACKAGES: &str = "ibverbs-utils,python3,man-db";

/// Enters the root `$1` with the packages' directory `$2` mounted in it, and runs `$3` there. Only
/// loopback is up.
const ENTER: &str = r#"
    ip link set lo up
    mkdir "$1/packages"
    mount --bind "$2" "$1/packages"
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$3"
"#;

/// What a user does, from the package.
const PACKAGE: &str = r#"
    rxe --version
    rxe demo > demo
    grep -q 'every byte verified' demo
    test -s rxe-demo.pcapng

    rxe run -- ibv_devices | grep rxe_lo
    rxe run -- ibv_rc_pingpong -d rxe_lo -g 0 -c > server 2>&1 &
    sleep 1
    rxe run -- ibv_rc_pingpong -d rxe_lo -g 0 -c 127.0.0.1
    wait $!

    # A program that finds the functions by dlopen and dlvsym.
    rxe run -- python3 -c '
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1")
number = ctypes.c_int()
verbs.ibv_get_device_list.restype = ctypes.c_void_p
assert verbs.ibv_get_device_list(ctypes.byref(number)) and number.value == 1
assert "/usr/lib/rxe/rxe-libs/libibverbs.so.1" in open("/proc/self/maps").read()'

    man --pager=cat rxe > page
    man --pager=cat rxe-run | grep 'Run a program that uses libibverbs'
    grep -q 'rxe-pingpong(1)' page
    bash -c '. /usr/share/bash-completion/completions/rxe && complete -p rxe'
    test -s /usr/share/zsh/vendor-completions/_rxe
    test -s /usr/share/fish/vendor_completions.d/rxe.fish
    test -s /usr/share/doc/rxe/copyright

    # As Wireshark runs it.
    for extcap in /usr/lib/x86_64-linux-gnu/wireshark/extcap /usr/libexec/wireshark/extcap; do
        $extcap/rxe-extcap --extcap-interfaces | grep -F 'interface {value=rxe}'
    done

    dpkg --remove rxe > said
    test -z "$(find /usr -name rxe-extcap)"
    test ! -e /usr/bin/rxe
    test ! -e /usr/lib/rxe
"#;

/// The comment before a block of a README whose commands are run.
const RUN: &str = "<!-- run on clean systems by cargo xtask dist --check -->\n```console\n";

/// The commands of a README's marked blocks, as a script.
///
/// # Errors
/// If no block is marked.
pub fn commands(readme: &str) -> Result<String> {
    let blocks = readme.split(RUN).skip(1).filter_map(|rest| rest.split("```").next());
    let mut script = String::new();
    for block in blocks {
        let commands = block.lines().filter_map(|line| line.strip_prefix("$ "));
        commands.for_each(|command| script += &format!("{command}\n"));
        // For what runs in the background.
        script += "wait\n";
    }
    if script.is_empty() {
        return Err(Error::Failed("a README has no commands to run".into()));
    }
    Ok(script)
}

/// What comes before the commands of a README.
const INSTALL: &str = r#"
    apt-get install --yes /packages/rxe_*.deb > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    cd /tmp
"#;

/// What a user does, from the archive.
const ARCHIVE: &str = r#"
    mkdir /opt/rxe
    tar -C /opt/rxe --strip-components 1 -xf "$(ls /packages/rxe-*.tar.gz | grep -v debug)"
    cd /tmp
    /opt/rxe/bin/rxe demo > demo
    grep -q 'every byte verified' demo
    /opt/rxe/bin/rxe run -- ibv_devices | grep rxe_lo
"#;

/// What the user of the image does.
const IMAGE: [&str; 2] = ["--version", "demo"];

/// Installs the packages in `packages` on a clean `release` of Debian, or on a system whose archive
/// `release` names, and uses them, also by the commands of `readmes` ([`commands`]).
///
/// # Errors
/// [`Error::Missing`] if this machine cannot make such a system; [`Error::Failed`] with what a command
/// there said.
pub fn check(release: &str, packages: &Path, readmes: &str) -> Result<()> {
    let own = Path::new(release);
    let archive = if own.extension().is_some() { own.to_owned() } else { system(release)? };
    // The commands print much. A `||` behind them would let each of them fail.
    let quiet = "exec 3>&1 > readmes 2>&1; trap '[ $? = 0 ] || cat readmes >&3' EXIT";
    let readmes = format!("{INSTALL}{quiet}\n{readmes}");
    for script in [&format!("{INSTALL}{PACKAGE}"), ARCHIVE, &readmes] {
        print!("{}", enter(release, unpacked(&archive)?.path(), packages, script)?);
    }
    Ok(())
}

/// Runs a script in a root, with the packages mounted in it. Returns what it printed.
pub(super) fn enter(what: &str, root: &Path, packages: &Path, script: &str) -> Result<String> {
    let mut enter = namespaces();
    enter.args(["sh", "-ec", ENTER, "sh"]).arg(root).arg(packages).arg(script);
    succeed(what, &mut enter)
}

/// What is done with the image's programs on a machine of another processor. qemu-user has no system calls
/// for sockets that share a port, and does not start one program from another.
const FOREIGN: &str = r#"
    ip link set lo up
    cd "$0/tmp"
    rxe="$1 -L $0 $0/usr/bin/rxe"
    $rxe --version
    $rxe devices | grep rxe_lo
    $rxe gen "$2" -w made.pcap
    cmp made.pcap "${2%.toml}.pcap"
    $rxe check made.pcap > checked
"#;

/// A scenario; beside it stands the capture that it gives.
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcaps/scenarios/rc_write.toml");

/// Runs the image's programs: in its own file system, or by qemu-user.
///
/// # Errors
/// As [`check`].
pub fn check_image(arch: &Arch, layer: &Path) -> Result<()> {
    if !arch.is_own() {
        let root = unpacked(layer)?;
        let mut enter = namespaces();
        enter.args(["sh", "-ec", FOREIGN]).arg(root.path()).arg(format!("qemu-{}", arch.name));
        enter.arg(SCENARIO);
        print!("{}", succeed("the image", &mut enter)?);
        return Ok(());
    }
    for command in IMAGE {
        let root = unpacked(layer)?;
        let mut enter = namespaces();
        let script = r#"
            ip link set lo up
            mount -t proc proc "$0/proc"
            mount --rbind /dev "$0/dev"
            cd "$0/tmp"
            exec chroot "$0" /usr/bin/rxe "$1""#;
        enter.args(["sh", "-ec", script]).arg(root.path()).arg(command);
        succeed("the image", &mut enter)?;
    }
    Ok(())
}

/// The archive of a system's root. Makes it, unless it is in the cache.
pub(super) fn system(release: &str) -> Result<PathBuf> {
    let done = cache()?.join(format!("root-{release}.tar"));
    if done.exists() {
        return Ok(done);
    }
    let part = done.with_extension("part.tar");
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=apt", &format!("--include={PACKAGES}")]);
    // Releases that are no longer updated expire; their signatures still hold.
    mmdebstrap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"").arg(release);
    mmdebstrap.arg(&part).arg(mirror()?);
    let out = mmdebstrap.output();
    let out = out.map_err(|e| Error::Missing(format!("mmdebstrap (a Debian package): {e}")))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let last = said.lines().last().unwrap_or_default();
        return Err(Error::Missing(format!("mmdebstrap makes no {release}: {last}")));
    }
    let renamed = fs::rename(&part, &done);
    renamed.map_err(|e| Error::Failed(format!("{}: {e}", done.display())))?;
    Ok(done)
}

/// A directory with the files of an archive. It is removed in the end.
pub(super) fn unpacked(archive: &Path) -> Result<tempfile::TempDir> {
    let root = tempfile::Builder::new().prefix("rxe-root-").tempdir();
    let root = root.map_err(|e| Error::Failed(format!("a temporary directory: {e}")))?;
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "--exclude=./dev/*", "-xpf"]).arg(archive);
    succeed("tar", tar.arg("-C").arg(root.path()))?;
    Ok(root)
}

/// Namespaces of mounts, networks, process IDs and, if this is not root, users.
fn namespaces() -> Command {
    let mut unshare = Command::new("timeout");
    unshare.args(["300", "unshare", "--mount", "--net", "--pid", "--fork", "--ipc"]);
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare
}

/// What a command prints, if it succeeds.
pub(super) fn succeed(what: &str, command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let out = command.output().map_err(|e| Error::Missing(format!("{program}: {e}")))?;
    let [said, errors] = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    if out.status.success() {
        return Ok(said);
    }
    Err(Error::Failed(format!("{what}: {}\n{said}{errors}", out.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_commands_of_both_readmes_are_the_same_and_others_are_left_out() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let of = |name: &str| {
            let text = fs::read_to_string(root.join(name)).unwrap();
            commands(&text).unwrap()
        };
        let english = of("README.md");
        assert!(english.starts_with("rxe run -- ibv_devices\n") && !english.contains("cargo"));
        assert!(english.matches("wait\n").count() >= 3, "{english}");
        let chinese = of("README.zh-CN.md");
        assert!(chinese.lines().all(|line| english.contains(line)), "{chinese}");
        assert!(commands("```console\n$ rm -r /\n```").is_err());
    }
}

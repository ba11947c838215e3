//! Installs the packages on clean systems and uses them there.
//!
//! Each check unpacks a system into a temporary directory and enters it in its own namespaces:
//! without network, other processes and files of the host.

use super::Arch;
use super::systems::{RUST_ON, Rust, System, succeed, unpacked};
use crate::vm::{Error, Result};
use std::path::Path;
use std::process::Command;

/// The packages on the system where `rxe` is built.
const BUILD_PACKAGES: [&str; 3] = ["git", "gcc", "libc6-dev"];

/// Enters the root `$1` with the packages' directory `$2` mounted in it, and runs `$3` there. Only
/// loopback is up.
const ENTER: &str = r#"
    ip link set lo up
    mkdir "$1/packages"
    mount --bind "$2" "$1/packages"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs none "$1/dev/shm"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -ec "$3"
"#;

/// A script that uses the Debian package as a user does.
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

    # Debug information is in a package of its own. Debuggers find it by build IDs.
    test ! -e /usr/lib/debug/.build-id
    apt-get install --yes /packages/rxe-dbgsym_*.deb > said 2>&1 || { cat said; exit 1; }
    python3 -c '
import struct, sys
def sections(path):
    data = open(path, "rb").read()
    start, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3a)
    heads = [struct.unpack_from("<IIQQQQ", data, start + size * i) for i in range(count)]
    def name(at):
        return data[at:data.index(b"\0", at)].decode()
    return {name(heads[names][4] + head[0]): data[head[4]:head[4] + head[5]] for head in heads}
for path in sys.argv[1:]:
    own = sections(path)
    number = own[".note.gnu.build-id"][16:].hex()
    apart = sections(f"/usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")
    assert apart[".note.gnu.build-id"] == own[".note.gnu.build-id"], path
    for section in ".debug_line", ".symtab":
        assert section in apart and section not in own, (path, section)
' /usr/bin/rxe /usr/lib/rxe/librxe_preload.so

    dpkg --remove rxe-dbgsym rxe > said
    test ! -e /usr/lib/debug/.build-id
    test -z "$(find /usr -name rxe-extcap)"
    test ! -e /usr/bin/rxe
    test ! -e /usr/lib/rxe
"#;

/// Shell functions for the commands of a README: the number of listening TCP sockets, and waiting
/// until there are more.
const WAIT: &str = r#"
    listeners() { cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A ' || true; }
    until_listening() {
        n=0
        until [ "$(listeners)" -gt "$1" ] || [ $n -gt 50 ]; do n=$((n + 1)); sleep 0.1; done
    }
"#;

/// Returns the commands of a README's blocks `sh run=ROLE`, as a script. `server` runs in the
/// background until the next `client` has ended, together with further servers. Blocks of other
/// roles run to their end.
///
/// # Errors
/// The README has no block to run.
/// If no block is to be run.
pub fn commands(readme: &str) -> Result<String> {
    let mut script = WAIT.to_owned();
    let mut blocks = 0;
    for part in readme.split("\n```sh run=").skip(1) {
        let Some((role, rest)) = part.split_once('\n') else { continue };
        let block = rest.split("```").next().unwrap_or_default();
        blocks += 1;
        let run = format!("timeout 120 sh -ex block.{blocks}");
        script += &format!("cat > block.{blocks} <<'END OF BLOCK'\n{block}END OF BLOCK\n");
        script += &match role {
            "server" => {
                format!(
                    "before=$(listeners); {run} & servers=\"$servers $!\"; until_listening $before\n"
                )
            }
            "client" => format!("{run}\nfor server in $servers; do wait $server; done; servers=\n"),
            _ => format!("{run}\n"),
        };
    }
    match blocks {
        0 => Err(Error::Failed("a README has no commands to run".into())),
        _ => Ok(script),
    }
}

/// The script before the commands of a README.
const INSTALL: &str = r#"
    apt-get install --yes /packages/rxe_*.deb > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    cd /tmp
    ln -s /usr/share/doc/rxe/pcaps pcaps
"#;

/// Returns the blocks of a page that begin with `sh` and this mark.
pub fn blocks<'a>(page: &'a str, mark: &str) -> impl Iterator<Item = &'a str> {
    let parts = page.split("\n```sh ").skip(1).filter_map(|part| part.split_once('\n'));
    let marked = parts.filter(move |(info, _)| *info == mark);
    marked.filter_map(|(_, rest)| rest.split("```").next())
}

/// Returns the commands of a README's blocks `sh checkout`, which install `rxe` and run an example.
///
/// # Errors
/// There is no such block.
pub fn checkout_commands(readme: &str) -> Result<String> {
    let commands: String = blocks(readme, "checkout").collect();
    match commands.is_empty() {
        true => Err(Error::Failed("a README has no commands for a checkout".into())),
        false => Ok(commands),
    }
}

/// Enters the root `$1` and runs `$4` in the checkout. `$2` is this machine's Rust, `$3` the
/// registry of its cargo.
const BUILD: &str = r#"
    ip link set lo up
    mkdir -p "$1/rust" "$1/root/.cargo/registry"
    mount --bind "$2" "$1/rust"
    mount --bind "$3" "$1/root/.cargo/registry"
    mount -o remount,bind,ro "$1/root/.cargo/registry"
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 CARGO_NET_OFFLINE=true \
        PATH=/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh -ec 'cd /checkout; eval "$1"' sh "$4"
"#;

/// Runs `commands` on a clean Debian 13 with Rust, in a checkout.
///
/// # Errors
/// As for [`check`].
pub fn check_source(rust: &Rust<'_>, commands: &str) -> Result<()> {
    let system = System { name: "build", packages: &BUILD_PACKAGES, later: &[] };
    let root = unpacked(&system.archive(RUST_ON)?)?;
    (rust.clone)(&root.path().join("checkout"))?;
    let mut enter = namespaces_for("3600");
    enter.args(["sh", "-ec", BUILD, "sh"]).arg(root.path()).args([&rust.toolchain, &rust.registry]);
    let said = succeed("a checkout on a clean Debian 13", enter.arg(commands))?;
    match said.contains("every byte verified") {
        true => Ok(()),
        false => Err(Error::Failed(format!("the README's commands for a checkout print\n{said}"))),
    }
}

/// A script that uses the archive as a user does.
const ARCHIVE: &str = r#"
    mkdir /opt/rxe
    tar -C /opt/rxe --strip-components 1 -xf "$(ls /packages/rxe-*.tar.gz | grep -v debug)"
    cd /tmp
    /opt/rxe/bin/rxe demo > demo
    grep -q 'every byte verified' demo
    /opt/rxe/bin/rxe run -- ibv_devices | grep rxe_lo
"#;

/// Commands that a user of the image runs.
const IMAGE: [&str; 2] = ["--version", "demo"];

/// Installs the packages in `packages` on a clean system and uses them. `release` is a release of
/// Debian, or names the archive of a system. The commands of `readmes` ([`commands`]) are run too.
///
/// # Errors
/// [`Error::Missing`] if this machine cannot create the system; [`Error::Failed`] with the output
/// of a failed command.
pub fn check(release: &str, packages: &Path, readmes: &str) -> Result<()> {
    let own = Path::new(release);
    let archive =
        if own.extension().is_some() { own.to_owned() } else { System::USER.archive(release)? };
    // The commands print much. A `||` after them would disable `set -e` for each of them, hence the
    // trap.
    let quiet = "exec 3>&1 > readmes 2>&1; trap '[ $? = 0 ] || cat readmes >&3' EXIT";
    let readmes = format!("{INSTALL}{quiet}\n{readmes}");
    for script in [&format!("{INSTALL}{PACKAGE}"), ARCHIVE, &readmes] {
        print!("{}", enter(release, unpacked(&archive)?.path(), packages, script)?);
    }
    Ok(())
}

/// Runs a script in a root, with the packages mounted in it. Returns its output.
pub(super) fn enter(what: &str, root: &Path, packages: &Path, script: &str) -> Result<String> {
    let mut enter = namespaces();
    enter.args(["sh", "-ec", ENTER, "sh"]).arg(root).arg(packages).arg(script);
    succeed(what, &mut enter)
}

/// A script that runs the image's programs on a machine of another architecture. qemu-user has no
/// system calls for sockets that share a port, and cannot start one program from another.
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

/// A scenario; the capture that it produces is next to it.
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pcaps/scenarios/rc_write.toml");

/// Runs the image's programs, in their own file system or by qemu-user.
///
/// # Errors
/// As for [`check`].
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

/// Returns a command that creates namespaces of mounts, networks, process IDs and, unless root runs
/// it, users.
fn namespaces() -> Command {
    namespaces_for("300")
}

/// Like [`namespaces`], with a time limit of `seconds`.
pub(super) fn namespaces_for(seconds: &str) -> Command {
    let mut unshare = Command::new("timeout");
    unshare.args([seconds, "unshare", "--mount", "--net", "--pid", "--fork", "--ipc"]);
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_marked_commands_of_both_readmes_are_the_same_and_others_are_left_out() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let of = |name: &str| {
            let text = fs::read_to_string(root.join(name)).unwrap();
            commands(&text).unwrap()
        };
        let english = of("README.md");
        assert!(english.contains("\nrxe run -- ibv_devices\n") && !english.contains("cargo"));
        assert!(english.matches("wait $server;").count() >= 2, "{english}");
        let last = |text| english.rfind(text).unwrap();
        assert!(last("wait $server;") > last("servers=\"$servers $!\""), "all have ended");
        let chinese = of("README.zh-CN.md").replace(" --lang zh", "");
        let plain = |script: &str| -> Vec<String> {
            script.lines().map(|line| line.split(" #").next().unwrap_or(line).to_owned()).collect()
        };
        assert_eq!(plain(&english), plain(&chinese));
        assert!(commands("\n```sh\nrm -r /\n```").is_err());
        for name in ["README.md", "README.zh-CN.md"] {
            let text = fs::read_to_string(root.join(name)).unwrap();
            let commands = checkout_commands(&text).unwrap();
            let lines: Vec<_> = commands.lines().collect();
            assert_eq!(lines.len(), 2, "{commands}");
            assert!(lines[0].starts_with("cargo xtask install "), "{commands}");
            assert!(lines[1].starts_with("~/.local/bin/rxe demo "), "{commands}");
            let packages = format!("`sudo apt-get install {}`", BUILD_PACKAGES.join(" "));
            assert!(text.contains(&packages), "{name} lacks {packages}");
        }
    }
}

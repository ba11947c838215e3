//! Tests of the image of rxe with podman: as root, or rootless as an ordinary user. Each test has
//! its own images, containers and networks, in a directory that is removed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rxe_harness::ci::quoted;
use rxe_harness::dist::{self, Arch, Tree};
use rxe_harness::libs;
use rxe_test_support::skipped;

mod common;
use common::{Dir, installed, with_libraries};

/// Root's preparations: crun refuses cgroups of version 1, or of both versions, so the script
/// mounts version 2 alone. Then the first user with subordinate IDs runs the script `$0`, rootless,
/// or root runs it if there is no such user.
const ROOT: &str = r#"
    umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
    mount -t tmpfs none /run
    ip link set lo up
    user=$(head -n 1 /etc/subuid | cut -d: -f1)
    if [ -n "$user" ] && id "$user" > who; then
        chown "$user" .
        exec runuser -u "$user" -- sh -ec "$0"
    fi
    exec sh -ec "$0"
"#;

/// Podman with its images and containers below the current directory. If this process may not raise
/// a limit, crun cannot set podman's defaults; and root cannot put containers into groups if it may
/// not lock memory for BPF.
const PODMAN: &str = r#"
    cgroups=enabled
    if [ "$(id -u)" = 0 ]; then cgroups=disabled; fi
    export HOME="$PWD"
    export XDG_RUNTIME_DIR="$PWD/run" XDG_DATA_HOME="$PWD/data" XDG_CONFIG_HOME="$PWD/config"
    export CONTAINERS_CONF="$PWD/containers.conf" CONTAINERS_STORAGE_CONF="$PWD/storage.conf"
    mkdir -m 700 run
    limit=$(ulimit -n)
    cat > containers.conf <<END
[containers]
cgroups = "$cgroups"
default_ulimits = ["nofile=$limit:$limit", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$PWD/run/libpod"
[network]
network_config_dir = "$PWD/networks"
END
    cat > storage.conf <<END
[storage]
driver = "overlay"
graphroot = "$PWD/images"
runroot = "$PWD/run/containers"
END
    clean() {
        podman pod rm --all --force; podman rm --all --force
        if [ "$(id -u)" = 0 ]; then umount -l images/overlay; rm -rf images; else podman unshare rm -rf images; fi
        # Ends the process that keeps a user's namespaces.
        podman system migrate
    }
    trap 'code=$?; set +e; clean > cleaned 2>&1; exit $code' EXIT
    podman load -q -i programs.tar; podman tag rxe:0.1.0 localhost/programs:1
    podman load -q -i rxe.tar
"#;

/// Creates two images: that of rxe, as `cargo xtask dist` builds it, and one with a verbs program.
fn images(dir: &Path) {
    let bin = with_libraries();
    // Debug information makes the files large.
    let stripped = |path: &Path| {
        let _ = Command::new("strip").arg("--strip-debug").arg(path).status();
        fs::read(path).unwrap()
    };
    let mut rxe = Tree::default();
    rxe.program("bin/rxe", stripped(&bin.0.join("rxe")));
    rxe.file("lib/rxe/librxe_preload.so", stripped(&bin.0.join("librxe_preload.so")));
    for (library, _) in libs::names() {
        let path = Path::new(libs::DIRECTORY).join(library);
        rxe.file(&format!("lib/rxe/{}", path.display()), stripped(&bin.0.join(path)));
    }
    let mut programs = Tree::default();
    let pingpong = fs::read("/usr/bin/ibv_rc_pingpong").unwrap();
    programs.program("bin/ibv_rc_pingpong", pingpong);
    // An image of a distribution contains this library, which the library of rxe needs.
    let libgcc = format!("lib/{}/libgcc_s.so.1", Arch::own().unwrap().triplet);
    programs.file(&libgcc, fs::read(Path::new("/").join(&libgcc)).unwrap());
    for (tree, name) in [(rxe, "rxe.tar"), (programs, "programs.tar")] {
        let image = dist::image(&tree, Path::new("/"), Arch::own().unwrap(), 0).unwrap();
        fs::write(dir.join(name), image).unwrap();
    }
}

/// Runs a script in a directory with the images loaded, and returns its output. If podman does not
/// run here, reports the test as skipped and returns `None`.
#[track_caller]
fn podman(test: &str, script: &str) -> Option<String> {
    static IMAGES: OnceLock<Dir> = OnceLock::new();
    static WORKS: OnceLock<Result<(), String>> = OnceLock::new();
    if !["podman", "strip", "ibv_rc_pingpong"].iter().all(|program| installed(test, program)) {
        return None;
    }
    let images = IMAGES.get_or_init(|| {
        let dir = Dir::new();
        images(&dir.0);
        dir
    });
    let run = |script: &str| {
        let dir = Dir::new();
        let from = quoted(&images.0.to_string_lossy());
        let script = format!("ln -s {from}/*.tar .\n{PODMAN}\n{script}");
        let mut command = Command::new("timeout");
        command.arg("300");
        if rustix::process::geteuid().is_root() {
            command.args(["unshare", "--mount", "--net", "--propagation", "private"]);
            command.args(["sh", "-ec", ROOT, &script]);
        } else {
            command.args(["sh", "-ec", &script]);
        }
        command.current_dir(&dir.0);
        command.output().unwrap()
    };
    let works = WORKS.get_or_init(|| {
        let out = run("podman run --rm rxe:0.1.0 --version");
        let why = String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ");
        if out.status.success() { Ok(()) } else { Err(why) }
    });
    if let Err(why) = works {
        skipped(test, format_args!("podman runs no container: {why}"));
        return None;
    }
    let out = run(script);
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(out.status.success(), "{said}{errors}");
    Some(said.into_owned())
}

#[test]
fn two_containers_on_one_network_reach_each_other() {
    let test = "two_containers_on_one_network_reach_each_other";
    let script = r#"
        rxe=rxe:0.1.0
        podman network create rdma
        podman run -d --name server --network rdma $rxe pingpong -d eth0
        address=$(podman inspect -f '{{.NetworkSettings.Networks.rdma.IPAddress}}' server)
        tries=0
        until podman run --rm --network rdma $rxe pingpong -d eth0 "$address" > client; do
            tries=$((tries + 1)); [ $tries -lt 30 ]; sleep 1
        done
        cat client
        podman wait server
    "#;
    let Some(said) = podman(test, script) else { return };
    assert!(said.contains("1000 iters in") && said.trim_end().ends_with("\n0"), "{said}");
}

/// A read-only root, no capability, and a user who is not in /etc/passwd, as clusters require.
#[test]
fn a_restricted_container_is_enough() {
    let test = "a_restricted_container_is_enough";
    let script = r#"
        restricted() {
            podman run --rm --network none --read-only --read-only-tmpfs=false --cap-drop all \
                --security-opt no-new-privileges --user 12345:12345 rxe:0.1.0 "$@"
        }
        restricted doctor
        restricted run -- /usr/bin/rxe devices
    "#;
    let Some(said) = podman(test, script) else { return };
    assert!(said.contains("UDP port 4791   opened"), "{said}");
}

/// The manifest of the page: an init container copies rxe into the pod, and two variables make its
/// programs use it.
#[test]
fn a_pod_takes_rxe_from_an_init_container() {
    let test = "a_pod_takes_rxe_from_an_init_container";
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/kubernetes.yml");
    let manifest = quoted(&manifest.to_string_lossy());
    let script = format!(
        "[ \"$(id -u)\" != 0 ] || {{ echo root; exit 0; }}
         podman kube play {manifest}
         tries=0
         until podman logs rdma-client 2>&1 | grep 'iters in'; do
             tries=$((tries + 1))
             [ $tries -lt 60 ] || {{ podman logs rdma-server; podman logs rdma-client; podman ps -a; exit 1; }}
             sleep 1
         done
         podman logs rdma-server"
    );
    let Some(said) = podman(test, &script) else { return };
    if said.ends_with("root\n") {
        return skipped(
            test,
            "podman's pods need cgroups, which root has none of here: no user has subordinate IDs",
        );
    }
    assert!(said.matches("1000 iters in").count() == 2, "{said}");
}

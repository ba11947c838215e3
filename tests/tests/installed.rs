//! An installed copy works without the checkout, without a compiler and without cargo.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use rxe_harness::dist::{self, Arch};
use rxe_harness::{everything, or_skip};
use rxe_test_support::skipped;

mod common;
use common::{Dir, installed, rxe};

/// Runs the installed command in a network of its own. The home is empty, and the environment has
/// no variables of cargo.
fn run(test: &str, prefix: &Path, args: &str) -> Option<Output> {
    let unshare = |script: &str| {
        let mut unshare = Command::new("timeout");
        unshare.args(["60", "unshare", "-Urn", "sh", "-ec", script]).env_clear();
        unshare.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").current_dir(prefix);
        unshare.env("HOME", prefix.join("home")).output()
    };
    let up = "ip link set lo up";
    match unshare(up) {
        Ok(out) if out.status.success() => unshare(&format!("{up}\nexec bin/rxe {args}")).ok(),
        Ok(out) => {
            skipped(test, String::from_utf8_lossy(&out.stderr).trim());
            None
        }
        Err(e) => {
            skipped(test, format_args!("timeout: {e}"));
            None
        }
    }
}

fn said(out: &Output) -> String {
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(out.status.success(), "{said}{errors}");
    said.into_owned()
}

#[test]
fn an_installed_copy_works_without_the_checkout() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Dir::new();
    for name in ["rxe", "librxe_preload.so"] {
        fs::hard_link(rxe().with_file_name(name), built.0.join(name))
            .or_else(|_| fs::copy(rxe().with_file_name(name), built.0.join(name)).map(drop))
            .unwrap();
    }
    let compiled = or_skip(rxe_harness::libs::build(&built.0)).is_some();
    let tree = dist::files(&built.0, &source, Arch::own().unwrap(), None).unwrap();
    for path in [
        "bin/rxe",
        "lib/rxe/librxe_preload.so",
        "lib/rxe/valgrind.supp",
        "lib/wireshark/extcap/rxe-extcap",
        "share/bash-completion/completions/rxe",
        "share/man/man1/rxe-run.1.gz",
        "share/zsh/site-functions/_rxe",
        "share/fish/vendor_completions.d/rxe.fish",
        "share/doc/rxe/README.md",
        "share/doc/rxe/docs/en/reference/programs.md",
        "share/doc/rxe/docs/en/learn/1-device.md",
        "share/doc/rxe/LICENSE-MIT",
    ] {
        assert!(tree.paths().any(|found| found == path), "{path}");
    }
    the_page_removes_each_file(&tree, &source);
    let prefix = Dir::new();
    tree.install(&prefix.0).unwrap();
    drop(built);

    let test = "an installed copy";
    let Some(out) = run(test, &prefix.0, "demo") else { return };
    let text = said(&out);
    assert!(text.contains("every byte verified"), "{text}");
    assert!(prefix.0.join("rxe-demo.pcapng").exists());

    let extcap = prefix.0.join("lib/wireshark/extcap/rxe-extcap");
    let out = Command::new(extcap).arg("--extcap-interfaces").output().unwrap();
    assert!(said(&out).contains("interface {value=rxe}"));

    if installed(test, "ibv_devices") {
        let text = said(&run(test, &prefix.0, "run -- ibv_devices").unwrap());
        assert!(text.contains("rxe_lo"), "{text}");
    }
    // Programs that look up the functions themselves find ours.
    if compiled && installed(test, "python3") {
        for name in ["libibverbs.so.1", "libibverbs.so"] {
            let script = format!(
                "import ctypes; ctypes.CDLL(\"{name}\"); print(open(\"/proc/self/maps\").read())"
            );
            let text =
                said(&run(test, &prefix.0, &format!("run -- python3 -c '{script}'")).unwrap());
            assert!(text.contains("lib/rxe/rxe-libs/libibverbs.so.1"), "{name}: {text}");
        }
        for link in ["libibverbs.so", "librdmacm.so"] {
            let to = fs::read_link(prefix.0.join("lib/rxe/rxe-libs").join(link)).unwrap();
            assert_eq!(to.to_str(), Some(&*format!("{link}.1")));
        }
    }

    fs::remove_dir_all(prefix.0.join("lib")).unwrap();
    let out = run(test, &prefix.0, "run -- true").unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && text.contains("cargo xtask install --prefix"), "{text}");
}

/// The commands of docs/en/do/install.md remove all installed files, and no other files.
fn the_page_removes_each_file(tree: &dist::Tree, source: &Path) {
    let page = fs::read_to_string(source.join("docs/en/do/install.md")).unwrap();
    let (_, block) = page.split_once("\n```console\n$ cd ~/.local\n").unwrap();
    let (commands, _) = block.split_once("```").unwrap();
    let home = Dir::new();
    let prefix = home.0.join(".local");
    tree.install(&prefix).unwrap();
    let other = prefix.join("share/man/man1/other.1.gz");
    fs::write(&other, "").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-ec", &commands.replace("$ ", "")]).current_dir(&prefix);
    said(&shell.output().unwrap());
    let left = said(&Command::new("find").arg(&prefix).args(["!", "-type", "d"]).output().unwrap());
    assert_eq!(left.trim_end(), other.to_str().unwrap());
}

#[test]
fn what_cargo_install_installs_runs_programs() {
    let test = "what_cargo_install_installs_runs_programs";
    if !everything() {
        return skipped(test, "only with --all: it builds everything for release");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let prefix = Dir::new();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["install", "--locked", "--offline", "--quiet", "--path"])
        .arg(source.join("rxe-cli"));
    cargo.arg("--target-dir").arg(source.join("target/install-test"));
    // An unoptimised build takes a third of the time.
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    let out = cargo.arg("--root").arg(&prefix.0).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));

    let Some(out) = run(test, &prefix.0, "run -- cat /proc/self/maps") else { return };
    let maps = said(&out);
    let library = maps.split_whitespace().find(|word| word.ends_with("/librxe_preload.so"));
    let library = Path::new(library.unwrap_or_else(|| panic!("it is not loaded:\n{maps}")));
    assert!(library.starts_with(prefix.0.join("home/.cache/rxe")), "{}", library.display());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(library.parent().unwrap()), 0o700);
    said(&run(test, &prefix.0, "doctor").unwrap());
    if installed(test, "ibv_devices") {
        let text = said(&run(test, &prefix.0, "run -- ibv_devices").unwrap());
        assert!(text.contains("rxe_lo"), "{text}");
    }
}

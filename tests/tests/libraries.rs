//! The ways in which programs find libibverbs. Most are linked with it (`programs.rs`). Here: a
//! program that loads it by itself (dlopen, dlvsym), and an extension that is linked with its own
//! copy under another name, as auditwheel puts it into a wheel. `wheels.rs` tests wheels of PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_harness::c::Compiled;
use rxe_harness::or_skip;
use rxe_test_support::skipped;

mod common;
use common::{Dir, alone, rxe, with_libraries};

const LOADED: &str = "tests/c/loaded.c";
/// The soname of the system's library, and that of the copy. They have one length, so that the
/// copy's soname can overwrite the original without a tool.
const SONAME: &str = "libibverbs.so.1";
const COPY: &str = "libibv-3f1.so.1";

#[test]
fn a_program_that_loads_the_library_by_itself() {
    let Some(c) = or_skip(Compiled::linked(&[LOADED], &["-ldl"])) else { return };
    let bin = with_libraries();
    let rxe = bin.0.join("rxe");
    let rxe = rxe.display();
    let script = format!("timeout 60 {rxe} run -- {} rxe_veth0 2>&1", c.path(LOADED).display());
    let Some(out) = alone("loaded", "cc", &script) else { return };
    assert_eq!(out, "the bytes moved over rxe_veth0\n");
    // This program is linked with other parts of rdma-core, which use private symbols of
    // libibverbs.
    let script = format!("{rxe} run -- ib_write_bw --version 2>&1 || true");
    let Some(out) = alone("loaded", "ib_write_bw", &script) else { return };
    assert!(out.starts_with("Version: "), "{out}");
    // rsockets come from the system's librdmacm, although ours precedes it.
    let script = format!(
        "timeout 30 {rxe} run -- riostream -S 1000 -I 3 > server & server=$!
        sleep 1
        timeout 30 {rxe} run -- riostream -s 10.9.0.1 -S 1000 -I 3
        wait $server"
    );
    let Some(out) = alone("loaded", "riostream", &script) else { return };
    assert!(out.contains("custom"), "{out}");
}

/// NCCL first loads the name without a version. This name exists where rdma-core's headers are
/// installed. Other programs load the file by its path.
#[test]
fn a_program_that_loads_the_library_under_another_name() {
    const TEST: &str = "a_program_that_loads_the_library_under_another_name";
    let Some(c) = or_skip(Compiled::linked(&[LOADED], &["-ldl"])) else { return };
    let Some(system) = system_library() else {
        return skipped(TEST, "libibverbs is not installed");
    };
    let bin = with_libraries();
    let (rxe, program) = (bin.0.join("rxe"), c.path(LOADED));
    let (rxe, program) = (rxe.display(), program.display());
    for name in ["libibverbs.so", &*system.display().to_string(), "/nonexistent/libibverbs.so.1.14"]
    {
        let script = format!("timeout 60 {rxe} run -- {program} rxe_veth0 as {name} 2>&1");
        let Some(out) = alone(TEST, "cc", &script) else { return };
        assert_eq!(out, "the bytes moved over rxe_veth0\n", "{name}");
    }
    let python =
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open(\"/proc/self/maps\").read())";
    for name in ["librdmacm.so", "/usr/lib/librdmacm.so.1"] {
        let script = format!("timeout 60 {rxe} run -- python3 -c '{python}' {name}");
        let Some(out) = alone(TEST, "python3", &script) else { return };
        assert!(out.contains("/rxe-libs/librdmacm.so.1"), "{name}: {out}");
    }
    // Without preloading, by the links alone.
    let libraries = bin.0.join("rxe-libs");
    let script = format!(
        "export LD_LIBRARY_PATH={}; timeout 60 {program} rxe_veth0 as libibverbs.so 2>&1",
        libraries.display()
    );
    let Some(out) = alone(TEST, "cc", &script) else { return };
    assert_eq!(out, "the bytes moved over rxe_veth0\n");
    // On a system without these libraries.
    let script =
        format!("timeout 60 $RXE run -- {program} rxe_veth0 as {} 2>&1 || true", system.display());
    let Some(out) = alone(TEST, "cc", &script) else { return };
    let told =
        format!("rxe: dlopen: the program loads {} by itself and gets the", system.display());
    assert!(out.starts_with(&told), "{out}");
}

/// The loader searches in the RUNPATH of the library that calls dlopen.
#[test]
fn a_library_loads_others_from_its_own_runpath() {
    let script = r#"
        mkdir plugins
        echo 'int plugin(void) { return 7; }' > plugin.c
        cc -shared -fPIC -o plugins/libplugin.so plugin.c
        cat > host.c << 'end'
#include <dlfcn.h>
int host(void)
{
	void *plugin = dlopen("libplugin.so", RTLD_NOW);
	return plugin ? ((int (*)(void))dlsym(plugin, "plugin"))() : 1;
}
end
        cc -shared -fPIC -o libhost.so host.c -ldl -Wl,--enable-new-dtags,-rpath,'$ORIGIN/plugins'
        echo 'int host(void); int main(void) { return host(); }' > main.c
        cc -o main main.c -L. -lhost -Wl,-rpath,'$ORIGIN'
        set +e
        $RXE run -- ./main
        echo $?
    "#;
    let Some(out) = alone("RUNPATH", "cc", script) else { return };
    assert_eq!(out, "7\n");
}

#[test]
fn a_wheel_with_a_copy_of_the_library_under_another_name() {
    let test = "a private copy of libibverbs";
    let Some(c) = or_skip(Compiled::linked(&[LOADED], &["-ldl"])) else { return };
    let Some(system) = system_library() else {
        return skipped(test, "libibverbs is not installed");
    };
    let wheel = Dir::new();
    let extension = wheel_of(&system, &wheel.0);
    let program = c.path(LOADED).display().to_string() + " rxe_veth0 " + &extension;
    // Without preloading, the copy is used, which knows no device of rxe.
    let script = format!("{program} 2>&1 || true");
    let Some(out) = alone(test, "cc", &script) else { return };
    assert!(out.starts_with("open_named:"), "{out}");
    // With and without libraries that have the names and the versions of rdma-core's.
    let bin = with_libraries();
    for rxe in [rxe(), &bin.0.join("rxe")] {
        let script = format!("timeout 60 {} run -- {program} 2>&1", rxe.display());
        let Some(out) = alone(test, "cc", &script) else { return };
        assert_eq!(out, "the bytes moved over rxe_veth0\n");
    }
}

/// Returns the path of libibverbs that the linker uses.
fn system_library() -> Option<PathBuf> {
    let out = Command::new("cc").arg(format!("-print-file-name={SONAME}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    path.is_absolute().then_some(path)
}

/// Creates the files of an unpacked wheel in `dir`: an extension and, in `x.libs` next to it, the
/// copy that it needs. Returns the extension's path.
fn wheel_of(system: &Path, dir: &Path) -> String {
    let mut copy = fs::read(system).unwrap();
    let at = copy.windows(SONAME.len() + 1).position(|w| w == format!("{SONAME}\0").as_bytes());
    let at = at.expect("the library has its soname");
    copy[at..at + COPY.len()].copy_from_slice(COPY.as_bytes());
    fs::create_dir(dir.join("x.libs")).unwrap();
    let library = dir.join("x.libs").join(COPY);
    fs::write(&library, copy).unwrap();
    let extension = dir.join("extension.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wl,-rpath,$ORIGIN/x.libs", "-o"]).arg(&extension);
    cc.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/c/extension.c")).arg(library);
    assert!(cc.status().unwrap().success());
    let needed = Command::new("readelf").arg("-d").arg(&extension).output().unwrap();
    let needed = String::from_utf8_lossy(&needed.stdout);
    assert!(needed.contains(COPY) && !needed.contains(SONAME), "{needed}");
    extension.display().to_string()
}

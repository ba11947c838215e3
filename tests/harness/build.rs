//! Compiles the VM agent (one file, standard library only) so that the harness can embed it.

use std::path::PathBuf;
use std::process::Command;
use std::{env, process};

fn main() {
    for file in ["src/vm/agent.rs", "src/vm/frame.rs", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("agent");
    let mut cmd = Command::new(rustc);
    cmd.args(["--edition=2024", "--crate-name=agent", "-Copt-level=1", "-Cstrip=symbols", "-o"]);
    cmd.arg(&out).arg("src/vm/agent.rs");
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut flag = std::ffi::OsString::from("-Clinker=");
        flag.push(linker);
        cmd.arg(flag);
    }
    match cmd.status() {
        Ok(status) if status.success() => {}
        other => {
            eprintln!("compiling the VM agent failed: {other:?}");
            process::exit(1);
        }
    }
}

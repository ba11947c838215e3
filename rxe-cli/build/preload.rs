//! Builds the library that `rxe run` preloads, and embeds it in `rxe`.
//!
//! `cargo install` installs programs only. An `rxe` that is built from a published package, from a
//! git URL, or with `RXE_EMBED=on` therefore contains the library, and writes it into the user's
//! cache. In a checkout, cargo builds the library next to `rxe`, and this module does nothing;
//! `.cargo/config.toml` in the directory above sets the variable for `cargo install --path`.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "rxe-preload";

/// The library's crate and the crates of this project that it depends on.
const CRATES: [&str; 4] = [NAME, "rxe-core", "rxe-net", "rxe-verbs"];

/// Writes `embedded.rs`, which has the library and its digest, or `None`.
pub(crate) fn embed() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=RXE_EMBED");
    let out = variable("OUT_DIR");
    let own = variable("CARGO_MANIFEST_DIR");
    let library = wanted(&own).then(|| build(&own, &out.join("preload")));
    let value = library.map_or_else(
        || "None".to_owned(),
        |library| {
            let bytes = fs::read(&library).unwrap_or_else(|e| failed(&e));
            let mut hasher = DefaultHasher::new();
            hasher.write(&bytes);
            format!("Some((\"{:016x}\", include_bytes!({library:?})))", hasher.finish())
        },
    );
    let code = format!("const LIBRARY: Option<(&str, &[u8])> = {value};\n");
    fs::write(out.join("embedded.rs"), code).unwrap_or_else(|e| failed(&e));
}

fn variable(name: &str) -> PathBuf {
    env::var_os(name).unwrap_or_default().into()
}

/// Returns whether `rxe` must contain the library.
fn wanted(own: &Path) -> bool {
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system != "linux") {
        return false;
    }
    match env::var("RXE_EMBED").as_deref() {
        Ok("off") => return false,
        // Cargo reads that configuration for debug builds in the directory, too.
        Ok(_) => return env::var("PROFILE").is_ok_and(|profile| profile == "release"),
        Err(_) => {}
    }
    let checkout = own.with_file_name("xtask").is_dir();
    // `cargo install --git` checks out the sources there.
    let fetched = own.to_string_lossy().contains("/git/checkouts/");
    (!checkout || fetched) && env::var_os("DOCS_RS").is_none()
}

/// Builds the library in `dir`, and returns its path.
/// The build has its own target directory, because the cargo that runs this script has locked the
/// other.
fn build(own: &Path, dir: &Path) -> PathBuf {
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let target = env::var("TARGET").unwrap_or_default();
    fs::create_dir_all(dir).unwrap_or_else(|e| failed(&e));
    let manifest = dir.join("Cargo.toml");
    let write = |name: &str, text: &str| {
        fs::write(dir.join(name), text).unwrap_or_else(|e| failed(&e));
    };
    write("Cargo.toml", &package(own, &version));
    write("lib.rs", "");
    // The lock file has the versions of other crates that were tested.
    for lock in [own.join("Cargo.lock"), own.with_file_name("Cargo.lock")] {
        if lock.exists() {
            fs::copy(lock, dir.join("Cargo.lock")).unwrap_or_else(|e| failed(&e));
            break;
        }
    }
    let cargo = |more: &[&str]| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--package", NAME, "--target", &target]).args(more);
        cargo.arg("--manifest-path").arg(&manifest).arg("--target-dir").arg(dir.join("target"));
        // `cargo clippy` sets this variable.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo.output()
    };
    // Cargo has downloaded every crate for `rxe` except possibly the library's.
    let mut done = cargo(&["--offline"]);
    if !done.as_ref().is_ok_and(|out| out.status.success()) {
        done = cargo(&[]);
    }
    match done {
        Ok(out) if out.status.success() => {}
        Ok(out) => failed(&String::from_utf8_lossy(&out.stderr)),
        Err(e) => failed(&e),
    }
    dir.join("target").join(target).join("release/librxe_preload.so")
}

/// Returns the manifest of a package that depends on the library's crate.
/// Crates of this project whose directory is next to this crate are taken from there.
fn package(own: &Path, version: &str) -> String {
    let mut text = format!(
        "[package]\nname = \"library\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [lib]\npath = \"lib.rs\"\n\
         [workspace]\n\
         [dependencies]\n{NAME} = \"={version}\"\n\
         [profile.release]\nstrip = \"debuginfo\"\n\
         [profile.release.package.rxe-core]\ncodegen-units = 1\n\
         [patch.crates-io]\n"
    );
    for name in CRATES {
        let beside = [name.to_owned(), format!("{name}-{version}")].map(|n| own.with_file_name(n));
        if let Some(dir) = beside.iter().find(|dir| dir.join("Cargo.toml").exists()) {
            println!("cargo::rerun-if-changed={}", dir.display());
            text += &format!("{name} = {{ path = {dir:?} }}\n");
        }
    }
    text
}

/// Ends the build with an error.
fn failed(why: &dyn std::fmt::Display) -> ! {
    eprintln!("the library for `rxe run` does not build: {why}");
    eprintln!("RXE_EMBED=off installs rxe without it");
    std::process::exit(1);
}

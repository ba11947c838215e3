//! `cargo xtask web`: builds the laboratory's page, one directory that any static server can serve.

use super::files::{files, succeed, write};
use super::targets::{has_target, libraries};
use flate2::{Compression, write::GzEncoder};
use rxe_harness::checkout::{self, cargo};
use rxe_harness::vm::{Error, Result};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The target for which the laboratory is built.
const TARGET: &str = "wasm32-unknown-unknown";

/// The variable that names the linker for [`TARGET`].
const LINKER: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER";

/// The capture that the page shows as an example.
const EXAMPLE: &str = "lost_in_bursts";

/// The most that the page may have, compressed, in bytes.
const MOST: usize = 2 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory for the page
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
    /// Use this rxe_web.wasm, built elsewhere, instead of building it
    #[arg(long, value_name = "FILE")]
    wasm: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let top = checkout::root()?;
    let to = args.to.clone().unwrap_or_else(|| top.join("target/web"));
    let size = put_page(&top, &to, args.wasm.as_deref())?;
    println!("{}: {} KiB compressed", to.join("index.html").display(), size.div_ceil(1024));
    println!("look at it: python3 -m http.server --bind 127.0.0.1 -d {}", to.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the page to a directory, with this rxe_web.wasm or with one that is built now. Returns the
/// page's compressed size in bytes.
///
/// # Errors
///
/// [`Error::Missing`] if Rust's standard library for WebAssembly is not installed.
pub(super) fn put_page(top: &Path, to: &Path, wasm: Option<&Path>) -> Result<usize> {
    let wasm = wasm.map_or_else(|| build(top), |wasm| Ok(wasm.to_owned()))?;
    let mut size = copy_all(&top.join("web/page"), to)?;
    size += put(to, "rxe_web.wasm", &read(&wasm)?)?;
    let scenarios = top.join("pcaps/scenarios");
    size += put(to, "scenarios.json", &menu(&scenarios)?)?;
    size += put(to, "example.pcap", &read(&scenarios.join(format!("{EXAMPLE}.pcap")))?)?;
    if size > MOST {
        return Err(Error::Failed(format!("the page has {size} bytes compressed, not {MOST}")));
    }
    Ok(size)
}

/// Builds the laboratory, and returns its file.
fn build(top: &Path) -> Result<PathBuf> {
    if !has_target(TARGET) {
        return Err(Error::Missing(format!(
            "Rust for {TARGET}: `rustup target add {TARGET}`, or Debian's libstd-rust-dev-wasm32 and lld"
        )));
    }
    let target = top.join("target/cross");
    let mut cargo = cargo();
    cargo.args(["build", "--profile", "web", "--package", "rxe-web", "--target", TARGET]);
    cargo.arg("--target-dir").arg(&target).current_dir(top);
    if env::var_os(LINKER).is_none() && !has_own_linker() {
        cargo.env(LINKER, "wasm-ld");
    }
    succeed(&mut cargo)?;
    Ok(target.join(TARGET).join("web/rxe_web.wasm"))
}

/// Returns whether Rust has a linker of its own, as rustup's has. Debian's uses that of lld.
fn has_own_linker() -> bool {
    libraries(None).is_some_and(|dir| dir.with_file_name("bin").join("rust-lld").exists())
}

/// Returns all scenarios as one JSON object: names and texts.
fn menu(dir: &Path) -> Result<Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|e| Error::io(dir, &e))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ext| ext == "toml")
            && let Some(name) = path.file_stem()
        {
            let text = fs::read_to_string(&path).map_err(|e| Error::io(&path, &e))?;
            all.insert(name.to_string_lossy().into_owned(), text);
        }
    }
    serde_json::to_vec(&all).map_err(|e| Error::Failed(e.to_string()))
}

/// Copies all files below a directory. Returns their compressed size.
fn copy_all(from: &Path, to: &Path) -> Result<usize> {
    let mut all = Vec::new();
    files(from, Path::new(""), &mut all)?;
    all.iter().map(|file| put(to, file, &read(&from.join(file))?)).sum()
}

/// Writes a file of the page. Returns its compressed size.
fn put(dir: &Path, name: impl AsRef<Path>, bytes: &[u8]) -> Result<usize> {
    let path = dir.join(name);
    write(&path, bytes)?;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let packed = gzip.write_all(bytes).and_then(|()| gzip.finish());
    packed.map(|packed| packed.len()).map_err(|e| Error::io(&path, &e))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::io(path, &e))
}

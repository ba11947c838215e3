//! Prepares a kernel for a VM, given as "6.1", a `.deb` or a directory: the kernel image and the
//! modules to load, in order. Prepared kernels are cached outside the checkout.

use super::cache::{cache, make};
use super::{Error, Result, apt};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The kernels that the project tests with, by the names that Debian uses.
pub const KNOWN: [&str; 4] = ["5.10", "6.1", "6.12", "7.2"];

/// A kernel that is ready to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The name: the package or the path of the kernel.
    pub name: String,
    /// The kernel image.
    pub(super) image: PathBuf,
    /// The uncompressed modules, in the order in which to load them.
    pub(super) modules: Vec<PathBuf>,
    /// The modules of iSER, which [`Vm::insert`](super::Vm::insert) loads after the others. Empty
    /// if the kernel has no iSER.
    pub iser: Vec<PathBuf>,
}

/// The modules that a VM loads. `rdma link add` needs `crc32_generic`, which no module names as a
/// dependency. The last line is for tests: loss and delay, VLANs, spare interfaces.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "veth",
    "dummy",
    "8021q",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "tun",
];

/// iSER as initiator with the driver of its disks, and as target with files as disks. Older targets
/// need `crc32c_generic`, which no module names as a dependency.
const ISER: &[&str] = &["crc32c_generic", "sd_mod", "ib_iser", "ib_isert", "target_core_file"];

/// Parts of a kernel package that no VM needs and that take most of the unpacking time.
const UNWANTED: &[&str] = &[
    "*/sound/*",
    "*/drivers/gpu/*",
    "*/drivers/media/*",
    "*/drivers/net/ethernet/*",
    "*/drivers/net/wireless/*",
    "*/drivers/infiniband/hw/*",
    "*/drivers/staging/*",
    "*/drivers/scsi/*/*",
    "*/drivers/iio/*",
    "*/drivers/usb/*",
    "*/drivers/hid/*",
];

/// How long to wait before another attempt to download a kernel.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The version of the cache layout. Increase it when the content of a cached kernel changes, so
/// that older caches are not used.
const LAYOUT: &str = "2";

impl Kernel {
    /// Finds, and downloads if necessary, a kernel: a version such as `6.1`, the path of a `.deb`,
    /// or a directory in which packages have been unpacked.
    ///
    /// # Errors
    /// [`Error::Missing`] with one line about why the kernel is not available.
    pub fn find(what: &str) -> Result<Self> {
        if what.contains('/') || what.ends_with(".deb") {
            return from_path(&cache()?, Path::new(what));
        }
        let version = what.bytes().all(|b| b.is_ascii_digit() || b == b'.') && !what.is_empty();
        if !version {
            let known = KNOWN.join(", ");
            return Err(Error::Failed(format!(
                "no kernel is called {what:?}; known: {known}, or a path"
            )));
        }
        let dir = cache()?;
        let _lock = lock(&dir, what)?;
        if let Some(k) = newest(&dir, what) {
            return Ok(k);
        }
        let downloads = dir.join("downloads");
        make(&downloads)?;
        // Many tests request a kernel: without a network each would wait for the timeout again.
        let failed = dir.join(format!("{what}.failed"));
        let recent = |m: fs::Metadata| m.modified().ok()?.elapsed().ok().map(|t| t < RETRY_AFTER);
        if fs::metadata(&failed).ok().and_then(recent) == Some(true) {
            let why = fs::read_to_string(&failed).unwrap_or_default();
            return Err(Error::Missing(why));
        }
        let packages = apt::fetch(what, "amd64", &downloads).inspect_err(|why| {
            let _ = fs::write(&failed, why.to_string());
        })?;
        prepare(&dir, &packages.name, &packages.files)
    }
}

/// Returns a lock that is held while a kernel is prepared, so that several processes prepare it
/// once.
fn lock(dir: &Path, what: &str) -> Result<File> {
    let path = dir.join(format!("{what}.lock"));
    let file = File::create(&path).map_err(|e| Error::io(&path, &e))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|e| Error::io(&path, &e.into()))?;
    Ok(file)
}

fn newest(dir: &Path, version: &str) -> Option<Kernel> {
    let prefix = format!("linux-image-{version}.");
    let entries = fs::read_dir(dir.join(format!("kernels-{LAYOUT}"))).ok()?;
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let name = names.filter(|n| n.starts_with(&prefix)).max_by_key(|n| apt::version_key(n))?;
    load(dir, &name)
}

fn from_path(dir: &Path, path: &Path) -> Result<Kernel> {
    let meta = fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    let path = path.canonicalize().map_err(|e| Error::io(path, &e))?;
    let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Two kernels may have equal file names, and the file at a path may change.
    let mut hash = DefaultHasher::new();
    (&path, meta.modified().ok(), meta.len()).hash(&mut hash);
    let name = format!("path-{base}-{:016x}", hash.finish());
    let _lock = lock(dir, &name)?;
    if let Some(k) = load(dir, &name) {
        return Ok(k);
    }
    if meta.is_dir() { keep(dir, &name, &path) } else { prepare(dir, &name, &[path]) }
}

/// Unpacks packages and keeps the parts that a VM needs.
fn prepare(dir: &Path, name: &str, debs: &[PathBuf]) -> Result<Kernel> {
    let scratch = dir.join(format!("unpack-{name}"));
    let _ = fs::remove_dir_all(&scratch);
    make(&scratch)?;
    for deb in debs {
        let unpacked = unpack(deb, &scratch);
        if unpacked.is_err() {
            // A broken download must not remain.
            let _ = fs::remove_dir_all(&scratch);
        }
        unpacked?;
    }
    let kernel = keep(dir, name, &scratch);
    let _ = fs::remove_dir_all(&scratch);
    kernel
}

fn unpack(deb: &Path, to: &Path) -> Result<()> {
    let mut tar = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::program("dpkg-deb", &e))?;
    let input = tar.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut cmd = Command::new("tar");
    cmd.arg("-xC").arg(to).arg("--no-same-owner");
    cmd.args(UNWANTED.iter().map(|u| format!("--exclude={u}")));
    let status = cmd.stdin(input).status().map_err(|e| Error::program("tar", &e))?;
    let whole = tar.wait().is_ok_and(|s| s.success()) && status.success();
    if whole { Ok(()) } else { Err(Error::Failed(format!("cannot unpack {}", deb.display()))) }
}

/// Copies the image and the required modules of an unpacked kernel into the cache.
fn keep(dir: &Path, name: &str, root: &Path) -> Result<Kernel> {
    let mut files = Vec::new();
    walk(root, &mut files);
    let image = files.iter().find(|p| {
        let f = p.file_name().unwrap_or_default().to_string_lossy();
        f == "vmlinuz" || f.starts_with("vmlinuz-")
    });
    let here = root.display();
    let image = image.ok_or_else(|| Error::Failed(format!("no vmlinuz in {here}")))?;
    let builtin = files.iter().find(|p| p.ends_with("modules.builtin"));
    let builtin = builtin.and_then(|p| fs::read_to_string(p).ok()).unwrap_or_default();
    let builtin: BTreeSet<String> = builtin.lines().map(|l| stem(Path::new(l))).collect();
    let by_name: BTreeMap<String, &PathBuf> =
        files.iter().filter(|p| is_module(p)).map(|p| (stem(p), p)).collect();
    if !by_name.contains_key("rdma_rxe") && !builtin.contains("rdma_rxe") {
        return Err(Error::Missing(format!("the kernel in {here} has no rdma_rxe")));
    }

    let kernels = dir.join(format!("kernels-{LAYOUT}"));
    let scratch = kernels.join(format!(".{name}"));
    let _ = fs::remove_dir_all(&scratch);
    make(&scratch.join("modules"))?;
    let copy = |from: &Path, to: &Path| fs::copy(from, to).map_err(|e| Error::io(from, &e));
    copy(image, &scratch.join("vmlinuz"))?;
    let mut order = Vec::new();
    let mut booted = 0;
    for (modules, name) in [(MODULES, "order"), (ISER, "iser")] {
        for module in modules {
            add(module, &by_name, &scratch.join("modules"), &mut order)?;
        }
        let list = scratch.join(name);
        fs::write(&list, order[booted..].join("\n")).map_err(|e| Error::io(&list, &e))?;
        booted = order.len();
    }
    let done = kernels.join(name);
    let _ = fs::remove_dir_all(&done);
    fs::rename(&scratch, &done).map_err(|e| Error::io(&done, &e))?;
    load(dir, name).ok_or_else(|| Error::Failed(format!("{} is broken", done.display())))
}

/// Adds a module after its dependencies. A module without a file is assumed to be built in.
fn add(
    name: &str,
    files: &BTreeMap<String, &PathBuf>,
    to: &Path,
    order: &mut Vec<String>,
) -> Result<()> {
    let Some(path) = files.get(name) else { return Ok(()) };
    if order.iter().any(|o| o == name) {
        return Ok(());
    }
    let data = decompress(path)?;
    for dep in depends(&data) {
        add(&dep, files, to, order)?;
    }
    let file = to.join(format!("{name}.ko"));
    fs::write(&file, data).map_err(|e| Error::io(&file, &e))?;
    order.push(name.to_owned());
    Ok(())
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).map_err(|e| Error::io(path, &e)),
    };
    let out = Command::new(program).arg("-dc").arg(path).stdin(Stdio::null()).output();
    let out = out.map_err(|e| Error::program(program, &e))?;
    if out.status.success() {
        return Ok(out.stdout);
    }
    Err(Error::Failed(format!("{program} cannot read {}", path.display())))
}

/// Returns the dependencies in a module's `.modinfo`. (Packages do not contain `modules.dep`, which
/// is created at installation.)
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|w| w == key) else { return Vec::new() };
    let value = module[at + key.len()..].split(|b| *b == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|d| !d.is_empty()).map(|d| d.replace('-', "_")).collect()
}

fn is_module(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".ko", ".ko.xz", ".ko.zst", ".ko.gz"].iter().any(|e| name.ends_with(e))
}

/// Returns the name of a module in the kernel.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(t) if t.is_dir() => walk(&entry.path(), files),
            Ok(t) if t.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

fn load(dir: &Path, name: &str) -> Option<Kernel> {
    let home = dir.join(format!("kernels-{LAYOUT}")).join(name);
    let list = |list: &str| -> Option<Vec<PathBuf>> {
        let order = fs::read_to_string(home.join(list)).ok()?;
        Some(order.lines().map(|m| home.join("modules").join(format!("{m}.ko"))).collect())
    };
    let (modules, iser) = (list("order")?, list("iser")?);
    Some(Kernel { name: name.to_owned(), image: home.join("vmlinuz"), modules, iser })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_names_what_it_depends_on() {
        let info = b"\x7fELF..license=GPL\0depends=ib_core,ip6-udp-tunnel\0retpoline=Y\0";
        assert_eq!(depends(info), ["ib_core", "ip6_udp_tunnel"]);
        assert_eq!(depends(b"\0depends=\0"), Vec::<String>::new());
    }

    #[test]
    fn threads_that_prepare_a_kernel_together_get_it_whole() {
        let scratch = tempfile::tempdir().unwrap();
        let (cache, root) = (scratch.path().join("cache"), scratch.path().join("unpacked"));
        make(&cache).unwrap();
        make(&root).unwrap();
        let module = vec![1; 1 << 20];
        for file in ["vmlinuz-6.1", "rdma_rxe.ko", "veth.ko"] {
            fs::write(root.join(file), &module).unwrap();
        }
        let together = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    let kernel = from_path(&cache, &root).unwrap();
                    assert_eq!(kernel.modules.len(), 2);
                    for file in kernel.modules.iter().chain([&kernel.image]) {
                        assert!(fs::read(file).unwrap() == module, "{} is damaged", file.display());
                    }
                });
            }
        });
    }

    #[test]
    fn two_kernels_of_the_same_file_name_are_two() {
        let scratch = tempfile::tempdir().unwrap();
        let prepared = ["a", "b"].map(|parent| {
            let root = scratch.path().join(parent).join("kernel");
            make(&root).unwrap();
            fs::write(root.join("vmlinuz"), parent).unwrap();
            fs::write(root.join("rdma_rxe.ko"), parent).unwrap();
            let kernel = from_path(scratch.path(), &root).unwrap();
            fs::read_to_string(kernel.image).unwrap()
        });
        assert_eq!(prepared, ["a", "b"]);
    }

    #[test]
    fn a_modules_name_has_no_dash_and_no_suffix() {
        assert_eq!(stem(Path::new("kernel/drivers/char/hw_random/virtio-rng.ko.xz")), "virtio_rng");
    }
}

//! `cargo xtask dist`: creates the archives and packages of a release.

use super::stages::Count;
use rxe_harness::checkout::{self, cargo};
use rxe_harness::ci;
use rxe_harness::dist::{self, Arch, Build, DEBUG, GLIBC, RXE, VERSION};
use rxe_harness::vm::{Error, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The packages to create, and the checks of them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The processor: x86_64 or aarch64.
    /// One other than this machine's needs its Rust target, a cross compiler and qemu-user
    #[arg(long, default_value = std::env::consts::ARCH, value_parser = Arch::of_name)]
    arch: &'static Arch,
    /// Link with this machine's C library, not with the one of Debian 11
    #[arg(long)]
    native: bool,
    /// Also install the packages on clean systems (Debian 11, 12 and 13, Ubuntu 22.04 and 24.04),
    /// use them and follow the book's Learn there, and install from the checkout on a clean Debian
    /// 13; for another processor, run the programs of the image with qemu-user, and in a machine
    /// that QEMU emulates
    #[arg(long)]
    check: bool,
    /// With --check: also on this system, an archive (.tar) of its root directory with the packages
    /// ibverbs-utils, python3 and man-db, as mmdebstrap creates it
    #[arg(long, value_name = "FILE", requires = "check")]
    system: Vec<String>,
    /// Also build the last commit again, in a clone elsewhere, and compare every byte
    #[arg(long)]
    reproducible: bool,
    /// Create no packages: only install from the checkout on a clean Debian 13, the last step of
    /// --check
    #[arg(long, conflicts_with_all = ["arch", "native", "check", "reproducible"])]
    checkout: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.checkout {
        let root = checkout::root()?;
        let commit = checkout::commit(&root, "HEAD")?;
        let clone = |to: &Path| checkout::clone(&root, to, &commit);
        check_checkout(&root, &commit, &rust(&root, &clone)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for skipped in build(args)? {
        println!("SKIPPED: {skipped}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the stage of `cargo xtask test --all` that builds and checks packages.
/// They are for this machine's processor, and are checked on clean systems.
pub(super) fn test(count: &mut Count) {
    let Ok(arch) = Arch::own() else { return count.skip("packages: not for this processor") };
    let args = Args {
        arch,
        native: false,
        check: true,
        system: Vec::new(),
        reproducible: false,
        checkout: false,
    };
    match build(&args) {
        Ok(skipped) => {
            skipped.iter().for_each(|why| count.skip(why));
            count.check("packages", Ok(true));
        }
        Err(Error::Missing(why)) => count.skip(&format!("packages: {why}")),
        Err(why) => count.check("packages", Err(why)),
    }
}

/// Creates and checks what `args` ask for. Returns what was left out, and why.
fn build(args: &Args) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    let root = checkout::root()?;
    let changed = checkout::git(&root, &["status", "--porcelain"])?;
    if !changed.is_empty() {
        println!("not committed, but packed:\n{changed}");
    }
    let sysroot = match args.native {
        true => None,
        false => Some(dist::sysroot(args.arch).map_err(|why| match why {
            Error::Missing(why) => Error::Missing(format!("{why}; --native does without")),
            failed @ Error::Failed(_) => failed,
        })?),
    };
    let epoch = epoch(&root)?;
    let build = |source: &Path, target: &Path| {
        Release::new(&Build { arch: args.arch, source, target, sysroot: sysroot.as_deref() }, epoch)
    };
    let mut target = root.join("target/dist");
    if !args.arch.is_own() {
        target.push(args.arch.name);
    }
    let packages = build(&root, &target)?;
    let out = target.join("packages");
    packages.write(&out)?;
    let (major, minor) = packages.glibc;
    println!("they need glibc {major}.{minor} or later");
    if sysroot.is_some() && packages.glibc > GLIBC {
        return Err(Error::Failed(format!("that is not {}.{}", GLIBC.0, GLIBC.1)));
    }
    if args.reproducible {
        let elsewhere = root.join("target/dist-again");
        let _ = fs::remove_dir_all(&elsewhere);
        let clone = elsewhere.join("source");
        checkout::clone(&root, &clone, &checkout::commit(&root, "HEAD")?)?;
        packages.same_as(&build(&clone, &elsewhere.join("target"))?)?;
        let _ = fs::remove_dir_all(&elsewhere);
        println!("a clone of the last commit gives the same bytes");
    }
    if args.check {
        let layer = packages.layer(&target)?;
        dist::check_image(args.arch, &layer)?;
        println!("the image's programs run");
        if !args.arch.is_own() {
            dist::check_machine(args.arch, &layer)?;
            println!("an emulated machine runs them, and sends packets");
        }
    }
    if args.check && args.arch.is_own() {
        let layer = packages.layer(&target)?;
        for name in ["docs/en/do/install.md", "docs/en/do/containers.md"] {
            dist::check_dockerfile(&read(&root, name)?, &layer)?;
        }
        println!("the Dockerfiles copy what programs need");
        let mut commands = String::new();
        for name in ["README.md", "README.zh-CN.md"] {
            commands += &dist::commands(&read(&root, name)?)?;
        }
        // This step is last, because programs then use rxe without `rxe run`.
        let package = format!("/packages/rxe-{VERSION}-{}.tar.gz", args.arch.triplet);
        let action = read(&root, "action.yml")?;
        commands += "mkdir /tmp/job; cd /tmp/job\n";
        commands += &ci::File::read(&action)?.steps(&[("package", &package)])?;
        commands += "ibv_devices | grep rxe_lo\n";
        let learn = dist::Learn::read(&root)?;
        let commit = checkout::commit(&root, "HEAD")?;
        let clone = |to: &Path| checkout::clone(&root, to, &commit);
        let rust = rust(&root, &clone);
        let releases = dist::RELEASES.into_iter().map(str::to_owned);
        for release in releases.chain(args.system.clone()) {
            match dist::check(&release, &out, &commands) {
                Ok(()) => println!("{release}: installed, used and removed"),
                Err(Error::Missing(why)) => {
                    skipped.push(format!("packages on {release}: {why}"));
                    continue;
                }
                Err(why) => return Err(why),
            }
            // The user's own systems have no network from which to fetch the packages that the
            // pages install.
            if dist::RELEASES.contains(&&*release) {
                let rust = rust.as_ref().ok().filter(|_| release == dist::RUST_ON);
                dist::check_learn(&release, &out, &learn, rust)?;
                println!("{release}: all steps of Learn followed");
            }
        }
        match &rust {
            Ok(rust) => check_checkout(&root, &commit, rust)?,
            Err(why) => skipped.push(format!("the README's checkout, Learn in Rust: {why}")),
        }
    }
    Ok(skipped)
}

/// Runs the README's commands for a checkout on a clean system, in a clone of `commit`.
fn check_checkout(root: &Path, commit: &str, rust: &dist::Rust<'_>) -> Result<()> {
    let readme = checkout::git(root, &["show", &format!("{commit}:README.md")])?;
    dist::check_source(rust, &dist::checkout_commands(&readme)?)?;
    println!("{}: installed from the checkout, by the README's commands", dist::RUST_ON);
    Ok(())
}

/// Returns the toolchain and the crates with which clean systems build.
fn rust<'a>(root: &Path, clone: &'a dyn Fn(&Path) -> Result<()>) -> Result<dist::Rust<'a>> {
    let mut rustc = Command::new("rustc");
    let out = rustc.args(["--print", "sysroot"]).output();
    let out = out.map_err(|e| Error::Missing(format!("rustc: {e}")))?;
    let toolchain = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
    if !toolchain.join("bin/cargo").exists() {
        return Err(Error::Missing(format!("{} has no cargo", toolchain.display())));
    }
    // All crates are fetched now, as clean systems have no network.
    if !cargo().args(["fetch", "--locked"]).current_dir(root).status().is_ok_and(|s| s.success()) {
        return Err(Error::Missing("cargo fetch fails".into()));
    }
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let registry = home.unwrap_or_default().join("registry");
    Ok(dist::Rust { toolchain, registry, clone })
}

fn read(root: &Path, name: &str) -> Result<String> {
    fs::read_to_string(root.join(name)).map_err(|e| Error::Failed(format!("{name}: {e}")))
}

/// Returns the timestamp of everything that is packed: `SOURCE_DATE_EPOCH`, or that of the last
/// commit.
fn epoch(root: &Path) -> Result<u64> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => checkout::git(root, &["log", "-1", "--format=%ct"])?,
    };
    text.parse().map_err(|e| Error::Failed(format!("SOURCE_DATE_EPOCH={text}: {e}")))
}

/// Returns a size in MiB, rounded.
fn mebibytes(bytes: usize) -> usize {
    (bytes + (1 << 19)) >> 20
}

/// The files of a release.
struct Release {
    /// The names and contents.
    files: Vec<(String, Vec<u8>)>,
    /// The version of glibc that the programs need.
    glibc: (u32, u32),
}

impl Release {
    fn new(what: &Build<'_>, epoch: u64) -> Result<Self> {
        let built = dist::build(what)?;
        let arch = what.arch;
        let mut tree = dist::files(&built, what.source, arch, what.sysroot)?;
        let licences = dist::licences(what.source)?;
        // Debian prescribes this name.
        tree.file("share/doc/rxe/copyright", licences);
        let debug = dist::split(&mut tree, arch)?;
        let glibc = dist::glibc(&tree)?;
        let name = format!("rxe-{VERSION}-{}", arch.triplet);
        let libraries = what.sysroot.unwrap_or(Path::new("/"));
        let image = dist::image(&tree, libraries, arch, epoch)?;
        let archive = |tree: &dist::Tree| dist::gzip(&tree.tar(&format!("{name}/"), epoch)?);
        let mut files = vec![
            (format!("{name}.tar.gz"), archive(&tree)?),
            (format!("{name}-debug.tar.gz"), archive(&debug)?),
            (format!("rxe-{VERSION}-{}.oci.tar", arch.debian), image),
            dist::wheel(&tree, what.source, arch, glibc)?,
        ];
        for (package, tree) in [(RXE, tree), (DEBUG, debug)] {
            let name = format!("{}_{VERSION}_{}.deb", package.name, arch.debian);
            files.push((name, dist::package(&package, arch, tree, glibc, epoch)?));
        }
        Ok(Self { files, glibc })
    }

    /// Writes the files and their digests into their own directory, and lists them.
    fn write(&self, dir: &Path) -> Result<()> {
        let failed = |e| Error::Failed(format!("{}: {e}", dir.display()));
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).map_err(failed)?;
        let mut digests = String::new();
        for (name, bytes) in &self.files {
            fs::write(dir.join(name), bytes).map_err(failed)?;
            digests += &format!("{}  {name}\n", dist::digest(bytes).trim_start_matches("sha256:"));
            println!("{:4} MiB  {name}", mebibytes(bytes.len()));
        }
        fs::write(dir.join("SHA256SUMS"), digests).map_err(failed)?;
        println!("in {}", dir.display());
        Ok(())
    }

    fn same_as(&self, other: &Self) -> Result<()> {
        let differ = self.files.iter().zip(&other.files).filter(|(a, b)| a != b);
        let names: Vec<_> = differ.map(|((name, _), _)| name.as_str()).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(Error::Failed(format!("another build differs in {}", names.join(", ")))),
        }
    }

    /// Writes the image's layer into its own file, as a container engine would unpack it.
    fn layer(&self, dir: &Path) -> Result<PathBuf> {
        let image = self.files.iter().find(|(name, _)| name.ends_with(".oci.tar"));
        let image = image.map_or(&[][..], |(_, bytes)| bytes.as_slice());
        let path = dir.join("layer.tar.gz");
        let layer = dist::layer_of(image)?;
        fs::write(&path, layer).map_err(|e| Error::Failed(format!("{}: {e}", path.display())))?;
        Ok(path)
    }
}

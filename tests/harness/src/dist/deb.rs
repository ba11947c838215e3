//! The Debian package: an `ar` archive of a version and two tar archives.

use super::files::EXTCAP;
use super::tree::gzip;
use super::{Arch, Tree, VERSION};
use crate::vm::{Error, Result};
use std::io;

/// The properties of a package: its name, and the fields of its control file.
pub struct Package {
    /// The name of the package.
    pub name: &'static str,
    /// Lines `Field: value`, the description last.
    fields: &'static str,
}

/// The package with the programs.
pub const RXE: Package = Package {
    name: "rxe",
    fields: "Depends: libc6 (>= {glibc}), libgcc-s1 | libgcc1\n\
        Suggests: ibverbs-utils, perftest, rdmacm-utils, wireshark\n\
        Description: RDMA over Converged Ethernet (RoCEv2) in user space\n \
        Runs unmodified libibverbs and librdmacm programs without RDMA hardware,\n \
        kernel modules or privileges, over UDP or shared memory. It interoperates\n \
        with the rdma_rxe module of Linux.",
};

/// The package with their debug information.
pub const DEBUG: Package = Package {
    name: "rxe-dbgsym",
    fields: "Depends: rxe (= {version})\n\
        Description: debug symbols for rxe\n \
        Debuggers find them by the build IDs of the programs.",
};

/// Returns the Debian path of the first entry of [`EXTCAP`], and its link target.
fn debian_extcap(arch: &Arch) -> (String, &'static str) {
    (format!("usr/lib/{}/wireshark/extcap/rxe-extcap", arch.triplet), "../../../../bin/rxe")
}

/// Builds a package of a prefix's files for an architecture. `glibc` is the version that the
/// programs need; entries have the time `epoch`.
///
/// # Errors
/// A path is too long for tar.
pub fn package(
    what: &Package,
    arch: &Arch,
    prefix: Tree,
    glibc: (u32, u32),
    epoch: u64,
) -> Result<Vec<u8>> {
    let extcap = debian_extcap(arch);
    let has_programs = prefix.paths().any(|path| path == EXTCAP[0].0);
    let mut tree = prefix.moved(|path| match path.strip_prefix("share/zsh/site-functions/") {
        // Debian reserves that directory for zsh itself.
        Some(file) => format!("usr/share/zsh/vendor-completions/{file}"),
        None if path == EXTCAP[0].0 => extcap.0.clone(),
        None => format!("usr/{path}"),
    });
    if has_programs {
        tree.link(&extcap.0, extcap.1);
    }
    let mut control = Tree::default();
    control.file("control", fill(what, arch, tree.size(), glibc));
    let parts = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control.tar("./", epoch)?)?),
        ("data.tar.gz", gzip(&tree.tar("./", epoch)?)?),
    ];
    let write = || -> io::Result<Vec<u8>> {
        let mut archive = ar::Builder::new(Vec::new());
        for (name, bytes) in &parts {
            let mut header = ar::Header::new((*name).into(), bytes.len() as u64);
            header.set_mode(0o100_644);
            header.set_mtime(epoch);
            archive.append(&header, bytes.as_slice())?;
        }
        archive.into_inner()
    };
    write().map_err(|e| Error::Failed(format!("{}.deb: {e}", what.name)))
}

/// Returns the control file. Its `Homepage` is the `repository` of Cargo.toml, if that is set. Its
/// `Maintainer` has no e-mail address, because the project has no public one yet.
fn fill(what: &Package, arch: &Arch, size: usize, (major, minor): (u32, u32)) -> String {
    let Package { name, fields } = what;
    let fields = fields.replace("{glibc}", &format!("{major}.{minor}"));
    let fields = fields.replace("{version}", VERSION);
    let homepage = match env!("CARGO_PKG_REPOSITORY") {
        "" => String::new(),
        address => format!("Homepage: {address}\n"),
    };
    format!(
        "Package: {name}\n\
         Version: {VERSION}\n\
         Architecture: {debian}\n\
         Maintainer: The rxe project\n\
         Installed-Size: {size}\n\
         Section: net\n\
         Priority: optional\n\
         {homepage}\
         {fields}\n",
        debian = arch.debian,
        size = size.div_ceil(1024),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_package_has_its_three_parts_in_order() {
        let mut tree = Tree::default();
        tree.program("bin/rxe", vec![0; 1025]);
        tree.file("share/zsh/site-functions/_rxe", "");
        EXTCAP.iter().for_each(|(path, program)| tree.link(path, program));
        let arch = &crate::dist::arch::ALL[1];
        let bytes = package(&RXE, arch, tree.clone(), (2, 30), 7).unwrap();
        assert_eq!(bytes, package(&RXE, arch, tree, (2, 30), 7).unwrap());

        let mut archive = ar::Archive::new(bytes.as_slice());
        let mut parts = Vec::new();
        while let Some(entry) = archive.next_entry() {
            let mut entry = entry.unwrap();
            let name = String::from_utf8_lossy(entry.header().identifier()).into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            parts.push((name, content));
        }
        let names: Vec<_> = parts.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);

        let files = |part: &[u8]| {
            let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(part));
            let entries = archive.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                let _ = entry.read_to_string(&mut text);
                if let Some(target) = entry.link_name().unwrap() {
                    text = target.display().to_string();
                }
                (entry.path().unwrap().display().to_string(), text)
            });
            entries.collect::<Vec<_>>()
        };
        let control = &files(&parts[1].1)[0];
        assert_eq!(control.0, "control");
        for line in [
            "Package: rxe\n",
            "Architecture: arm64\n",
            "libc6 (>= 2.30),",
            "Installed-Size: 2\n",
            "\n Runs unmod",
        ] {
            assert!(control.1.contains(line), "{}", control.1);
        }
        let data = files(&parts[2].1);
        for path in ["usr/bin/rxe", "usr/share/zsh/vendor-completions/_rxe"] {
            assert!(data.iter().any(|(found, _)| found == path), "{data:?}");
        }
        let links = data.iter().filter(|(path, _)| path.ends_with("/rxe-extcap"));
        for (path, target) in links.clone() {
            // The path from the directory of the link to usr/bin.
            let mut at: Vec<_> = path.split('/').collect();
            at.pop();
            for part in target.split('/') {
                match part {
                    ".." => drop(at.pop()),
                    part => at.push(part),
                }
            }
            assert_eq!(at.join("/"), "usr/bin/rxe", "{path}");
        }
        let paths: Vec<_> = links.map(|(path, _)| path.as_str()).collect();
        let debian = "usr/lib/aarch64-linux-gnu/wireshark/extcap/rxe-extcap";
        assert_eq!(paths, [debian, "usr/libexec/wireshark/extcap/rxe-extcap"]);
    }
}

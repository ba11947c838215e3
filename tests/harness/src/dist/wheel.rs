//! The Python package: a wheel, which is a zip archive of an agreed layout
//! (<https://packaging.python.org/en/latest/specifications/binary-distribution-format/>).
//!
//! Installers put its programs and data below the prefix of an environment, such as a venv. Their
//! paths there are as in all other packages, so `rxe` finds its libraries. The metadata of the
//! package is in pyproject.toml.

use super::tree::read;
use super::{Arch, GLIBC, Tree, VERSION};
use crate::libs;
use crate::vm::{Error, Result};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;

/// The parts of pyproject.toml that describe the package.
#[derive(Deserialize)]
struct Manifest {
    project: Project,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Project {
    name: String,
    description: String,
    readme: String,
    requires_python: String,
    license: String,
    license_files: Vec<String>,
    keywords: Vec<String>,
    classifiers: Vec<String>,
    entry_points: BTreeMap<String, BTreeMap<String, String>>,
}

/// The path of the crates' licences in the tree, and their name in the wheel.
const LICENCES: (&str, &str) = ("share/doc/rxe/copyright", "LICENSES-OF-CRATES");

/// Builds a wheel from a prefix's files and the module in `python` of the checkout `source`.
/// `glibc` is the version that the programs need. Returns the file name and the bytes.
///
/// # Errors
/// A file cannot be read.
pub fn wheel(
    tree: &Tree,
    source: &Path,
    arch: &Arch,
    glibc: (u32, u32),
) -> Result<(String, Vec<u8>)> {
    let manifest = String::from_utf8_lossy(&read(&source.join("pyproject.toml"))?).into_owned();
    let Manifest { project } =
        toml::from_str(&manifest).map_err(|e| Error::Failed(format!("pyproject.toml: {e}")))?;
    // `GLIBC` is the oldest version on which the programs are tested.
    let (major, minor) = glibc.max(GLIBC);
    let tag = format!("py3-none-manylinux_{major}_{minor}_{}", arch.name);
    // In file names of wheels, a hyphen is a separator.
    let name = format!("{}-{VERSION}", project.name.replace('-', "_"));
    let info = format!("{name}.dist-info");

    let mut files = installed(tree, &format!("{name}.data"));
    let mut add = |path: String, bytes: Vec<u8>| files.insert(path, (0o644, bytes));
    for (path, bytes) in module(source)? {
        add(path, bytes);
    }
    let mut licences = Vec::new();
    for file in &project.license_files {
        licences.push((file.as_str(), read(&source.join(file))?));
    }
    if let Some((_, bytes)) = tree.contents().find(|(path, _)| *path == LICENCES.0) {
        licences.push((LICENCES.1, bytes.to_vec()));
    }
    let names: Vec<_> = licences.iter().map(|(name, _)| *name).collect();
    let readme = read(&source.join(&project.readme))?;
    add(format!("{info}/METADATA"), metadata(&project, &names, &readme).into());
    for (name, bytes) in licences {
        add(format!("{info}/licenses/{name}"), bytes);
    }
    add(format!("{info}/entry_points.txt"), entry_points(&project).into());
    let about = format!(
        "Wheel-Version: 1.0\nGenerator: cargo xtask dist ({VERSION})\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    add(format!("{info}/WHEEL"), about.into());
    let record = record(&files, &format!("{info}/RECORD"));
    let bytes = zip(&files, &format!("{info}/RECORD"), &record);
    let bytes = bytes.map_err(|e| Error::Failed(format!("{name}.whl: {e}")))?;
    Ok((format!("{name}-{tag}.whl"), bytes))
}

/// Files with their modes, by path.
type Files = BTreeMap<String, (u32, Vec<u8>)>;

/// Returns the files below the prefix of an environment: the command and its libraries. Files for
/// shells and Wireshark are omitted: neither looks there, and pip would leave empty directories of
/// `share` behind.
fn installed(tree: &Tree, data: &str) -> Files {
    let mut files = Files::new();
    for (path, bytes) in tree.contents() {
        if let Some(program) = path.strip_prefix("bin/") {
            files.insert(format!("{data}/scripts/{program}"), (0o755, bytes.to_vec()));
        } else if path.starts_with("lib/rxe/") {
            files.insert(format!("{data}/data/{path}"), (0o644, bytes.to_vec()));
        }
    }
    // A wheel cannot contain links.
    for (library, link) in libs::names() {
        let of = |name: &str| format!("{data}/data/lib/rxe/{}/{name}", libs::DIRECTORY);
        if let Some(file) = files.get(&of(library)).cloned() {
            files.insert(of(&link), file);
        }
    }
    files
}

/// Returns the files of the Python package `rxe`.
fn module(source: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let dir = source.join("python/rxe");
    let failed = |e: std::io::Error| Error::Failed(format!("{}: {e}", dir.display()));
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".py") || name == "py.typed" {
            found.push((format!("rxe/{name}"), read(&path)?));
        }
    }
    Ok(found)
}

/// Returns the metadata that indexes and installers read: fields, and the text of the package's
/// page.
fn metadata(project: &Project, licences: &[&str], readme: &[u8]) -> String {
    let Project { name, description, requires_python, license, keywords, .. } = project;
    let mut out = format!(
        "Metadata-Version: 2.4\nName: {name}\nVersion: {VERSION}\nSummary: {description}\n\
         Keywords: {}\nLicense-Expression: {license}\n",
        keywords.join(",")
    );
    for file in licences {
        let _ = writeln!(out, "License-File: {file}");
    }
    for classifier in &project.classifiers {
        let _ = writeln!(out, "Classifier: {classifier}");
    }
    let _ = writeln!(out, "Requires-Python: {requires_python}");
    out += "Description-Content-Type: text/markdown\n\n";
    out + &String::from_utf8_lossy(readme)
}

fn entry_points(project: &Project) -> String {
    let mut out = String::new();
    for (group, points) in &project.entry_points {
        let _ = writeln!(out, "[{group}]");
        for (name, value) in points {
            let _ = writeln!(out, "{name} = {value}");
        }
    }
    out
}

/// Returns the list of all files with digests and sizes; its own entry, the last, has neither.
fn record(files: &Files, own: &str) -> String {
    let mut out = String::new();
    for (path, (_, bytes)) in files {
        let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        let _ = writeln!(out, "{path},sha256={digest},{}", bytes.len());
    }
    out + own + ",,\n"
}

/// Returns the archive. All its entries have the earliest time that zip supports.
fn zip(files: &Files, record: &str, list: &str) -> zip::result::ZipResult<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = |mode| {
        let time = zip::DateTime::default();
        SimpleFileOptions::default().last_modified_time(time).unix_permissions(mode)
    };
    for (path, (mode, bytes)) in files {
        zip.start_file(path, options(*mode))?;
        zip.write_all(bytes)?;
    }
    zip.start_file(record, options(0o644))?;
    zip.write_all(list.as_bytes())?;
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_wheel_lists_every_file_and_has_no_links() {
        let mut tree = Tree::default();
        tree.program("bin/rxe", "program");
        tree.file("lib/rxe/rxe-libs/libibverbs.so.1", "library");
        tree.link("lib/rxe/rxe-libs/libibverbs.so", "libibverbs.so.1");
        tree.link("lib/wireshark/extcap/rxe-extcap", "../../../bin/rxe");
        tree.file("share/doc/rxe/README.md", "");
        tree.file(LICENCES.0, "crates");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let arch = &crate::dist::arch::ALL[1];
        let (name, bytes) = wheel(&tree, &source, arch, (2, 30)).unwrap();
        assert_eq!(name, format!("rxe-{VERSION}-py3-none-manylinux_2_31_aarch64.whl"));
        assert_eq!(bytes, wheel(&tree, &source, arch, (2, 30)).unwrap().1);

        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let paths: Vec<_> = zip.file_names().map(str::to_owned).collect();
        let (info, data) = (format!("rxe-{VERSION}.dist-info"), format!("rxe-{VERSION}.data"));
        let mut text = |path: &str| {
            let mut file = zip.by_name(path).unwrap_or_else(|e| panic!("{path}: {e}\n{paths:#?}"));
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            (text, file.unix_mode().unwrap() & 0o777)
        };
        assert_eq!(text(&format!("{data}/scripts/rxe")), ("program".to_owned(), 0o755));
        let link = format!("{data}/data/lib/rxe/rxe-libs/libibverbs.so");
        assert_eq!(text(&link), ("library".to_owned(), 0o644));
        assert_eq!(text(&format!("{info}/licenses/{}", LICENCES.1)).0, "crates");
        text("rxe/py.typed");
        let said = text(&format!("{info}/METADATA")).0;
        for line in ["Name: rxe\n", "License-File: LICENSE-MIT\n", "Requires-Python: >=3.8\n"] {
            assert!(said.contains(line), "{said}");
        }
        let plugin = "[pytest11]\nrxe = rxe.pytest_plugin\n";
        assert_eq!(text(&format!("{info}/entry_points.txt")).0, plugin);
        // The digest is the output of `printf program | sha256sum`.
        let record = text(&format!("{info}/RECORD")).0;
        let program =
            format!("{data}/scripts/rxe,sha256=ExDKLIky29EYZovZdEJVij4fVGteFcaWmd-9YCT1SNg,7\n");
        assert!(record.contains(&program), "{record}");
        assert_eq!(record.lines().count(), paths.len());
        for path in &paths {
            assert!(record.contains(&format!("{path},")), "{path} is not in\n{record}");
            assert!(!path.contains("share/") && !path.contains("extcap"), "{path}");
        }
    }
}

//! The container image: one layer with the programs and the C library they need, in the layout of
//! the Open Container Initiative.
//!
//! `rxe` is the entry point. Images with verbs programs copy its `/usr`.

use super::tree::gzip;
use super::{Arch, Tree, VERSION, elf};
use crate::vm::{Error, Result};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Libraries that glibc loads at run time to resolve names, without an entry in the programs.
const LOADED: [&str; 2] = ["libnss_dns.so.2", "libnss_files.so.2"];

/// Returns the name and the tag of the image after it has been loaded.
pub(super) fn name() -> String {
    format!("rxe:{VERSION}")
}

/// Creates the archive of an image from a prefix's files. Libraries come from the system below
/// `root`.
///
/// # Errors
/// A library that the programs need is missing.
pub fn image(prefix: &Tree, root: &Path, arch: &Arch, epoch: u64) -> Result<Vec<u8>> {
    let layer = layer(prefix, root, arch)?.tar("", epoch)?;
    let difference = digest(&layer);
    let layer = gzip(&layer)?;
    let mut config = json!({
        "architecture": arch.debian,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/rxe"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "WorkingDir": "/tmp",
            "Labels": {
                "org.opencontainers.image.title": "rxe",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [difference] },
        "history": [{ "created_by": "cargo xtask dist" }],
    });
    let address = env!("CARGO_PKG_REPOSITORY");
    if !address.is_empty() {
        config["config"]["Labels"]["org.opencontainers.image.source"] = address.into();
    }
    let mut blobs = Tree::default();
    let mut blob = |media: &str, bytes: Vec<u8>| {
        let (digest, size) = (digest(&bytes), bytes.len());
        blobs.file(&format!("blobs/{}", digest.replace(':', "/")), bytes);
        let media = format!("application/vnd.oci.image.{media}");
        json!({ "mediaType": media, "digest": digest, "size": size })
    };
    let config_blob = blob("config.v1+json", text(&config));
    let layer_blob = blob("layer.v1.tar+gzip", layer);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_blob,
        "layers": [layer_blob],
    });
    let mut manifest = blob("manifest.v1+json", text(&manifest));
    // docker, containerd and new versions of podman read the name from the first annotation; others
    // read the second.
    manifest["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{}", name()),
        "org.opencontainers.image.ref.name": name(),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    // The file that `docker load` reads if it does not use containerd's image store.
    let path =
        |digest: &Value| format!("blobs/{}", digest.as_str().unwrap_or_default().replace(':', "/"));
    let docker = json!([{
        "Config": path(&config_blob["digest"]),
        "RepoTags": [name()],
        "Layers": [path(&layer_blob["digest"])],
    }]);
    blobs.file("manifest.json", text(&docker));
    blobs.file("index.json", text(&index));
    blobs.file("oci-layout", text(&json!({ "imageLayoutVersion": "1.0.0" })));
    blobs.tar("", epoch)
}

/// Returns the file system: the prefix as /usr, and the surrounding directories and files.
fn layer(prefix: &Tree, root: &Path, arch: &Arch) -> Result<Tree> {
    let own = format!("lib/{}", arch.triplet);
    // The library directories below the root of a system.
    let libraries =
        [own.clone(), format!("usr/{own}"), "lib64".into(), "usr/lib64".into(), "lib".into()];
    let mut tree = Tree::default();
    tree.directory("tmp", 0o1777);
    for empty in ["dev", "proc", "run", "sys"] {
        tree.directory(empty, 0o755);
    }
    tree.file("etc/nsswitch.conf", "hosts: files dns\n");
    tree.file("etc/passwd", "root:x:0:0:root:/:/bin/false\n");

    let mut wanted: BTreeSet<String> = LOADED.map(str::to_owned).into();
    for (_, bytes) in prefix.contents().filter(|(_, bytes)| bytes.starts_with(b"\x7fELF")) {
        wanted.extend(elf::libraries(bytes)?);
    }
    let mut have = BTreeSet::new();
    while let Some(name) = wanted.pop_first() {
        if !have.insert(name.clone()) {
            continue;
        }
        let paths = libraries.each_ref().map(|dir| root.join(dir).join(&name));
        let found = paths.iter().find_map(|path| fs::read(path).ok());
        let Some(bytes) = found else {
            // glibc 2.34 contains these libraries.
            if name == "libnss_files.so.2" || name == "libnss_dns.so.2" {
                continue;
            }
            return Err(Error::Missing(format!("{name} is not below {}", root.display())));
        };
        wanted.extend(elf::libraries(&bytes)?);
        if arch.loader.ends_with(&name) {
            tree.program(arch.loader, bytes);
        } else {
            tree.file(&format!("{own}/{name}"), bytes);
        }
    }
    for package in ["libc6", "libgcc-s1"] {
        // The licences of the libraries, from the Debian packages.
        if let Ok(text) = fs::read(root.join("usr/share/doc").join(package).join("copyright")) {
            tree.file(&format!("usr/share/doc/{package}/copyright"), text);
        }
    }
    tree.add("usr", prefix.clone());
    Ok(tree)
}

fn text(value: &Value) -> Vec<u8> {
    // serde_json sorts the keys.
    value.to_string().into_bytes()
}

/// Returns the digest of a blob in the notation of the layout.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the files of an archive, by their paths.
fn entries(archive: &[u8]) -> Result<BTreeMap<String, Vec<u8>>> {
    let failed = |e: std::io::Error| Error::Failed(format!("the image: {e}"));
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let path = entry.path().map_err(failed)?.display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(failed)?;
        found.insert(path, bytes);
    }
    Ok(found)
}

/// Returns the compressed layer of an image, found as a container engine does: by the index, the
/// manifest and their digests, all of which are checked.
///
/// # Errors
/// A blob is missing, or has another digest or size.
pub fn layer_of(image: &[u8]) -> Result<Vec<u8>> {
    let failed = |why: &dyn std::fmt::Display| Error::Failed(format!("the image: {why}"));
    let blobs = entries(image)?;
    let file = |path: &str| blobs.get(path).ok_or_else(|| failed(&format!("no {path}")));
    let blob = |descriptor: &Value| {
        let named = descriptor["digest"].as_str().unwrap_or_default();
        let bytes = file(&format!("blobs/{}", named.replace(':', "/")))?;
        if digest(bytes) != named || descriptor["size"] != bytes.len() {
            return Err(failed(&format!("{descriptor} is not what it says")));
        }
        Ok(bytes)
    };
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).map_err(|e| failed(&e));
    let layout = json(file("oci-layout")?)?;
    if layout["imageLayoutVersion"] != "1.0.0" {
        return Err(failed(&layout));
    }
    let manifest = json(blob(&json(file("index.json")?)?["manifests"][0])?)?;
    let config = json(blob(&manifest["config"])?)?;
    let layer = blob(&manifest["layers"][0])?;
    let mut whole = Vec::new();
    GzDecoder::new(layer.as_slice()).read_to_end(&mut whole).map_err(|e| failed(&e))?;
    if config["rootfs"]["diff_ids"][0] != digest(&whole) {
        return Err(failed(&"the layer is not the configuration's"));
    }
    Ok(layer.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates the image of a small program.
    fn image() -> Vec<u8> {
        let mut tree = Tree::default();
        tree.program("bin/rxe", fs::read("/bin/true").unwrap());
        super::image(&tree, Path::new("/"), Arch::own().unwrap(), 7).unwrap()
    }

    #[test]
    fn an_image_leads_to_its_layer_and_the_layer_has_the_libraries() {
        let image = image();
        let layer = layer_of(&image).unwrap();
        let mut archive = tar::Archive::new(GzDecoder::new(layer.as_slice()));
        let paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        let arch = Arch::own().unwrap();
        let libc = format!("lib/{}/libc.so.6", arch.triplet);
        for path in ["usr/bin/rxe", arch.loader, &libc, "tmp/"] {
            assert!(paths.iter().any(|found| found == path), "{path}: {paths:?}");
        }
    }

    #[test]
    fn whoever_loads_the_image_finds_it_by_the_name_in_the_dockerfiles() {
        let files = entries(&image()).unwrap();
        let json = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        let annotations = &json("index.json")["manifests"][0]["annotations"];
        assert_eq!(
            annotations["io.containerd.image.name"],
            format!("docker.io/library/{}", name())
        );
        assert_eq!(annotations["org.opencontainers.image.ref.name"], name());
        let docker = &json("manifest.json")[0];
        assert_eq!(docker["RepoTags"], json!([name()]));
        for path in [&docker["Config"], &docker["Layers"][0]] {
            assert!(files.contains_key(path.as_str().unwrap()), "{path}");
        }
        for page in ["en/do/install.md", "en/do/containers.md", "zh/do/containers.md"] {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
            let text = fs::read_to_string(page).unwrap();
            assert!(text.contains(&format!("\nCOPY --from={} /usr/bin/rxe ", name())), "{text}");
        }
    }

    #[test]
    fn a_damaged_image_is_refused() {
        let whole = image();
        // The damage is in the blob of the layer, which is by far the largest.
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        assert!(layer_of(&damaged).is_err());
        assert!(layer_of(&whole[..whole.len() / 2]).is_err());
    }
}

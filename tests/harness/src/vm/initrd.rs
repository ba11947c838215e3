//! The initramfs of a VM: busybox, the modules, the agent and the script that starts them.

use super::cache::cache;
use super::kernel::Kernel;
use super::{Error, Result};
use object::Endianness;
use object::elf::PT_INTERP;
use object::read::elf::{ElfFile64, ProgramHeader};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
const INIT: &[u8] = include_bytes!("init.sh");

/// Returns the initramfs for `kernel`, and creates it if it is not in the cache. It depends only on
/// its parts, so one file serves every VM of a kernel.
pub(super) fn build(kernel: &Kernel) -> Result<PathBuf> {
    let busybox = busybox()?;
    let mut cpio = Cpio::default();
    for dir in ["bin", "dev", "proc", "sys", "host", "modules"] {
        cpio.dir(dir);
    }
    cpio.file("init", 0o755, INIT);
    cpio.file("agent", 0o755, AGENT);
    cpio.file("bin/busybox", 0o755, &busybox);
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let data = fs::read(module).map_err(|e| Error::io(module, &e))?;
        cpio.file(&format!("modules/{name}"), 0o644, &data);
        order.push_str(&format!("{name}\n"));
    }
    cpio.file("modules/order", 0o644, order.as_bytes());
    store(&cache()?.join("initrd"), &cpio.finish())
}

fn busybox() -> Result<Vec<u8>> {
    for path in ["/bin/busybox", "/usr/bin/busybox"] {
        if let Ok(data) = fs::read(path) {
            // A dynamically linked busybox cannot be the only file of the system.
            if !asks_for_a_loader(&data) {
                return Ok(data);
            }
        }
    }
    Err(Error::Missing("a static busybox is not installed (package busybox-static)".into()))
}

/// Returns whether a program is dynamically linked, that is, names a loader.
fn asks_for_a_loader(program: &[u8]) -> bool {
    let interpreter = || -> object::read::Result<bool> {
        let elf = ElfFile64::<Endianness>::parse(program)?;
        let mut headers = elf.elf_program_headers().iter();
        Ok(headers.any(|header| header.p_type(elf.endian()) == PT_INTERP))
    };
    // A file of another format cannot be started either.
    interpreter().unwrap_or(true)
}

fn store(dir: &Path, data: &[u8]) -> Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    data.hash(&mut hash);
    fs::create_dir_all(dir).map_err(|e| Error::io(dir, &e))?;
    let path = dir.join(format!("{:016x}.cpio", hash.finish()));
    let whole = |p: &Path| fs::metadata(p).is_ok_and(|m| m.len() == data.len() as u64);
    if !whole(&path) {
        // Threads of this process and other processes may create the file simultaneously. Each
        // writes a file of its own and renames it, so that every reader of the path gets the
        // complete file.
        let mut scratch = NamedTempFile::new_in(dir).map_err(|e| Error::io(dir, &e))?;
        scratch.write_all(data).map_err(|e| Error::io(scratch.path(), &e))?;
        scratch.persist(&path).map_err(|e| Error::io(&path, &e.error))?;
    }
    Ok(path)
}

/// An archive in the format that the kernel unpacks ("newc").
#[derive(Default)]
pub(crate) struct Cpio {
    out: Vec<u8>,
    inode: usize,
}

impl Cpio {
    pub(crate) fn dir(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entry(name, 0o100_000 | mode, data);
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.inode += 1;
        let (ino, size, namesize) = (self.inode, data.len(), name.len() + 1);
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let head = format!(
            "070701{ino:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}\
             {0:08x}{0:08x}{0:08x}{0:08x}{namesize:08x}{0:08x}",
            0, 1
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(0);
        self.pad();
        self.out.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    /// Adds all files below `dir`, with names relative to `root`.
    pub(crate) fn tree(&mut self, root: &Path, dir: &Path) -> std::io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) else { continue };
            let about = fs::symlink_metadata(&path)?;
            if about.is_symlink() {
                let target = fs::read_link(&path)?;
                self.entry(name, 0o120_777, target.as_os_str().as_encoded_bytes());
            } else if about.is_dir() {
                self.dir(name);
                self.tree(root, &path)?;
            } else if about.is_file() {
                self.file(name, about.permissions().mode() & 0o777, &fs::read(&path)?);
            }
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn a_program_that_is_dynamically_linked_asks_for_a_loader() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(asks_for_a_loader(&own));
        // A program without the header that names the loader counts as static.
        let mut changed = own.clone();
        let at = u64::from_le_bytes(own[0x20..0x28].try_into().unwrap());
        let headers = &mut changed[usize::try_from(at).unwrap()..];
        let interp = headers.chunks_mut(56).find(|header| header[..4] == [3, 0, 0, 0]).unwrap();
        interp[0] = 4;
        assert!(!asks_for_a_loader(&changed));
        assert!(asks_for_a_loader(b"#!/bin/sh"));
    }

    #[test]
    fn threads_that_fill_an_empty_cache_together_get_the_whole_file() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("initrd");
        let data: Vec<u8> = (0..8 << 20).map(|i: u32| i.to_le_bytes()[1]).collect();
        for _ in 0..10 {
            let _ = fs::remove_dir_all(&dir);
            let (together, data) = (Barrier::new(4), &data);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        together.wait();
                        let path = store(&dir, data).unwrap();
                        assert!(fs::read(path).unwrap() == *data, "a damaged file");
                    });
                }
            });
            let left = fs::read_dir(&dir).unwrap().count();
            assert_eq!(left, 1, "only the archive stays behind");
        }
    }
}

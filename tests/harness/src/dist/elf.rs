//! The system libraries and symbol versions that a program requires, and its debug information.

use super::{Arch, Tree};
use crate::vm::{Error, Result};
use object::read::elf::{ElfFile64, SectionHeader};
use object::{Endianness, Object, elf};
use std::fs;
use std::process::Command;

/// Returns the newest glibc version, as (2, 31), that the files of a tree require. The versions of
/// their symbols determine it.
///
/// # Errors
/// A file is damaged.
pub fn glibc(tree: &Tree) -> Result<(u32, u32)> {
    let mut newest = (0, 0);
    for (path, bytes) in tree.contents().filter(|(_, bytes)| bytes.starts_with(&elf::ELFMAG)) {
        let versions = needed(bytes).map_err(|e| Error::Failed(format!("{path}: {e}")))?;
        newest = versions.iter().filter_map(|version| numbers(version)).fold(newest, Ord::max);
    }
    Ok(newest)
}

/// Returns the first two numbers of a version such as `GLIBC_2.2.5`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns the symbol versions that a file requires.
fn needed(bytes: &[u8]) -> object::Result<Vec<String>> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut found = Vec::new();
    for section in sections.iter() {
        let Some((mut libraries, strings)) = section.gnu_verneed(endian, bytes)? else { continue };
        let strings = sections.strings(endian, bytes, strings)?;
        while let Some((_, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                found.push(String::from_utf8_lossy(version.name(endian, strings)?).into_owned());
            }
        }
    }
    Ok(found)
}

/// Returns the libraries that a file requires by name.
pub(super) fn libraries(bytes: &[u8]) -> Result<Vec<String>> {
    let names = || -> object::Result<Vec<String>> {
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let (endian, sections) = (file.endian(), file.elf_section_table());
        let Some((entries, strings)) = sections.dynamic(endian, bytes)? else { return Ok(vec![]) };
        let strings = sections.strings(endian, bytes, strings)?;
        let mut names = Vec::new();
        for entry in entries {
            if entry.d_tag.get(endian) == u64::from(elf::DT_NEEDED) {
                let offset = u32::try_from(entry.d_val.get(endian)).unwrap_or(u32::MAX);
                let name = strings.get(offset).unwrap_or_default();
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(names)
    };
    names().map_err(|e| Error::Failed(format!("a library: {e}")))
}

/// Moves symbols and line tables out of the programs and libraries of a tree. Returns them by build
/// ID, as debuggers look for them in `lib/debug`.
///
/// [`Error::Missing`] without objcopy.
/// [`Error::Missing`] without objcopy.
pub fn split(tree: &mut Tree, arch: &Arch) -> Result<Tree> {
    let mut debug = Tree::default();
    let scratch = tempfile::tempdir().map_err(|e| Error::Failed(format!("a directory: {e}")))?;
    let [whole, part] = ["whole", "part"].map(|name| scratch.path().join(name));
    for (path, bytes) in tree.contents_mut() {
        if !bytes.starts_with(&elf::ELFMAG) {
            continue;
        }
        let failed = |why: String| Error::Failed(format!("{path}: {why}"));
        let id = ElfFile64::<Endianness>::parse(bytes.as_slice())
            .and_then(|file| Ok(file.build_id()?.map(<[u8]>::to_vec)))
            .map_err(|e| failed(e.to_string()))?;
        let id = id.filter(|id| id.len() > 1).ok_or_else(|| failed("no build ID".into()))?;
        fs::write(&whole, &*bytes).map_err(|e| failed(e.to_string()))?;
        let copy = |option: &str| {
            let mut objcopy = Command::new(arch.tool("objcopy"));
            objcopy.arg(option).args([&whole, &part]);
            let status = objcopy.status().map_err(|e| Error::Missing(format!("objcopy: {e}")))?;
            if !status.success() {
                return Err(failed(format!("objcopy {option}: {status}")));
            }
            fs::read(&part).map_err(|e| failed(e.to_string()))
        };
        let name: String = id[1..].iter().map(|byte| format!("{byte:02x}")).collect();
        let kept = copy("--only-keep-debug")?;
        debug.file(&format!("lib/debug/.build-id/{:02x}/{name}.debug", id[0]), kept);
        *bytes = copy("--strip-unneeded")?;
    }
    Ok(debug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_which_glibc_and_libraries_it_needs() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(libraries(&own).unwrap().contains(&"libc.so.6".to_owned()));
        let mut tree = Tree::default();
        tree.file("text", "no program");
        assert_eq!(glibc(&tree).unwrap(), (0, 0));
        tree.program("bin/own", own);
        assert!(((2, 17)..(3, 0)).contains(&glibc(&tree).unwrap()));
        tree.program("bin/damaged", elf::ELFMAG);
        assert!(glibc(&tree).is_err());
    }

    #[test]
    fn debug_information_is_kept_apart_under_the_build_id() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let source = dir.path().join("program.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-g", "-Wl,--build-id", "-o"]).args([&program, &source]);
        assert!(cc.status().unwrap().success());
        let mut tree = Tree::default();
        tree.program("bin/program", fs::read(program).unwrap());
        tree.file("text", "no program");
        let mut debug = split(&mut tree, Arch::own().unwrap()).unwrap();
        let look = |bytes: &[u8]| {
            let file = ElfFile64::<Endianness>::parse(bytes).unwrap();
            let has = |name| file.section_by_name(name).is_some();
            (file.build_id().unwrap().unwrap().to_vec(), has(".debug_line"), has(".symtab"))
        };
        let own = tree.contents_mut().find(|(path, _)| *path == "bin/program").unwrap();
        let (id, lines, symbols) = look(own.1);
        assert!(!lines && !symbols);
        let all: Vec<_> = debug.contents_mut().collect();
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("lib/debug/.build-id/{}/{}.debug", &digits[..2], &digits[2..]);
        assert_eq!(all.iter().map(|(path, _)| &**path).collect::<Vec<_>>(), [&*path]);
        assert_eq!(look(all[0].1), (id, true, true));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("GLIBC_2.2.5"), Some((2, 2)));
        assert!(numbers("GLIBC_2.4") < numbers("GLIBC_2.31"));
        assert_eq!(numbers("GLIBC_PRIVATE"), None);
    }
}

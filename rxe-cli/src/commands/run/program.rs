//! Checks whether a library can be preloaded into a program, and if not, says why.
//! The program's file is read before the start, because the dynamic loader's messages are missing
//! or misleading.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef, elf};

use crate::common::Error;

/// Finds a program like a shell with this `PATH`.
pub(super) fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf, Error> {
    let shown = name.to_string_lossy();
    if shown.contains('/') {
        return executable(Path::new(name)).map_err(|why| refusal(shown, why));
    }
    let mut refused = None;
    for dir in env::split_paths(path) {
        match executable(&dir.join(name)) {
            Ok(found) => return Ok(found),
            Err(NO_FILE) => {}
            Err(why) => refused = Some((dir.join(name), why)),
        }
    }
    Err(match refused {
        Some((path, why)) => refusal(path.display(), why),
        None => Error::new(&shown, missing(&shown)).not_found(),
    })
}

const NO_FILE: &str = "there is no such file";

fn refusal(program: impl Display, why: &str) -> Error {
    let error = Error::new(program, why);
    if why == NO_FILE { error.not_found() } else { error.not_executable() }
}

/// Returns the text for a program that does not exist, with the package that has it.
fn missing(name: &str) -> String {
    let why = "there is no such program in PATH";
    match package(name) {
        Some(package) => {
            format!("{why}; on Debian and Ubuntu, `apt-get install {package}` brings it")
        }
        None => why.to_owned(),
    }
}

/// Returns the Debian and Ubuntu package of a verbs program.
fn package(name: &str) -> Option<&'static str> {
    let perftest = name.strip_prefix("ib_").and_then(|rest| rest.split_once('_'));
    match (name, perftest) {
        (_, Some(("send" | "write" | "read" | "atomic", "bw" | "lat"))) => Some("perftest"),
        ("ibv_devices" | "ibv_devinfo" | "ibv_asyncwatch", _) => Some("ibverbs-utils"),
        (
            "ibv_rc_pingpong" | "ibv_uc_pingpong" | "ibv_ud_pingpong" | "ibv_srq_pingpong"
            | "ibv_xsrq_pingpong",
            _,
        ) => Some("ibverbs-utils"),
        (
            "rping" | "ucmatose" | "udaddy" | "mckey" | "cmtime" | "rdma_client" | "rdma_server"
            | "rdma_xclient" | "rdma_xserver" | "riostream" | "rstream" | "rcopy" | "udpong",
            _,
        ) => Some("rdmacm-utils"),
        ("ucx_info" | "ucx_perftest", _) => Some("ucx-utils"),
        ("fi_info" | "fi_pingpong", _) => Some("libfabric-bin"),
        ("qperf", _) => Some("qperf"),
        _ => None,
    }
}

fn executable(path: &Path) -> Result<PathBuf, &'static str> {
    let meta = fs::metadata(path).map_err(|_| NO_FILE)?;
    if meta.is_dir() {
        return Err("it is a directory, no program");
    }
    if meta.mode() & 0o111 == 0 {
        return Err("it is not executable (chmod +x)");
    }
    Ok(path.to_owned())
}

/// Fails if a library cannot be preloaded into the program.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    preloadable(path).map_err(Error::not_executable)
}

fn preloadable(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|e| Error::new(shown.to_string(), e))?;
    // The loader ignores LD_PRELOAD for a program that gains privileges when it is started.
    let setuid = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw();
    let setgid =
        meta.mode() & 0o2010 == 0o2010 && meta.gid() != rustix::process::getegid().as_raw();
    if setuid || setgid {
        return Err(Error::new(
            format!("{shown} is setuid or setgid"),
            "the system preloads nothing into such programs; run it as its owner, or a copy \
             without that bit",
        ));
    }
    // A file that may be executed but not read cannot be checked.
    let Ok(file) = File::open(path) else { return Ok(()) };
    match judge(&ReadCache::new(file)) {
        Verdict::Fine => Ok(()),
        Verdict::Script(interpreter) => check_interpreter(path, &interpreter),
        Verdict::Bad(what, todo) => Err(Error::new(format!("{shown} {what}"), todo)),
    }
}

/// The ELF header of programs for this machine.
type Native = elf::FileHeader64<Endianness>;
const NATIVE: u16 = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };

/// The bytes read from the start of a file, enough for the first line of any script.
const LINE: u64 = 4096;

fn check_interpreter(script: &Path, interpreter: &Path) -> Result<(), Error> {
    let shown = script.display();
    if !interpreter.exists() {
        let what = format!("{shown} is a script for {}", interpreter.display());
        return Err(Error::new(
            what,
            "which does not exist: install it, or correct the first line",
        ));
    }
    match File::open(interpreter).map(|file| judge(&ReadCache::new(file))) {
        Ok(Verdict::Bad(what, todo)) => Err(Error::new(
            format!("{shown} is a script for {}, which {what}", interpreter.display()),
            todo,
        )),
        _ => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    /// A script, with the path of its interpreter.
    Script(PathBuf),
    /// The defect, and what to do.
    Bad(String, &'static str),
}

/// Judges a program's file. The names in it may be anywhere: patchelf moves the loader's name to
/// the end, as in Python wheels.
fn judge<'f, R: ReadRef<'f>>(file: R) -> Verdict {
    let begin = file.len().and_then(|len| file.read_bytes_at(0, len.min(LINE))).unwrap_or_default();
    if let Some(rest) = begin.strip_prefix(b"#!") {
        let line = rest.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        return match line.split_whitespace().next() {
            Some(interpreter) => Verdict::Script(interpreter.into()),
            None => Verdict::Fine,
        };
    }
    let not_a_program = || {
        Verdict::Bad(
            "is neither a program nor a script with an interpreter (#!)".into(),
            "name a program",
        )
    };
    let (machine, bits) = match FileKind::parse(file) {
        Ok(FileKind::Elf64) => match elf::FileHeader64::<Endianness>::parse(file) {
            Ok(header) => (header.endian().map(|e| (header.e_machine(e), e)), 64),
            Err(_) => return not_a_program(),
        },
        Ok(FileKind::Elf32) => match elf::FileHeader32::<Endianness>::parse(file) {
            Ok(header) => (header.endian().map(|e| (header.e_machine(e), e)), 32),
            Err(_) => return not_a_program(),
        },
        _ => return not_a_program(),
    };
    let Ok((machine, endian)) = machine else { return not_a_program() };
    if (machine, endian, bits) != (NATIVE, Endianness::Little, 64) {
        return Verdict::Bad(
            format!("is a program for {}", machine_name(machine, bits)),
            "this machine and the library have another architecture: use a program built for it",
        );
    }
    let Ok(elf) = Native::parse(file) else { return not_a_program() };
    match loader(elf, file) {
        None => Verdict::Bad(
            "is statically linked".into(),
            "nothing can be preloaded into such a program: link it dynamically (Go: CGO_ENABLED=1), or, if it \
             only reads files in /sys, let it read them in the directory that `rxe env` prints as RXE_SYSFS",
        ),
        Some(loader) if loader.contains("ld-musl") => Verdict::Bad(
            format!("is linked with musl ({loader})"),
            "the library is made for the GNU C library: use a program linked with that",
        ),
        Some(_) => Verdict::Fine,
    }
}

fn machine_name(machine: u16, bits: u8) -> String {
    let name = match machine {
        elf::EM_386 => "x86",
        elf::EM_X86_64 => "x86-64",
        elf::EM_ARM => "Arm",
        elf::EM_AARCH64 => "AArch64",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC | elf::EM_PPC64 => "PowerPC",
        elf::EM_S390 => "S/390",
        elf::EM_MIPS => "MIPS",
        other => return format!("a machine of type {other:#x} ({bits} bit)"),
    };
    format!("{name} ({bits} bit)")
}

/// Returns the dynamic loader that a program names.
fn loader<'f, R: ReadRef<'f>>(elf: &Native, file: R) -> Option<String> {
    let endian = elf.endian().ok()?;
    let segments = elf.program_headers(endian, file).ok()?;
    let name = segments.iter().find_map(|s| s.interpreter(endian, file).ok().flatten())?;
    Some(String::from_utf8_lossy(name).into())
}

/// Returns the sanitizer runtime that a program is linked with.
/// It is that of AddressSanitizer, ThreadSanitizer or HWAddressSanitizer, and must be loaded before
/// the preload library.
pub(super) fn sanitizer(path: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok()?);
    needed(&cache)?.into_iter().find(|name| {
        ["libasan.so", "libtsan.so", "libhwasan.so"].iter().any(|start| name.starts_with(start))
    })
}

/// Returns the libraries that a program names (DT_NEEDED).
fn needed<'f, R: ReadRef<'f>>(file: R) -> Option<Vec<String>> {
    let elf = Native::parse(file).ok()?;
    let endian = elf.endian().ok()?;
    let sections = elf.sections(endian, file).ok()?;
    let (entries, strings) = sections.dynamic(endian, file).ok()??;
    let strings = sections.strings(endian, file, strings).ok()?;
    let names = entries.iter().filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED));
    let names = names.filter_map(|entry| {
        let at = u32::try_from(entry.d_val(endian)).ok()?;
        strings.get(at).ok()
    });
    Some(names.map(|name| String::from_utf8_lossy(name).into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verbs_program_that_is_not_there_comes_with_its_package() {
        for (name, package) in [
            ("ib_write_lat", "perftest"),
            ("ibv_devinfo", "ibverbs-utils"),
            ("rping", "rdmacm-utils"),
            ("qperf", "qperf"),
        ] {
            let said = missing(name);
            assert!(said.contains(&format!("`apt-get install {package}`")), "{said}");
        }
        assert_eq!(missing("ib_other_bw"), "there is no such program in PATH");
    }

    /// Returns an ELF header followed by one program header.
    fn program(machine: u16, class: u8, loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        let mut header = vec![0; 56];
        header[0] = if loader.is_some() { 3 } else { 1 };
        header[8] = 120;
        header[32] = u8::try_from(loader.unwrap_or_default().len() + 1).unwrap();
        file.extend(header);
        file.extend(loader.unwrap_or_default().bytes());
        file.push(0);
        file
    }

    const OWN: u16 = if cfg!(target_arch = "x86_64") { 0x3e } else { 0xb7 };

    fn complaint(file: &[u8]) -> String {
        match judge(file) {
            Verdict::Bad(what, _) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_dynamic_program_of_this_machine_is_fine() {
        assert_eq!(judge(&*program(OWN, 2, Some("/lib/ld-linux.so.2"))), Verdict::Fine);
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(judge(&*own), Verdict::Fine);
    }

    #[test]
    fn the_loader_s_name_may_be_far_behind() {
        let mut moved = program(OWN, 2, Some("/lib/ld-linux.so.2"));
        let name = moved.split_off(120);
        moved.resize(40 << 20, 0);
        let at = u64::try_from(moved.len()).unwrap();
        moved[72..80].copy_from_slice(&at.to_le_bytes());
        moved.extend(name);
        assert_eq!(judge(&*moved), Verdict::Fine);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("moved");
        fs::write(&path, moved).unwrap();
        check(&path).unwrap();
    }

    #[test]
    fn what_can_not_be_preloaded_into_is_named() {
        assert_eq!(complaint(&program(OWN, 2, None)), "is statically linked");
        assert_eq!(complaint(&program(0xf3, 2, None)), "is a program for RISC-V (64 bit)");
        assert_eq!(complaint(&program(0x03, 1, None)), "is a program for x86 (32 bit)");
        let musl = complaint(&program(OWN, 2, Some("/lib/ld-musl-x86_64.so.1")));
        assert!(musl.contains("musl"), "{musl}");
        assert!(complaint(b"hello").contains("neither a program nor a script"));
    }

    #[test]
    fn a_cut_off_file_is_judged_without_reading_beyond_it() {
        let whole = program(OWN, 2, Some("/lib/ld-linux.so.2"));
        for len in 0..whole.len() {
            judge(&whole[..len]);
        }
    }

    #[test]
    fn a_script_s_interpreter_is_looked_at() {
        assert_eq!(judge(&b"#! /bin/sh -e\n"[..]), Verdict::Script("/bin/sh".into()));
        let error = check_interpreter(Path::new("x.py"), Path::new("/nonexistent/python"));
        assert!(error.unwrap_err().to_string().contains("/nonexistent/python"));
    }
}

//! `cargo xtask libs`: libraries with the names and symbol versions of rdma-core's, for programs that
//! load libibverbs by themselves (dlopen, dlvsym) and for hosts without rdma-core.
//!
//! Each function in them jumps to the function with its name in `librxe_preload.so`, so a process
//! has one engine, however it found its functions. rsockets come from the system's librdmacm, which
//! then calls our functions. Other functions that we lack, which rdma-core's parts use among
//! themselves, fail with ENOSYS; so do rsockets without a librdmacm on the system. With `rxe run
//! --with-host-devices` these functions come from the system's libibverbs: the providers of the
//! host's devices call them under the name that this library has taken.

use crate::vm::{Error, Result};
use object::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory of the libraries, next to `rxe`.
pub const DIRECTORY: &str = "rxe-libs";

/// The library, its soname, and a function: the library is built only if `librxe_preload.so`
/// exports it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "libibverbs.so.1", "ibv_open_device"),
    ("librdmacm", "librdmacm.so.1", "rdma_create_id"),
];

/// Builds the libraries for the `librxe_preload.so` in `bin`. Returns their paths.
///
/// # Errors
/// [`Error::Missing`] without a C compiler.
pub fn build(bin: &Path) -> Result<Vec<PathBuf>> {
    build_with(bin, "cc", &[])
}

/// Returns the file names of the libraries, and of the links to them.
pub fn names() -> impl Iterator<Item = (&'static str, String)> {
    LIBRARIES.into_iter().map(|(name, soname, _)| (soname, link(name)))
}

/// Returns the name without a version, which some programs load.
fn link(name: &str) -> String {
    format!("{name}.so")
}

/// Like [`build`], with this compiler and additional options for it.
///
/// # Errors
/// As for [`build`].
pub fn build_with(bin: &Path, compiler: &str, options: &[String]) -> Result<Vec<PathBuf>> {
    let exported = exported(&bin.join("librxe_preload.so"))?;
    let dir = bin.join(DIRECTORY);
    fs::create_dir_all(&dir).map_err(|e| Error::Failed(format!("{}: {e}", dir.display())))?;
    // Several tests may build the libraries simultaneously, and programs may have the old ones
    // mapped. Therefore each call builds them in a directory of its own and then renames them into
    // place.
    let scratch = tempfile::Builder::new().prefix(".rxe-libs-").tempdir_in(bin);
    let scratch = scratch.map_err(|e| Error::Failed(format!("{}: {e}", bin.display())))?;
    let mut made = Vec::new();
    for (name, soname, function) in LIBRARIES {
        let list =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rxe-preload/symbols").join(name);
        let Ok(list) = fs::read_to_string(list) else { continue };
        if exported.contains(function) {
            for file in make(scratch.path(), name, soname, &list, (compiler, options))? {
                let (from, to) = (scratch.path().join(&file), dir.join(&file));
                let failed = |e| Error::Failed(format!("{}: {e}", to.display()));
                fs::rename(from, &to).map_err(failed)?;
            }
            made.push(dir.join(soname));
            let to = dir.join(link(name));
            match symlink(soname, &to) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::Failed(format!("{}: {e}", to.display())));
                }
                _ => {}
            }
        }
    }
    Ok(made)
}

/// Returns the names that a library exports.
fn exported(library: &Path) -> Result<BTreeSet<String>> {
    let failed = |why: &dyn fmt::Display| Error::Failed(format!("{}: {why}", library.display()));
    let bytes = fs::read(library).map_err(|e| failed(&e))?;
    let file = object::File::parse(&*bytes).map_err(|e| failed(&e))?;
    let exports = file.exports().map_err(|e| failed(&e))?;
    Ok(exports.iter().map(|e| String::from_utf8_lossy(e.name()).into_owned()).collect())
}

/// Builds a library in `dir`. Returns the names of all files created, the library last.
fn make(
    dir: &Path,
    name: &str,
    soname: &str,
    list: &str,
    (compiler, options): (&str, &[String]),
) -> Result<[String; 3]> {
    let symbols = Symbol::all(list);
    let files = [format!("{name}.c"), format!("{name}.map"), soname.to_owned()];
    let [source, script, library] = [0, 1, 2].map(|at: usize| dir.join(&files[at]));
    let failed = |e: std::io::Error| Error::Failed(format!("{}: {e}", dir.display()));
    // The other functions of the system's libibverbs lead to the host's devices, so they are used
    // only on request.
    let condition = if name == "librdmacm" { "" } else { "RXE_HOST_DEVICES" };
    fs::write(&source, code(&symbols, soname, condition)).map_err(failed)?;
    fs::write(&script, versions(&symbols)).map_err(failed)?;
    let out = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .args(options)
        .arg("-Wl,--build-id")
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .output()
        .map_err(|e| Error::Missing(format!("{compiler}: {e}")))?;
    if !out.status.success() {
        return Err(Error::Failed(String::from_utf8_lossy(&out.stderr).into_owned()));
    }
    Ok(files)
}

/// A line of a list of symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The symbol version that programs import.
    pub version: String,
    /// The name of the function or variable.
    pub name: String,
    /// Whether the symbol is a variable instead of a function.
    pub object: bool,
    /// Whether the function takes structures that differ from those of its current version.
    pub old: bool,
    /// The result of a call if we have no such function.
    otherwise: Absent,
}

/// How an absent C function fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absent {
    Errno,
    Null,
    MinusOne,
}

/// The version numbers of rdma-core's private symbols, from release 33 to 65.
const PRIVATE: [&str; 6] = ["33", "34", "57", "59", "64", "65"];

impl Symbol {
    /// Returns all symbols in a list of `rxe-preload/symbols`, one for each version.
    pub fn all(list: &str) -> Vec<Self> {
        let lines = list.lines().filter(|line| !line.starts_with('#'));
        lines.flat_map(Self::of_line).collect()
    }

    fn of_line(line: &str) -> Vec<Self> {
        let mut words = line.split_whitespace();
        let (Some(version), Some(name)) = (words.next(), words.next()) else { return Vec::new() };
        let rest: Vec<&str> = words.collect();
        let symbol = |number: &str| Self {
            version: version.replace('*', number),
            name: name.replace('*', number),
            object: rest.contains(&"object"),
            old: rest.contains(&"old"),
            otherwise: match () {
                () if rest.contains(&"null") => Absent::Null,
                () if rest.contains(&"minus") => Absent::MinusOne,
                () => Absent::Errno,
            },
        };
        if version.contains('*') { PRIVATE.map(symbol).into() } else { vec![symbol("")] }
    }
}

/// Returns a linker script with the versions.
fn versions(symbols: &[Symbol]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for symbol in symbols {
        nodes.entry(&symbol.version).or_default().push(&symbol.name);
    }
    let mut out = String::new();
    for (version, names) in nodes {
        let _ = writeln!(out, "{version} {{ global: {}; }};", names.join("; "));
    }
    // All other symbols are local to the library.
    out.replacen("; };", "; local: *; };", 1)
}

/// Returns whether no later symbol has this name. Programs that request no version get the last
/// one.
fn is_last(symbols: &[Symbol], symbol: &Symbol) -> bool {
    let last = symbols.iter().rfind(|other| other.name == symbol.name);
    last.is_some_and(|last| last.version == symbol.version)
}

/// Returns the functions, in C and assembly. Functions that we lack are looked up in the system's
/// library `behind`, if the variable `condition` is `on` or has no name.
fn code(symbols: &[Symbol], behind: &str, condition: &str) -> String {
    let mut out = PROLOGUE.to_owned();
    let _ = writeln!(out, "static const char behind[] = \"{behind}\";");
    let _ = writeln!(out, "static const char condition[] = \"{condition}\";");
    let _ = writeln!(out, "enum {{ COUNT = {} }};", symbols.len());
    out += "static const struct { const char *name; long (*otherwise)(void); } calls[COUNT] = {\n";
    for symbol in symbols {
        let otherwise = match symbol.otherwise {
            Absent::Errno => "absent",
            Absent::Null => "absent_null",
            Absent::MinusOne => "absent_minus",
        };
        // An empty name matches none of our functions.
        let name = if symbol.old { "" } else { &symbol.name };
        let _ = writeln!(out, "\t{{ \"{name}\", {otherwise} }},");
    }
    out += "};\nvoid *rxe_targets[COUNT] __attribute__((visibility(\"hidden\")));\n";
    for (i, symbol) in symbols.iter().enumerate() {
        let Symbol { name, version, .. } = symbol;
        let at = if is_last(symbols, symbol) { "@@" } else { "@" };
        let _ = match symbol.object {
            false => writeln!(out, "JUMP({i}, {}, {name}{at}{version})", 8 * i),
            // Variables are small, and only rdma-core's own parts use them.
            true => {
                let own = format!("rxe_object_{i}");
                writeln!(out, "char {own}[8];\nALIAS({own}, {name}{at}{version})")
            }
        };
    }
    out + EPILOGUE
}

const PROLOGUE: &str = r#"/* Made by cargo xtask libs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIAS(own, name) __asm__(".symver " #own ", " #name "\n");
#if defined(__x86_64__)
#define DIRECTORIES "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib"
#define JUMP(number, at, name) \
	__asm__(".globl rxe_call_" #number "\n.type rxe_call_" #number ", @function\n" \
		"rxe_call_" #number ":\n\tjmp *rxe_targets+" #at "(%rip)\n"); \
	ALIAS(rxe_call_##number, name)
#elif defined(__aarch64__)
#define DIRECTORIES "/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib"
#define JUMP(number, at, name) \
	__asm__(".globl rxe_call_" #number "\n.type rxe_call_" #number ", %function\n" \
		"rxe_call_" #number ":\n\tadrp x16, rxe_targets+" #at "\n" \
		"\tldr x16, [x16, :lo12:rxe_targets+" #at "]\n\tbr x16\n"); \
	ALIAS(rxe_call_##number, name)
#else
#error "another architecture"
#endif

static long absent(void)
{
	errno = ENOSYS;
	return ENOSYS;
}

static long absent_null(void)
{
	errno = ENOSYS;
	return 0;
}

static long absent_minus(void)
{
	errno = ENOSYS;
	return -1;
}

"#;

const EPILOGUE: &str = r#"
/* The system's own library, which this one has taken the place of. */
static void *of_system(void)
{
	static const char *const dirs[] = { DIRECTORIES };
	const char *value = *condition ? secure_getenv(condition) : "on";
	char path[64];
	void *library = NULL;

	if (!value || strcmp(value, "on"))
		return NULL;
	for (unsigned i = 0; !library && i < sizeof dirs / sizeof *dirs; i++) {
		snprintf(path, sizeof path, "%s/%s", dirs[i], behind);
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return library;
}

/* The preloaded library if there is one, else the one in the directory above this file's. */
__attribute__((constructor)) static void find(void)
{
	char path[4096];
	Dl_info self;
	char *slash;
	void *library = dlopen("librxe_preload.so", RTLD_NOW | RTLD_NOLOAD), *system;

	if (!library && dladdr((void *)&find, &self)) {
		snprintf(path, sizeof path - 32, "%s", self.dli_fname);
		slash = strrchr(path, '/');
		strcpy(slash ? slash + 1 : path, "../librxe_preload.so");
		library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	}
	system = of_system();
	for (int i = 0; i < COUNT; i++) {
		rxe_targets[i] = library && *calls[i].name ? dlsym(library, calls[i].name) : NULL;
		if (!rxe_targets[i] && system && *calls[i].name)
			rxe_targets[i] = dlsym(system, calls[i].name);
		if (!rxe_targets[i])
			rxe_targets[i] = (void *)calls[i].otherwise;
	}
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_symbol_in_each_of_its_versions() {
        let list = "# words\nV_1.0 a\nV_1.0 b old null\nPRIVATE_* c_* minus\n";
        let symbols = Symbol::all(list);
        let names: Vec<_> = symbols.iter().map(|s| format!("{}@{}", s.name, s.version)).collect();
        assert_eq!(names[..3], ["a@V_1.0", "b@V_1.0", "c_33@PRIVATE_33"]);
        assert_eq!(names.len(), 2 + PRIVATE.len());
        assert_eq!((symbols[0].old, symbols[0].otherwise), (false, Absent::Errno));
        assert_eq!((symbols[1].old, symbols[1].otherwise), (true, Absent::Null));
        assert_eq!((symbols[2].old, symbols[2].otherwise), (false, Absent::MinusOne));
    }

    #[test]
    fn whoever_reads_a_library_while_others_make_it_gets_it_whole() {
        let bin = tempfile::tempdir().unwrap();
        let (source, preload) = (bin.path().join("p.c"), bin.path().join("librxe_preload.so"));
        fs::write(&source, "int ibv_open_device(void) { return 0; }").unwrap();
        let mut cc = Command::new("cc");
        match cc.args(["-shared", "-fPIC", "-o"]).args([&preload, &source]).status() {
            Ok(status) => assert!(status.success()),
            Err(e) => return crate::skipped("libs::whole", &format!("cc: {e}")),
        }
        fs::remove_file(source).unwrap();
        let library = build(bin.path()).unwrap().remove(0);
        let whole = fs::read(&library).unwrap();
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| (0..3).for_each(|_| drop(build(bin.path()).unwrap()))))
                .collect();
            while !makers.iter().all(|maker| maker.is_finished()) {
                assert!(fs::read(&library).unwrap() == whole, "a damaged library");
            }
        });
        let left: Vec<_> =
            fs::read_dir(bin.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "scratch files stay behind: {left:?}");
    }

    #[test]
    fn every_version_is_there_and_what_has_none_is_hidden() {
        let script = versions(&Symbol::all("V_1 a\nV_2 b object\nV_1 c\n"));
        assert_eq!(script, "V_1 { global: a; c; local: *; };\nV_2 { global: b; };\n");
    }
}

//! `cargo xtask libs`: libraries with the names and symbol versions of rdma-core's, for programs that
//! load libibverbs by themselves (dlopen, dlvsym) and for hosts without rdma-core.
//!
//! Each function in them jumps to the one of the same name in `librxe_preload.so`, so that there is
//! one engine in a process however its functions were found. Of the functions by which rdma-core's own
//! parts talk with each other, those that we have not say ENOSYS.

use crate::vm::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory beside `rxe` that they are made in.
pub const DIRECTORY: &str = "rxe-libs";

/// The library, its soname, and its list of symbols; made only if we have this function of it.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "libibverbs.so.1", "ibv_open_device"),
    ("librdmacm", "librdmacm.so.1", "rdma_create_id"),
];

/// Makes the libraries for the `librxe_preload.so` in `bin`, and says which.
///
/// # Errors
/// [`Error::Missing`] without a C compiler.
pub fn build(bin: &Path) -> Result<Vec<PathBuf>> {
    let preload = fs::read(bin.join("librxe_preload.so"))
        .map_err(|e| Error::Failed(format!("librxe_preload.so: {e}")))?;
    let dir = bin.join(DIRECTORY);
    fs::create_dir_all(&dir).map_err(|e| Error::Failed(format!("{}: {e}", dir.display())))?;
    let mut made = Vec::new();
    for (name, soname, function) in LIBRARIES {
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rxe-preload/symbols").join(name);
        let Ok(list) = fs::read_to_string(list) else { continue };
        // A name in the library's table of strings.
        let exported = [b"\0", function.as_bytes(), b"\0"].concat();
        if preload.windows(exported.len()).any(|bytes| bytes == exported) {
            made.push(make(&dir, name, soname, &list)?);
        }
    }
    Ok(made)
}

/// Behind the names that are no functions.
const OBJECT: &str = " object";

fn make(dir: &Path, name: &str, soname: &str, list: &str) -> Result<PathBuf> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let symbols: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
    let (source, script) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.map")));
    let library = dir.join(soname);
    let failed = |e: std::io::Error| Error::Failed(format!("{}: {e}", dir.display()));
    fs::write(&source, code(&symbols)).map_err(failed)?;
    fs::write(&script, versions(&symbols)).map_err(failed)?;
    let out = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .output()
        .map_err(|e| Error::Missing(format!("cc: {e}")))?;
    if !out.status.success() {
        return Err(Error::Failed(String::from_utf8_lossy(&out.stderr).into_owned()));
    }
    Ok(library)
}

/// A linker script that gives each function its version.
fn versions(symbols: &[(&str, &str)]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (version, name) in symbols {
        nodes.entry(version).or_default().push(name.trim_end_matches(OBJECT));
    }
    let mut out = String::new();
    for (version, names) in nodes {
        let _ = writeln!(out, "{version} {{ global: {}; }};", names.join("; "));
    }
    // Everything else is this library's own.
    out.replacen("; };", "; local: *; };", 1)
}

/// The functions, in C and assembly.
fn code(symbols: &[(&str, &str)]) -> String {
    let mut out = PROLOGUE.to_owned();
    let _ = writeln!(out, "enum {{ COUNT = {} }};", symbols.len());
    out += "static const char *const names[COUNT] = {\n";
    for (_, name) in symbols {
        let _ = writeln!(out, "\t\"{name}\",");
    }
    out += "};\nvoid *rxe_targets[COUNT] __attribute__((visibility(\"hidden\")));\n";
    for (i, (_, name)) in symbols.iter().enumerate() {
        let _ = match name.strip_suffix(OBJECT) {
            None => writeln!(out, "JUMP({name}, {})", 8 * i),
            // Small ones, which only rdma-core's own parts look at.
            Some(name) => writeln!(out, "char {name}[8];"),
        };
    }
    out + EPILOGUE
}

const PROLOGUE: &str = r#"/* Made by cargo xtask libs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#define JUMP(name, at) \
	__asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n" \
		"\tjmp *rxe_targets+" #at "(%rip)\n");
#elif defined(__aarch64__)
#define JUMP(name, at) \
	__asm__(".globl " #name "\n.type " #name ", %function\n" #name ":\n" \
		"\tadrp x16, rxe_targets+" #at "\n\tldr x16, [x16, :lo12:rxe_targets+" #at "]\n\tbr x16\n");
#else
#error "another architecture"
#endif

"#;

const EPILOGUE: &str = r#"
static int absent(void)
{
	errno = ENOSYS;
	return ENOSYS;
}

/* The preloaded library if there is one, else the one in the directory above this file's. */
__attribute__((constructor)) static void find(void)
{
	char path[4096];
	Dl_info self;
	char *slash;
	void *library = dlopen("librxe_preload.so", RTLD_NOW | RTLD_NOLOAD);

	if (!library && dladdr((void *)&find, &self)) {
		snprintf(path, sizeof path - 32, "%s", self.dli_fname);
		slash = strrchr(path, '/');
		strcpy(slash ? slash + 1 : path, "../librxe_preload.so");
		library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	}
	for (int i = 0; i < COUNT; i++) {
		rxe_targets[i] = library ? dlsym(library, names[i]) : NULL;
		if (!rxe_targets[i])
			rxe_targets[i] = (void *)absent;
	}
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_its_functions_and_the_rest_is_hidden() {
        let script = versions(&[("V_1", "a"), ("V_2", "b"), ("V_1", "c")]);
        assert_eq!(script, "V_1 { global: a; c; local: *; };\nV_2 { global: b; };\n");
    }
}

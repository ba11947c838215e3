//! The functions in the versioned libraries: all that rdma-core exports, with their versions.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Dir, rxe};
use rxe_harness::libs::{self, Symbol};
use rxe_test_support::skipped;

/// The list of `rxe-preload/symbols` for each library.
const LIBRARIES: [(&str, &str); 2] =
    [("libibverbs", "libibverbs.so.1"), ("librdmacm", "librdmacm.so.1")];

#[test]
fn the_preloaded_library_has_every_public_function() {
    let library = rxe().with_file_name("librxe_preload.so");
    let Some(found) = exports("the preloaded library's symbols", &library) else { return };
    let names: BTreeSet<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    for (list, _) in LIBRARIES {
        let wanted = symbols(list);
        let missing: Vec<_> = wanted
            .iter()
            .filter(|symbol| is_ours(symbol) && !names.contains(symbol.name.as_str()))
            .map(|symbol| &symbol.name)
            .collect();
        assert!(missing.is_empty(), "{list}: {missing:?}");
        assert!(wanted.iter().filter(|symbol| is_ours(symbol)).count() > 40);
    }
}

/// Returns whether we must export the function: not those that rdma-core's parts use among
/// themselves, and not rsockets.
fn is_ours(symbol: &Symbol) -> bool {
    let Symbol { version, name, old, .. } = symbol;
    let between_parts = version.contains("PRIVATE") || name.starts_with("ibv_copy_");
    let socket = name.starts_with("repoll") || (name.starts_with('r') && !name.starts_with("rdma"));
    !between_parts && !socket && !old
}

#[test]
fn the_versioned_libraries_have_each_symbol_in_each_version() {
    // Not in the directory of other tests, which would use the library too.
    let bin = Dir::new();
    fs::copy(rxe().with_file_name("librxe_preload.so"), bin.0.join("librxe_preload.so")).unwrap();
    let made = match libs::build(&bin.0) {
        Ok(made) => made,
        Err(rxe_harness::vm::Error::Missing(why)) => {
            return skipped("the versioned libraries", &why);
        }
        Err(e) => panic!("{e}"),
    };
    for ((list, soname), library) in LIBRARIES.into_iter().zip(made) {
        assert!(library.ends_with(soname));
        let Some(found) = exports(soname, &library) else { return };
        let wanted: BTreeSet<_> =
            symbols(list).into_iter().map(|symbol| (symbol.version, symbol.name)).collect();
        let differ: Vec<_> = found.symmetric_difference(&wanted).take(20).collect();
        assert!(differ.is_empty(), "{soname}: {differ:?}");
    }
}

#[test]
fn the_lists_have_all_that_the_installed_libraries_have() {
    for (list, soname) in LIBRARIES {
        let found = Command::new("cc").arg(format!("-print-file-name={soname}")).output();
        let path = found.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        let Some(path) = path.ok().map(PathBuf::from).filter(|path| path.is_absolute()) else {
            skipped(soname, "it is not installed, or there is no C compiler to tell where");
            continue;
        };
        let Some(theirs) = exports(soname, &path) else { return };
        let ours: BTreeSet<_> =
            symbols(list).into_iter().map(|symbol| (symbol.version, symbol.name)).collect();
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty() && theirs.len() > 40, "{soname}: {missing:?}");
    }
}

fn symbols(list: &str) -> Vec<Symbol> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rxe-preload/symbols").join(list);
    Symbol::all(&fs::read_to_string(path).unwrap())
}

/// Returns the versions and names of a library's exports; the version is empty if there is none.
fn exports(test: &str, library: &Path) -> Option<BTreeSet<(String, String)>> {
    let args = ["--dynamic", "--defined-only", "--with-symbol-versions"];
    let out = match Command::new("nm").args(args).arg(library).output() {
        Ok(out) => out,
        Err(e) => {
            skipped(test, format_args!("nm: {e}"));
            return None;
        }
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let symbols = words.filter_map(|words| match words[..] {
        // The symbols of the versions themselves.
        [_, "A", _] => None,
        [_, _, symbol] => {
            let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
            Some((version.trim_start_matches('@').to_owned(), name.to_owned()))
        }
        _ => None,
    });
    Some(symbols.collect())
}

//! `cargo xtask programs`: unmodified verbs programs with the preloaded library (`rxe run`),
//! between two of our processes and with a real kernel's `rdma_rxe`, as server and as client.

mod cm;
mod fabric;
mod iser;
mod launcher;
mod mooncake;
mod mpich;
mod plain;
mod side;
mod ucx;
mod versions;
mod watch;
mod world;

use crate::c::{Compiled, TUTORIALS};
use crate::skip::unless_missing;
use crate::vm::{Cmd, Kernel, Net, Result, Spec, Vm};
use std::cell::Cell;
use std::fmt::Write as _;

pub use self::cm::rsockets;
pub use self::iser::iser_functions;
pub use self::launcher::Launcher;
pub use self::versions::versions;
pub use self::world::{Options, Row, Sides, Which};
use self::world::{World, failed, random_file};

/// Runs all programs with one kernel, such as `6.1`.
///
/// # Errors
/// There is no VM: [`Error::Missing`](crate::vm::Error::Missing) if this machine cannot run one.
pub fn run(kernel: &str, options: &Options) -> Result<Vec<Row>> {
    let found = Kernel::find(kernel)?;
    let net = Net::tap(LINK_MTU)?;
    let vm = Vm::boot(&net, &found, &Spec::default())?;
    let kernel_gid = gid_in_vm(&vm)?;
    let c = unless_missing("the C programs of tests/c/tutorial", Compiled::new(&TUTORIALS))?;
    let file = random_file(FILE)?;
    let number = Cell::new(0);
    let world = World { kernel, vm: &vm, net: &net, options, kernel_gid, c, file, number };
    let mut rows = Vec::new();
    plain::run(&world, &mut rows);
    cm::run(&world, &mut rows);
    ucx::run(&world, &mut rows);
    fabric::run(&world, &mut rows);
    mooncake::run(&world, &mut rows)?;
    mpich::run(&world, &mut rows)?;
    iser::run(&world, &found, &mut rows)?;
    Ok(rows)
}

/// The MTU of the link, large enough for path MTU 4096.
const LINK_MTU: u32 = 4200;

/// The size in bytes of the file that programs send: a multiple of a disk's block size, by an odd
/// factor.
const FILE: u64 = 3907 * 512;

/// Returns the rows as a Markdown table with these columns. Results with several kernels are
/// merged.
pub fn table(rows: &[(&str, Vec<Row>)], columns: &[Sides]) -> String {
    let mut out = "| program | options |".to_owned();
    for sides in columns {
        let _ = write!(out, " {} |", sides.name());
    }
    let _ = writeln!(out, "\n| --- | --- |{}", " --- |".repeat(columns.len()));
    for (name, options) in all() {
        let what = format!("{name} {options}");
        let mark = |sides| {
            let of_all =
                rows.iter().flat_map(|(kernel, rows)| rows.iter().map(move |r| (kernel, r)));
            let mut found = of_all.filter(|(_, r)| r.what == what && r.sides == sides).peekable();
            if found.peek().is_none() {
                return "".to_owned();
            }
            let bad: Vec<_> = found.filter(|(_, r)| r.failed.is_some()).map(|(k, _)| *k).collect();
            if bad.is_empty() { "ok".into() } else { format!("FAILED ({})", bad.join(", ")) }
        };
        let marks: Vec<_> = columns.iter().copied().map(mark).collect();
        if marks.iter().all(String::is_empty) {
            continue;
        }
        let _ = writeln!(out, "{} {} |", begin_of_row(name, options), marks.join(" | "));
    }
    out
}

/// Returns the names and options of all programs, in the order of the table.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let ours = plain::ALL.iter().map(|p| (p.name, p.options));
    let by_address = cm::ALL.iter().map(|p| (p.name, p.options));
    let by_tcp = fabric::ALL.iter().map(|p| (p.name, p.options));
    let ranks = mpich::ALL.iter().map(|p| (p.name, p.options));
    let all = ours.chain(by_address).chain(ucx::names()).chain(by_tcp);
    all.chain([mooncake::PROGRAM]).chain(ranks).chain([iser::PROGRAM])
}

fn begin_of_row(name: &str, options: &str) -> String {
    format!("| {name} | `{}` |", options.replace('|', "\\|"))
}

/// Returns the GID index of the VM's IPv4 address on its device.
fn gid_in_vm(vm: &Vm) -> Result<u32> {
    let [a, b, c, d] = vm.v4().octets();
    let gid = format!("ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    let look = format!(
        "cd /sys/class/infiniband/*/ports/1/gids && grep -l {gid} [0-9]* 2> /dev/null | head -n 1"
    );
    let out = vm.run(Cmd::sh(look))?;
    let text = out.text();
    text.trim().parse().map_err(|_| failed(format!("the VM's device has no {gid}: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_page_of_what_was_tried_has_a_row_for_each_program() {
        let page =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/en/reference/programs-tried.md");
        let page = fs::read_to_string(page).unwrap();
        let missing = |row: &String| !page.lines().any(|line| line.starts_with(&**row));
        let missing: Vec<_> =
            all().map(|(name, options)| begin_of_row(name, options)).filter(missing).collect();
        assert!(missing.is_empty(), "run `cargo xtask programs`: {missing:#?}");
    }
}

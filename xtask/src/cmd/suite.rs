//! `cargo xtask suite`: rdma-core's own tests, with our devices and with a kernel's, and the table of them
//! in `docs/programs-tried.md`.
//!
//! The tests are not part of this project. They are in a checkout of rdma-core, and use pyverbs, which is
//! installed; both must be of one version.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use xtask::vm::{Cmd, Error, Kernel, Net, Result, Spec, Vm};

use super::interop::build;
use super::programs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkout of rdma-core, of the version of python3-pyverbs: git clone --branch v44.0
    #[arg(value_name = "RDMA-CORE")]
    source: PathBuf,
    /// The kernel to compare with
    #[arg(long, default_value = "7.2")]
    kernel: String,
}

/// Modules for devices and software that neither side has.
const FOREIGN: [&str; 3] = ["test_mlx5", "test_efa", "test_cuda"];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let tests = args.source.join("tests");
    let tests =
        tests.canonicalize().map_err(|e| Error::Failed(format!("{}: {e}", tests.display())))?;
    let rxe = build()?.join("rxe");
    let ours = parse(&ours(&rxe, &tests)?);
    let theirs = parse(&theirs(&args.kernel, &tests)?);
    if ours.is_empty() || theirs.is_empty() {
        return Err(Error::Failed(
            "no test was run: is pyverbs installed (python3-pyverbs)?".into(),
        ));
    }
    let table = table(&ours, &theirs, &args.kernel);
    println!("{table}");
    programs::write("suite", &table)?;
    Ok(ExitCode::SUCCESS)
}

/// The command that runs them on a device. Port 1, GID 1: the IPv4 address.
fn command(tests: &Path, device: &str) -> String {
    format!(
        "cd {}; timeout 900 /usr/bin/python3 -B run_tests.py -v --dev {device} --port 1 --gid 1 2>&1",
        tests.display()
    )
}

fn ours(rxe: &Path, tests: &Path) -> Result<String> {
    let script = format!(
        "mount -t tmpfs none /run; export XDG_RUNTIME_DIR=/run; ip link set lo up
         ip link add eth0 type veth peer name far; ip address add 10.9.0.1/24 dev eth0
         ip link set eth0 up; ip link set far up; sleep 2
         {} run --device eth0 --explain off -- sh -c '{}'",
        rxe.display(),
        command(tests, "rxe_eth0")
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "--mount", "sh", "-c", &script]);
    let out = unshare.output().map_err(|e| Error::Missing(format!("unshare: {e}")))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn theirs(kernel: &str, tests: &Path) -> Result<String> {
    let net = Net::tap(1500)?;
    let vm = Vm::boot(&net, &Kernel::find(kernel)?, &Spec::default())?;
    let out = vm.run(Cmd::sh(command(tests, "rxe0")))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    Skipped(String),
}

/// Tests by module and name.
type Ends = BTreeMap<(String, String), End>;

/// What `unittest -v` prints: `NAME (tests.MODULE.CLASS.NAME)`, with a description on the next line if
/// there is one, then ` ... ` and the result. Programs print in between.
fn parse(said: &str) -> Ends {
    let mut ends = Ends::new();
    let mut current = None;
    for line in said.lines() {
        if let Some(place) =
            line.split_once(" (tests.").and_then(|(_, rest)| rest.split(')').next())
        {
            let mut parts = place.split('.');
            let module = parts.next().unwrap_or_default().to_owned();
            current = parts.next_back().map(|name| (module, name.to_owned()));
        }
        let end = match line.split_once("skipped ") {
            Some((_, why)) => Some(End::Skipped(why.trim_matches(['\'', '"']).to_owned())),
            None if line.ends_with("ok") => Some(End::Passed),
            None if line.ends_with("FAIL") || line.ends_with("ERROR") => Some(End::Failed),
            None => None,
        };
        if let Some(end) = end
            && let Some(test) = current.take()
        {
            ends.insert(test, end);
        }
        if line.starts_with("=====") {
            break;
        }
    }
    ends.retain(|(module, _), _| !FOREIGN.iter().any(|foreign| module.starts_with(foreign)));
    ends
}

fn table(ours: &Ends, theirs: &Ends, kernel: &str) -> String {
    let passed = |ends: &Ends, module: Option<&str>| {
        let of = |test: &&String| module.is_none_or(|module| module == **test);
        let passed = ends.iter().filter(|((m, _), end)| of(&m) && **end == End::Passed);
        passed.count()
    };
    let mut out = format!(
        "| module | tests | pass with ours | pass with kernel {kernel} |\n| --- | --- | --- | --- |\n"
    );
    let mut modules: Vec<&str> = ours.keys().map(|(module, _)| module.as_str()).collect();
    modules.dedup();
    for module in modules {
        let count = ours.keys().filter(|(m, _)| m == module).count();
        let (a, b) = (passed(ours, Some(module)), passed(theirs, Some(module)));
        let _ = writeln!(out, "| {module} | {count} | {a} | {b} |");
    }
    let (a, b) = (passed(ours, None), passed(theirs, None));
    let _ = writeln!(out, "| all | {} | {a} | {b} |\n", ours.len());
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for ((_, name), end) in ours {
        match end {
            End::Passed => {}
            End::Failed => reasons.entry("fails".into()).or_default().push(name),
            End::Skipped(why) => {
                reasons.entry(format!("skipped: {why}")).or_default().push(name);
            }
        }
    }
    out += "| with ours | tests |\n| --- | --- |\n";
    for (why, names) in reasons {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(out, "| {why} | {} |", names.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "test_a (tests.test_addr.AHTest.test_a)
Test creating an AH ... ok
test_b (tests.test_addr.AHTest.test_b) ... something is printed
ok
test_c (tests.test_qp.QPTest.test_c) ... skipped 'Create QP type 8 is not supported'
test_d (tests.test_qp.QPTest.test_d)
Test ... FAIL
test_e (tests.test_mlx5_dr.Test.test_e) ... skipped 'no card'
======================================================================
FAIL: test_d (tests.test_qp.QPTest.test_d)
";

    #[test]
    fn each_test_has_its_end_and_those_of_cards_are_left_out() {
        let ends = parse(SAID);
        let of = |module: &str, name: &str| ends[&(module.into(), name.into())].clone();
        assert_eq!(ends.len(), 4);
        assert_eq!(of("test_addr", "test_a"), End::Passed);
        assert_eq!(of("test_addr", "test_b"), End::Passed);
        assert_eq!(
            of("test_qp", "test_c"),
            End::Skipped("Create QP type 8 is not supported".into())
        );
        assert_eq!(of("test_qp", "test_d"), End::Failed);
        let table = table(&ends, &Ends::new(), "7.2");
        assert!(
            table.contains(
                "| test_addr | 2 | 2 | 0 |\n| test_qp | 2 | 0 | 0 |\n| all | 4 | 2 | 0 |"
            )
        );
        assert!(table.contains("| fails | `test_d` |"), "{table}");
    }
}

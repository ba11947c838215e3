//! `cargo xtask suite`: runs third-party test suites with our devices and with a kernel's, and
//! writes their tables in `docs/en/reference/programs-tried.md`.
//!
//! The tests are not part of this project. The caller provides checkouts of them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::suite::{self, Outcomes, perftest, rdma_core, rdma_unit_test};
use rxe_harness::vm::{Cmd, Error, Kernel, Net, Result, Spec, Vm};

use super::interop::build;
use super::programs;

/// The suite to run.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: Suite,
    /// The kernel to compare with, or `none`
    #[arg(long, default_value = "7.2", global = true)]
    kernel: String,
}

#[derive(clap::Subcommand)]
enum Suite {
    /// perftest's programs, which are compiled in the checkout
    Perftest {
        /// A checkout of any version
        #[arg(value_name = "CHECKOUT")]
        source: PathBuf,
    },
    /// rdma-core's tests in Python
    RdmaCore {
        /// A checkout of the version of python3-pyverbs (git clone --branch v44.0), or of any
        /// version that is built in its directory `build`, with its own pyverbs
        #[arg(value_name = "CHECKOUT")]
        source: PathBuf,
    },
    /// Google's rdma-unit-test, which is compiled in the checkout
    RdmaUnitTest {
        /// A checkout of the last commit that compiles with Debian 12's Abseil: b81cb4c
        #[arg(value_name = "CHECKOUT")]
        source: PathBuf,
    },
}

struct Plan {
    name: &'static str,
    /// The MTU of the interfaces at both ends.
    mtu: u32,
    /// A shell script that runs the suite on the device `$device`.
    /// GID 1 of port 1 is its IPv4 address.
    script: String,
    parse: fn(&str) -> Outcomes,
}

impl Suite {
    fn plan(&self) -> Result<Plan> {
        Ok(match self {
            Self::Perftest { source } => Plan {
                name: "perftest",
                mtu: 1500,
                script: perftest::command(source)?,
                parse: perftest::parse,
            },
            Self::RdmaCore { source } => Plan {
                name: "rdma-core",
                mtu: 1500,
                script: rdma_core::command(source)?,
                parse: rdma_core::parse,
            },
            Self::RdmaUnitTest { source } => Plan {
                name: "rdma-unit-test",
                // The suite connects with a path MTU of 4096.
                mtu: 4200,
                script: rdma_unit_test::command(source)?,
                parse: rdma_unit_test::parse,
            },
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let plan = args.suite.plan()?;
    let name = plan.name;
    let kernel = Some(&*args.kernel).filter(|kernel| *kernel != "none");
    let (ours, theirs) = thread::scope(|scope| {
        let theirs = kernel.map(|kernel| scope.spawn(|| theirs(&plan, kernel)));
        (ours(&plan), theirs.map(|theirs| theirs.join().expect("it does not panic")))
    });
    let none = || Error::Failed(format!("{name}: no test was run: it may need a package"));
    let outcomes = |of: &str, said: String| {
        let outcomes = (plan.parse)(&kept(&format!("{name}-{of}"), said)?);
        if outcomes.is_empty() { Err(none()) } else { Ok(outcomes) }
    };
    let ours = outcomes("ours", ours?)?;
    let theirs = match (kernel, theirs) {
        (Some(kernel), Some(said)) => Some((kernel, outcomes(&format!("kernel-{kernel}"), said?)?)),
        _ => None,
    };
    let table = suite::table(&ours, theirs.as_ref().map(|(kernel, outcomes)| (*kernel, outcomes)));
    println!("{table}");
    let option = if kernel.is_none() { " --kernel none" } else { "" };
    pages::write(&checkout::root()?, programs::PAGE, &format!("suite {name}{option}"), &table)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the output of a suite to `target/suite`, for the reasons of failures.
fn kept(name: &str, said: String) -> Result<String> {
    let dir = checkout::root()?.join("target/suite");
    let path = dir.join(format!("{name}.log"));
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(&path, &said))
        .map_err(|e| Error::io(&path, &e))?;
    println!("{}", path.display());
    Ok(said)
}

/// Runs the script `$1` in namespaces.
/// Root may lock any amount of memory, as in the VM, but root of a user namespace only as much as
/// the user who created it. So root creates no user namespace.
const ENTER: &str = r#"
    users='--user --map-root-user'
    [ "$(id -u)" != 0 ] || users=
    exec unshare $users --net --mount sh -c "$1""#;

/// Runs a suite with one of our devices. Returns its output.
fn ours(plan: &Plan) -> Result<String> {
    let rxe = build()?.join("rxe");
    let Plan { mtu, script, .. } = plan;
    let script = format!(
        "mount -t tmpfs none /run; export XDG_RUNTIME_DIR=/run; ip link set lo up
         ip link add eth0 mtu {mtu} type veth peer name far mtu {mtu}; ip address add 10.9.0.1/24 dev eth0
         ip link set eth0 up; ip link set far up; sleep 2
         export device=rxe_eth0
         exec {} run --device eth0 --explain off -- sh -c '{script}'",
        rxe.display(),
    );
    let out = Command::new("sh").args(["-c", ENTER, "sh", &script]).output();
    let out = out.map_err(|e| Error::Missing(format!("sh: {e}")))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a suite with a kernel's device. Returns its output.
fn theirs(plan: &Plan, kernel: &str) -> Result<String> {
    let net = Net::tap(plan.mtu)?;
    let vm = Vm::boot(&net, &Kernel::find(kernel)?, &Spec::default())?;
    let out = vm.run(Cmd::sh(format!("export device=rxe0\n{}", plan.script)))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

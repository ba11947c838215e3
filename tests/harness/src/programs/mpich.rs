//! MPICH in the table of [`programs`](crate::programs): four ranks, all on our side, or two of them
//! on the kernel's. The side named first has rank 0.

use super::launcher::Launcher;
use super::world::{Row, Sides, World, failed};
use crate::paths;
use crate::skip::unless_missing;
use crate::skipped;
use crate::vm::{Error, HOST_V4, Result};
use crate::wheel;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package, the variables that choose a transport (shown in the table), and the ranks' program.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) options: &'static str,
    /// The output of rank 0 on success.
    says: &'static str,
    /// Whether two of the ranks may use a kernel's device. They do so only when all rows run,
    /// because an emulated VM needs up to a minute.
    with_kernel: bool,
}

const fn messages(options: &'static str) -> Program {
    Program { name: wheel::MPICH, options, says: "all as MPI says", with_kernel: true }
}

pub(super) const ALL: &[Program] = &[
    // A rank on a kernel's device sometimes does not end: it repeats its last request to a rank
    // that has left, and kernel `rdma_rxe` takes the retry count 7, UCX's default, for "without
    // end".
    Program {
        with_kernel: false,
        ..messages("MPICH_CH4_NETMOD=ucx UCX_TLS=rc_verbs,ud_verbs:aux,self tests/c/ranks.c")
    },
    messages("MPICH_CH4_NETMOD=ucx UCX_TLS=ud_verbs,self tests/c/ranks.c"),
    messages("MPICH_CH4_NETMOD=ofi FI_PROVIDER=verbs;ofi_rxm tests/c/ranks.c"),
    Program {
        name: wheel::MPI4PY,
        options: "MPICH_CH4_NETMOD=ofi FI_PROVIDER=verbs;ofi_rxm tests/python/mpi4py_objects.py",
        says: "all objects are the same",
        with_kernel: true,
    },
];

/// The variables of all rows.
const VARIABLES: &[&str] = &[
    // Each rank pretends to be on a host of its own: ranks on one host would use MPICH's shared
    // memory.
    "MPIR_CVAR_NOLOCAL=1",
    // A rank that receives nothing from another for this time aborts, and one in an emulated VM on
    // a busy machine may be silent for many seconds. The last rank waits this long for ranks that
    // have ended.
    "UCX_UD_TIMEOUT=30s",
    // As in the rows of `ucx_perftest` and `fi_pingpong`, for a kernel's device.
    "UCX_UD_VERBS_ETH_DGID_CHECK=n",
    "FI_UNIVERSE_SIZE=8",
];

/// The number of hosts that the ranks see.
const HOSTS: u8 = 4;

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) -> Result<()> {
    if world.options.is_alone() {
        let why = "an interface has one XDP program, and so one process, and these are two ranks";
        skipped(&format!("{} with kernel {}", wheel::MPICH, world.kernel), why);
        return Ok(());
    }
    let Some(installed) = unless_missing(wheel::MPICH, Installed::new())? else { return Ok(()) };
    for program in ALL {
        let what = format!("{} {}", program.name, program.options);
        if program.with_kernel && world.leaves_out(&what) {
            continue;
        }
        for sides in Sides::ALL {
            if sides == Sides::OursOurs || program.with_kernel {
                world.row(what.clone(), sides, || installed.play(world, program, sides), rows);
            }
        }
    }
    Ok(())
}

/// The unpacked packages, and the compiled program.
struct Installed {
    mpich: PathBuf,
    mpi4py: PathBuf,
    python: PathBuf,
    compiled: Launcher,
}

impl Installed {
    fn new() -> Result<Self> {
        let (mpich, mpi4py) = (wheel::mpich()?, wheel::fetch(wheel::MPI4PY)?);
        let (python, compiled) = (wheel::python()?, Launcher::new()?);
        // The compiler is a shell script that does not quote its arguments.
        let source = paths::checkout().join("tests/c/ranks.c");
        let mut compile = Command::new(mpich.join("bin/mpicc"));
        compile.args(["-O1", "-o"]).arg(compiled.path("ranks")).arg(&source);
        let out = compile.output().map_err(|e| Error::Missing(format!("mpicc: {e}")))?;
        if !out.status.success() {
            return Err(Error::Missing(format!(
                "{}: {}",
                source.display(),
                String::from_utf8_lossy(&out.stderr)
            )));
        }
        Ok(Self { mpich, mpi4py, python, compiled })
    }

    fn play(&self, world: &World<'_>, program: &Program, sides: Sides) -> Result<()> {
        let there = world.vm.v4();
        let hosts = match sides {
            Sides::OursOurs => format!("{HOST_V4}:4"),
            Sides::OursKernel => format!("{HOST_V4}:2,{there}:2"),
            Sides::KernelOurs => format!("{there}:2,{HOST_V4}:2"),
        };
        let (chosen, source) = program.options.rsplit_once(' ').unwrap_or_default();
        let command = self.command(source);
        let launcher = Launcher::new()?;
        let run = world.rxe_run().join(" ");
        let start = format!("[ $(hostname) = here ] || exec {command}\nexec {run} {command}");
        let start = launcher.script("start", &start)?;
        let mpi = format!("MPI4PY_LIBMPI={}/lib/libmpi.so.12", self.mpich.display());
        let modules = format!("PYTHONPATH={}", self.mpi4py.display());
        let variables = [&[&*mpi, &*modules], VARIABLES].concat();
        let variables: Vec<_> = chosen.split(' ').chain(variables).collect();
        let launch = format!(
            "{}/bin/mpiexec -launcher ssh -launcher-exec {} -hosts {hosts} -n 4 {}",
            self.mpich.display(),
            launcher.path("agent").display(),
            start.display(),
        );
        let (good, said) = launcher.run(world.net, world.vm, &variables, &launch)?;
        if good && said.contains("4 ranks on ") && said.contains(program.says) {
            return Ok(());
        }
        Err(failed(said.replace('\n', " | ")))
    }

    /// Returns the command of a rank.
    fn command(&self, source: &str) -> String {
        if Path::new(source).extension().is_some_and(|ext| ext == "c") {
            return format!("{} {HOSTS}", self.compiled.path("ranks").display());
        }
        let script = paths::checkout().join(source);
        format!("{} {}", self.python.display(), script.display())
    }
}

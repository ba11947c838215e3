//! A real kernel's `rdma_rxe` as a peer: a VM with a stock Debian kernel, emulated by QEMU.
//!
//! [`Kernel::find`] provides the kernel, [`Net`] the link in a namespace of the run's own,
//! [`Vm::boot`] the machine with `rxe0` on the link. Commands run in the VM over a separate channel
//! ([`Vm::run`], [`Vm::spawn`]), in the host's root file system, read-only: every program of the
//! host runs there. Everything ends with the process that started it, however that process ends.
//! `docs/en/project/kernel-vm.md` lists the requirements.
//!
//! ```no_run
//! use rxe_harness::vm::{Kernel, Net, Spec, Vm};
//! # fn main() -> rxe_harness::vm::Result<()> {
//! let net = Net::tap(1500)?;
//! let vm = Vm::boot(&net, &Kernel::find("6.1")?, &Spec::default())?;
//! print!("{}", vm.run(["ibv_devinfo"])?.ok()?);
//! let server = vm.spawn(["ibv_rc_pingpong", "-g", "1"])?;
//! let client = net.command("ibv_rc_pingpong").arg(vm.v4().to_string()).status();
//! # let _ = (server.wait()?, client);
//! # Ok(()) }
//! ```

mod apt;
mod cache;
mod channel;
#[allow(dead_code, reason = "shared with the agent's half")]
mod frame;
mod initrd;
mod kernel;
mod lossy;
mod net;
mod qemu;

pub(crate) use apt::{download, download_kernel, mirror};
pub(crate) use cache::{cache, cached};
pub use channel::{Cmd, Output, Pipe, Proc, Stdin};
pub(crate) use initrd::Cpio;
pub use kernel::{KNOWN, Kernel};
pub use lossy::{Lossy, Passed};
pub use net::{Capture, Frames, HOST_V4, HOST_V6, LINK, Net, bpf_is_permitted, spawn};
pub use qemu::{Spec, Vm};

use std::path::Path;
use std::{fmt, io};

/// The result type of the harness.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason of a failure, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// This machine lacks something (a program, a permission, a kernel); a test may be skipped.
    Missing(String),
    /// An unexpected failure.
    Failed(String),
}

impl Error {
    /// Creates an error about a file or directory.
    pub fn io(path: &Path, e: &io::Error) -> Self {
        Self::Failed(format!("{}: {e}", path.display()))
    }

    fn program(name: &str, e: &io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound => Self::Missing(format!("{name} is not installed")),
            _ => Self::Failed(format!("{name}: {e}")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Missing(why) | Self::Failed(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for Error {}

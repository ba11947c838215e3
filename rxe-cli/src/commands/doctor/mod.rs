//! `rxe doctor`: checks what on this host keeps programs from running.
//!
//! Each check performs the operations of a device on this host, and undoes them. Where that would
//! disturb other processes (`xdp` loads a program into an interface), the check says that it did
//! not try.

mod devices;
mod finding;
mod firewall;
mod host;
mod kernel;
mod preload;

use rxe_verbs::device::DeviceInfo;

use crate::common::{Error, print, print_json};
use finding::{Finding, Status};

/// Check what on this host is in the way of programs, and say what to do
///
/// Each line is "ok", a "note" (programs run, but slower or not everywhere) or a "problem" (programs
/// do not run). Below notes and problems stands a remedy. The exit code is 1 if there is a problem.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this device (or interface); without it, those that programs are offered
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let (offered, mut findings) = devices::offered(self.device.as_deref());
        findings.extend(check(&offered));
        if self.json {
            print_json(&findings)?;
        } else {
            print(&finding::text(&findings))?;
        }
        let problems = findings.iter().filter(|f| f.status == Status::Problem).count();
        match problems {
            0 => Ok(()),
            1 => Err(Error::new("1 problem", "programs do not run here until it is solved")),
            n => Err(Error::new(
                format!("{n} problems"),
                "programs do not run here until they are solved",
            )),
        }
    }
}

fn check(offered: &[DeviceInfo]) -> Vec<Finding> {
    let mut findings = devices::open(offered);
    let opened = !findings.is_empty() && findings.iter().all(|f| f.status != Status::Problem);
    findings.push(host::locked_memory());
    findings.extend(kernel::check());
    findings.extend(firewall::check(offered));
    findings.extend(host::buffers());
    findings.extend(host::offloads(offered));
    findings.extend(host::shared_memory());
    findings.push(host::realtime());
    findings.push(host::sandbox(opened));
    findings.extend(preload::check());
    findings.extend(host::backends(offered));
    findings
}

//! The capture interfaces for Wireshark and tshark: extcap(4).
//!
//! Wireshark runs each program in its extcap directory with options that ask for its interfaces,
//! then for the link types and settings of each interface, and finally for a capture into a named
//! pipe. Wireshark shows the program's standard error as an error.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;

use rxe_verbs::observe::{self, Subject};

use super::sink::Wanted;
use super::{Of, processes};
use crate::common::running::comm;
use crate::common::{Error, print};

/// The name by which Wireshark runs this program.
pub(crate) const NAME: &str = "rxe-extcap";

/// Capture the packets of running programs for Wireshark, which runs this itself
#[derive(clap::Parser)]
#[command(name = NAME, version = env!("RXE_VERSION"))]
pub(crate) struct Args {
    /// List the interfaces
    #[arg(long = "extcap-interfaces")]
    interfaces: bool,
    /// List the link types of the interface
    #[arg(long = "extcap-dlts", requires = "interface")]
    link_types: bool,
    /// List the settings of the interface, of which there are none
    #[arg(long = "extcap-config", requires = "interface")]
    config: bool,
    /// Capture
    #[arg(long, requires = "interface", requires = "fifo")]
    capture: bool,
    /// The interface
    #[arg(long = "extcap-interface", value_name = "INTERFACE")]
    interface: Option<Interface>,
    /// The named pipe that the packets go into
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    fifo: Option<PathBuf>,
    /// Not supported. Without --capture: print what is wrong with the filter
    #[arg(long = "extcap-capture-filter", value_name = "FILTER")]
    filter: Option<String>,
    /// The version of Wireshark, which does not matter
    #[arg(long = "extcap-version", value_name = "VERSION", num_args = 0..=1)]
    wireshark: Option<String>,
}

/// An extcap interface: `rxe` for all processes of this user, `rxe-PID` for one.
#[derive(Clone, Copy)]
struct Interface(Of);

impl FromStr for Interface {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pid = text.strip_prefix("rxe-").and_then(|pid| pid.parse().ok());
        match (text, pid) {
            ("rxe", _) => Ok(Self(Of::All)),
            (_, Some(pid)) => Ok(Self(Of::Process(pid))),
            _ => Err("rxe, or rxe- and a process's number"),
        }
    }
}

const NO_FILTER: &str = "rxe has no capture filters: use a display filter";

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.interfaces {
            return print(&interfaces(&running()));
        }
        let Some(Interface(of)) = self.interface else {
            return Err(Error::new(
                "Wireshark runs this itself",
                "put a link to it into the directory that `tshark -G folders` names as Extcap path",
            ));
        };
        match (self.capture, self.fifo, self.filter) {
            (true, _, Some(_)) => Err(Error::new("cannot capture", NO_FILTER)),
            (true, Some(fifo), None) => capture(of, fifo),
            (_, _, Some(_)) => print(&format!("{NO_FILTER}\n")),
            _ if self.link_types => print("dlt {number=1}{name=EN10MB}{display=Ethernet}\n"),
            _ => Ok(()),
        }
    }
}

/// Returns the processes that have devices open, with the names of their programs.
fn running() -> BTreeMap<u32, String> {
    let reports = observe::ask(Subject::Summary).into_iter();
    let answered = reports.filter(|report| report.records.is_ok());
    answered.filter_map(|report| report.pid).map(|pid| (pid, comm(pid))).collect()
}

/// Formats the list of interfaces for Wireshark.
fn interfaces(running: &BTreeMap<u32, String>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!("extcap {{version={version}}}{{display=rxe}}\n");
    out += "interface {value=rxe}{display=RDMA packets of all your programs}\n";
    for (pid, comm) in running {
        // A brace would end the value.
        let comm = comm.replace(['{', '}'], "?");
        let _ = writeln!(
            out,
            "interface {{value=rxe-{pid}}}{{display=RDMA packets of {comm}, process {pid}}}"
        );
    }
    out
}

/// Captures until Wireshark sends a signal or closes the pipe.
fn capture(of: Of, fifo: PathBuf) -> Result<(), Error> {
    // If Wireshark has removed the pipe, opening the path would create a file.
    if !fs::metadata(&fifo).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(Error::new(
            format_args!("{} is no named pipe", fifo.display()),
            "Wireshark makes it before it runs this",
        ));
    }
    let (lines, ring, ladder, count, notices) = (false, None, false, None, false);
    let wanted = Wanted { lines, file: Some(fifo), ring, ladder, count, notices };
    super::capture(wanted, None, |sink, until| processes::capture(of, sink, until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_interface_for_all_and_one_for_each_process() {
        let running = BTreeMap::from([(7, "a}b".to_owned()), (71, "ib_write_bw".to_owned())]);
        let listed = interfaces(&running);
        let lines: Vec<_> = listed.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "interface {value=rxe}{display=RDMA packets of all your programs}",
                "interface {value=rxe-7}{display=RDMA packets of a?b, process 7}",
                "interface {value=rxe-71}{display=RDMA packets of ib_write_bw, process 71}",
            ]
        );
        assert!(matches!("rxe".parse(), Ok(Interface(Of::All))));
        assert!(matches!("rxe-71".parse(), Ok(Interface(Of::Process(71)))));
        for wrong in ["", "eth0", "rxe-", "rxe-x", "rxe--1"] {
            assert!(wrong.parse::<Interface>().is_err(), "{wrong}");
        }
    }
}

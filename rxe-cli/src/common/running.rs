//! The processes that have devices open, and their reports.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use rxe_net::{process_is_stopped, process_name};
use rxe_verbs::device::{DeviceError, DeviceInfo};
use rxe_verbs::observe::{self, DeviceReport, Record, Silence, Subject};
use serde_json::{Map, Value};

use super::{Align, Error, WIDTH, print_error};

/// Which processes and devices to show.
#[derive(clap::Args, Default)]
pub(crate) struct Which {
    /// Only the process with this number
    #[arg(long = "of", value_name = "PID")]
    pid: Option<u32>,
    /// Only this device (or interface); may be given several times
    #[arg(long = "device", short = 'd', value_name = "DEV", value_delimiter = ',')]
    devices: Vec<String>,
}

/// An open device of a running process.
pub(crate) struct Running {
    /// The process ID; `None` if the process has none here, as from inside a container.
    pub(crate) pid: Option<u32>,
    /// The name of the process's program.
    pub(crate) comm: String,
    uid: u32,
    /// The inode number of the process's network namespace, as in `lsns`. `None` if access is
    /// denied.
    netns: Option<u64>,
    report: DeviceReport,
}

impl Which {
    /// Asks the running processes. Prints to standard error which of them do not answer, or that
    /// there are none.
    pub(crate) fn ask(&self, subject: Subject) -> Result<Vec<Running>, Error> {
        let (found, notices) = self.look(subject)?;
        notices.iter().for_each(print_error);
        Ok(found)
    }

    /// Asks the running processes. The notices say which of them do not answer, or that there are
    /// none.
    pub(crate) fn look(&self, subject: Subject) -> Result<(Vec<Running>, Vec<String>), Error> {
        let mut found = Vec::new();
        let mut notices = Vec::new();
        let mut open = BTreeSet::new();
        let wanted: Vec<_> = self.devices.iter().map(|name| Named::new(name)).collect();
        for report in observe::ask(subject) {
            if self.pid.is_some() && report.pid != self.pid {
                continue;
            }
            let comm = report.pid.map(comm).unwrap_or_default();
            match report.records {
                Err(silence) => notices.push(no_answer(report.pid, silence)),
                Ok(_) => {
                    let (pid, uid) = (report.pid, report.uid);
                    let netns = pid.and_then(network_of);
                    let device = Running { pid, comm, uid, netns, report };
                    open.insert(device.device().to_owned());
                    if wanted.is_empty() || wanted.iter().any(|name| name.is_of(&device)) {
                        found.push(device);
                    }
                }
            }
        }
        found.sort_by(|a, b| (a.pid, a.device()).cmp(&(b.pid, b.device())));
        if !notices.is_empty() {
            return Ok((found, notices));
        }
        // Devices of other network namespaces are known only while they are open.
        let is_open = |name: &Named<'_>| found.iter().any(|device| name.is_of(device));
        if let Some(name) = wanted.into_iter().find(|name| name.info.is_err() && !is_open(name)) {
            return Err(name.unknown(open));
        }
        if found.is_empty() {
            let devices = match &self.devices[..] {
                [] => "a device".to_owned(),
                names => names.join(" or "),
            };
            let Some(pid) = self.pid else {
                notices.push(format!("no running process has {devices} open"));
                return Ok((found, notices));
            };
            let what = format!("process {pid} does not have {devices} open");
            return Err(Error::new(what, "`rxe stat` without options lists all that have"));
        }
        Ok((found, notices))
    }
}

/// A device that the user named.
struct Named<'a> {
    name: &'a str,
    /// The device of this name on this host.
    info: Result<DeviceInfo, DeviceError>,
}

impl<'a> Named<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, info: DeviceInfo::find(name) }
    }

    /// Returns whether `device` or its interface has this name.
    fn is_of(&self, device: &Running) -> bool {
        let netdev = self.info.as_ref().map_or(self.name, |info| &info.interface().name);
        [device.device(), device.netdev()].contains(&self.name) || device.netdev() == netdev
    }

    /// Returns the error for a name without a device. `open` has the names of open devices.
    fn unknown(self, mut open: BTreeSet<String>) -> Error {
        match self.info {
            Err(DeviceError::NoSuch { name, mut devices }) => {
                open.retain(|name| !devices.contains(name));
                devices.extend(open);
                DeviceError::NoSuch { name, devices }.into()
            }
            Err(e) => e.into(),
            Ok(_) => Error::new(format!("no device {:?}", self.name), "see `rxe devices`"),
        }
    }
}

impl Running {
    /// Returns the device's name.
    pub(crate) fn device(&self) -> &str {
        self.report.device("name").unwrap_or_default()
    }

    /// Returns the name of the device's interface.
    pub(crate) fn netdev(&self) -> &str {
        self.report.device("netdev").unwrap_or_default()
    }

    /// Returns the name of the device's backend.
    pub(crate) fn backend(&self) -> &str {
        self.report.device("backend").unwrap_or_default()
    }

    /// Returns the process ID as text.
    pub(crate) fn pid_text(&self) -> String {
        self.pid.map_or("?".into(), |pid| pid.to_string())
    }

    /// Returns the process's network namespace, if this process is in another.
    pub(crate) fn other_network(&self) -> Option<u64> {
        self.netns.filter(|netns| network_of(std::process::id()).is_some_and(|own| own != *netns))
    }

    /// Returns the records that the process reported.
    pub(crate) fn records(&self) -> &[Record] {
        self.report.objects()
    }

    /// Returns the first record of this kind.
    pub(crate) fn record(&self, kind: &str) -> Option<&Record> {
        self.report.record(kind)
    }

    /// Returns the number of objects, which may exceed the number of records.
    pub(crate) fn total(&self) -> u64 {
        self.report.total
    }

    /// Returns the records as JSON, each with the device and the process.
    pub(crate) fn objects_json(&self) -> Vec<Value> {
        let object = |record: &Record| {
            let mut map = self.json();
            map.extend(fields_json(record));
            map.into()
        };
        self.records().iter().map(object).collect()
    }

    /// Returns the device and its process as JSON.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("device".into(), self.device().into());
        map.insert("netdev".into(), self.netdev().into());
        map.insert("backend".into(), self.backend().into());
        map.insert("pid".into(), self.pid.into());
        map.insert("comm".into(), self.comm.as_str().into());
        map.insert("uid".into(), self.uid.into());
        map.insert("netns".into(), self.netns.into());
        map
    }
}

/// Returns the fields of a record as JSON. Decimal values become numbers.
pub(crate) fn fields_json(record: &Record) -> Map<String, Value> {
    let value = |text: &str| text.parse::<u64>().map_or_else(|_| text.into(), Value::from);
    record.fields().map(|(key, text)| (key.to_owned(), value(text))).collect()
}

/// A column: the name of a record's field, which is also the heading, and the alignment.
pub(crate) type Column = (&'static str, Align);

/// Returns a table of all records. The device is the first column, the process the last two. If a
/// process is in another network namespace than this one, every row shows its namespace.
pub(crate) fn table(running: &[Running], columns: &[Column]) -> String {
    let networks = running.iter().any(|device| device.other_network().is_some());
    let heads = ["dev"].into_iter().chain(columns.iter().map(|(name, _)| *name));
    let heads = heads.chain(networks.then_some("netns")).chain(["pid", "comm"]);
    let mut rows: Vec<Vec<String>> = vec![heads.map(str::to_owned).collect()];
    for device in running {
        for record in device.records() {
            let field = |(name, _): &Column| record.get(name).unwrap_or("-").to_owned();
            let mut row = vec![device.device().to_owned()];
            row.extend(columns.iter().map(field));
            row.extend(
                networks.then(|| device.netns.map_or("?".into(), |netns| netns.to_string())),
            );
            row.extend([device.pid_text(), device.comm.clone()]);
            rows.push(row);
        }
    }
    let aligns: Vec<_> = [Align::Left]
        .into_iter()
        .chain(columns.iter().map(|(_, align)| *align))
        .chain(networks.then_some(Align::Right))
        .chain([Align::Right, Align::Left])
        .collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..aligns.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells =
            row.iter().zip(&widths).zip(&aligns).map(|((cell, width), align)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
        // Only the last column, the program's name, may be too long.
        let line: String = cells.collect::<Vec<_>>().join("  ").chars().take(WIDTH).collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Returns the inode number of a process's network namespace.
fn network_of(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// Returns the name of a process's program; empty if the process is not visible here.
pub(crate) fn comm(pid: u32) -> String {
    process_name(pid).unwrap_or_default()
}

/// Returns a process's number and name as text.
pub(crate) fn named(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid} ({})", comm(pid)),
        None => "a process in another container".into(),
    }
}

/// Returns a text that says why a process did not answer, and what to do.
pub(crate) fn no_answer(pid: Option<u32>, silence: Silence) -> String {
    let who = named(pid);
    match (silence, pid) {
        (Silence::Late, Some(pid)) if process_is_stopped(pid) == Some(true) => {
            format!(
                "{who} does not answer, because it is stopped: continue it with kill -CONT {pid}"
            )
        }
        (Silence::Late, _) => format!("{who} does not answer in time: try again"),
        (Silence::Busy, _) => format!("{who} is too busy to answer: try again"),
        (Silence::HungUp, _) => format!("{who} does not tell: start it with this version of rxe"),
        (Silence::Nonsense, _) => format!("{who} gives an answer that is none: start it again"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Duration;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_stopped_process_is_told_from_a_slow_one() {
        // The kernel cuts the name in the middle of its last character.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("a程序的名字长");
        symlink("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let slow = no_answer(Some(pid), Silence::Late);
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let stopped = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            process_is_stopped(pid) == Some(true)
        });
        let said = no_answer(Some(pid), Silence::Late);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(slow.ends_with(" does not answer in time: try again"), "{slow}");
        let because = "does not answer, because it is stopped: continue it with kill -CONT";
        let name = "a程序的名\u{fffd}";
        assert_eq!((stopped, said), (true, format!("process {pid} ({name}) {because} {pid}")));
    }
}

//! The processes that have devices open, and what they say of them.

use std::fs;

use rxe_verbs::report::{self, DeviceReport, Record, Silence, Subject};
use serde_json::{Map, Value};

use super::{Align, Error, WIDTH, print_error};

/// Which processes and devices to show.
#[derive(clap::Args, Default)]
pub(crate) struct Which {
    /// Only the process with this number
    #[arg(long = "of", value_name = "PID")]
    pid: Option<u32>,
    /// Only this device; may be given several times
    #[arg(long = "device", short = 'd', value_name = "DEV", value_delimiter = ',')]
    devices: Vec<String>,
}

/// An open device of a running process.
pub(crate) struct Running {
    /// The process; `None` if it has no number here, as from inside of a container.
    pub(crate) pid: Option<u32>,
    /// The name of its program.
    pub(crate) comm: String,
    uid: u32,
    report: DeviceReport,
}

impl Which {
    /// Asks the running processes. Those that do not answer are named on standard error; so is it if there
    /// are none.
    pub(crate) fn ask(&self, subject: Subject) -> Result<Vec<Running>, Error> {
        let mut found = Vec::new();
        let mut silent = false;
        for report in report::ask(subject) {
            if self.pid.is_some() && report.pid != self.pid {
                continue;
            }
            let comm = report.pid.map(comm).unwrap_or_default();
            match report.records {
                Err(silence) => {
                    silent = true;
                    print_error(&why(report.pid, &comm, silence));
                }
                Ok(_) => {
                    let name = report.device("name").unwrap_or_default();
                    if self.devices.is_empty() || self.devices.iter().any(|device| device == name) {
                        let (pid, uid) = (report.pid, report.uid);
                        found.push(Running { pid, comm, uid, report });
                    }
                }
            }
        }
        found.sort_by(|a, b| (a.pid, a.device()).cmp(&(b.pid, b.device())));
        match self.pid {
            Some(pid) if found.is_empty() && !silent => Err(Error::new(
                format!("process {pid} has no such device open"),
                "`rxe stat` without options lists all that have",
            )),
            None if found.is_empty() && !silent => {
                print_error(&"no running process has such a device open");
                Ok(found)
            }
            _ => Ok(found),
        }
    }
}

impl Running {
    /// The device's name.
    pub(crate) fn device(&self) -> &str {
        self.report.device("name").unwrap_or_default()
    }

    /// Its interface.
    pub(crate) fn netdev(&self) -> &str {
        self.report.device("netdev").unwrap_or_default()
    }

    /// Its way onto the wire.
    pub(crate) fn backend(&self) -> &str {
        self.report.device("backend").unwrap_or_default()
    }

    /// The process's number as text.
    pub(crate) fn pid_text(&self) -> String {
        self.pid.map_or("?".into(), |pid| pid.to_string())
    }

    /// What it said.
    pub(crate) fn records(&self) -> &[Record] {
        self.report.objects()
    }

    /// The record of this kind.
    pub(crate) fn record(&self, kind: &str) -> Option<&Record> {
        self.records().iter().find(|record| record.kind() == kind)
    }

    /// How many objects it has.
    pub(crate) fn total(&self) -> u64 {
        self.report.total
    }

    /// Its records as JSON, each with the device and the process.
    pub(crate) fn objects_json(&self) -> Vec<Value> {
        let object = |record: &Record| {
            let mut map = self.json();
            map.extend(fields_json(record));
            map.into()
        };
        self.records().iter().map(object).collect()
    }

    /// The device and its process as JSON.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("device".into(), self.device().into());
        map.insert("netdev".into(), self.netdev().into());
        map.insert("backend".into(), self.backend().into());
        map.insert("pid".into(), self.pid.into());
        map.insert("comm".into(), self.comm.as_str().into());
        map.insert("uid".into(), self.uid.into());
        map
    }
}

/// The fields of a record as JSON: numbers where they are numbers.
pub(crate) fn fields_json(record: &Record) -> Map<String, Value> {
    let value = |text: &str| text.parse::<u64>().map_or_else(|_| text.into(), Value::from);
    record.fields().map(|(key, text)| (key.to_owned(), value(text))).collect()
}

/// A column: the field of the records, and how it is aligned. The heading is the field's name.
pub(crate) type Column = (&'static str, Align);

/// The records of all devices, a line each, with the device in front and the process behind.
pub(crate) fn table(running: &[Running], columns: &[Column]) -> String {
    let heads = ["dev"].into_iter().chain(columns.iter().map(|(name, _)| *name));
    let mut rows: Vec<Vec<String>> =
        vec![heads.chain(["pid", "comm"]).map(str::to_owned).collect()];
    for device in running {
        for record in device.records() {
            let field = |(name, _): &Column| record.get(name).unwrap_or("-").to_owned();
            let mut row = vec![device.device().to_owned()];
            row.extend(columns.iter().map(field));
            row.extend([device.pid_text(), device.comm.clone()]);
            rows.push(row);
        }
    }
    let aligns: Vec<_> = [Align::Left]
        .into_iter()
        .chain(columns.iter().map(|(_, align)| *align))
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
        // What may be too long is the name of the program, which comes last.
        let line: String = cells.collect::<Vec<_>>().join("  ").chars().take(WIDTH).collect();
        line.trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The name of a process's program, without anything that a terminal acts on.
pub(crate) fn comm(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Why a process did not answer.
fn why(pid: Option<u32>, comm: &str, silence: Silence) -> String {
    let who = match pid {
        Some(pid) => format!("process {pid} ({comm})"),
        None => "a process in another container".into(),
    };
    match (silence, pid) {
        (Silence::Late, Some(pid)) if is_stopped(pid) => {
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

/// Whether a signal or a debugger has stopped it.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may have anything in it.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

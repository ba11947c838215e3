//! Reports of a process about its open devices: counters, objects and captured packets. They
//! correspond to `rdma statistic` and `rdma resource` of the kernel's devices.
//!
//! A report is a list of [`Record`]s, which only this module writes and reads. A device of this
//! process writes them from its counters and its lists of objects when it is asked. [`ask`] asks
//! all processes of this user; a process of root asks the processes of all users. The reply was
//! written by another process: its size is bounded and its text printable, and its reader must
//! check the rest.

mod capture;
mod live_capture;
mod port;
mod quota;
mod record;
mod reporter;
mod resources;
mod usage;

use std::time::{Duration, Instant};

use rxe_net::report::{self, NoReport, Question, ReportSocket};

pub use capture::{CapturePiece, DeviceCapture};
pub(crate) use live_capture::LiveCaptureSlot;
pub use port::{PORT_COUNTERS, port_counters};
pub(crate) use quota::{GroupPermit, Permit};
pub use record::Record;
use record::records;
pub(crate) use reporter::{DeviceReporter, Observed, Reporting};
pub(crate) use resources::Resources;
pub use rxe_net::report::OpenedDevices;
pub use usage::UseCounts;
pub(crate) use usage::{Counted, Kind, UseCounters, Used, closed};

/// The kind of record that says that a device was too busy to reply.
pub(crate) const BUSY: &str = "busy";
/// The kind of record that tells the number of objects and where the list continues.
pub(crate) const TOTAL: &str = "total";

/// The kind of record that says that a device's packets are captured by another process.
pub(crate) const TAKEN: &str = "taken";
/// The kind of record that says how many packets a capture lacks.
pub(crate) const DROPPED: &str = "dropped";

/// How long to wait for a stopped process. A running process may take five times as long.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// The most pieces of a list that are requested.
const MAX_PIECES: usize = 256;

/// The subjects that a device can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Subject {
    /// The counters.
    Counters = 0,
    /// The number of objects of each kind.
    Summary = 1,
    /// The queue pairs.
    Qp = 2,
    /// The completion queues.
    Cq = 3,
    /// The memory regions.
    Mr = 4,
    /// The shared receive queues.
    Srq = 5,
    /// The connections by address and port, and the listeners.
    CmId = 6,
    /// The protection domains.
    Pd = 7,
}

impl Subject {
    const ALL: [Self; 8] = [
        Self::Counters,
        Self::Summary,
        Self::Qp,
        Self::Cq,
        Self::Mr,
        Self::Srq,
        Self::CmId,
        Self::Pd,
    ];

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// A process's report about one of its devices, or why there is none.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// The process ID, if the process is visible in this PID namespace.
    pub pid: Option<u32>,
    /// The user ID of the process.
    pub uid: u32,
    /// The records: first `device`, then those of the subject.
    pub records: Result<Vec<Record>, Silence>,
    /// The number of objects. Very long lists are cut, so this may exceed the number of records.
    pub total: u64,
}

/// Why there is no usable report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The process did not reply in time: it is stopped, or the host is busy.
    Late,
    /// The device was busy for longer than a reply may wait.
    Busy,
    /// The process closed the connection: its version does not report.
    HungUp,
    /// The reply is not a report.
    Nonsense,
}

/// Asks all open devices about a subject.
pub fn ask(subject: Subject) -> Vec<DeviceReport> {
    ask_at(&ReportSocket::all(), subject, TIMEOUT)
}

/// Asks all processes that have this device open in this network namespace.
///
/// Returns their reports in the order of the process IDs.
pub fn ask_device(name: &str, subject: Subject, timeout: Duration) -> Vec<DeviceReport> {
    let mut reports = ask_at(&ReportSocket::of_this_network(), subject, timeout);
    reports.retain(|report| report.device("name") == Some(name));
    reports.sort_by_key(|report| report.pid);
    reports
}

/// Asks these sockets. Further pieces of long lists are requested for another `timeout` at most.
fn ask_at(sockets: &[ReportSocket], subject: Subject, timeout: Duration) -> Vec<DeviceReport> {
    let question = |from| Question { subject: subject as u8, from };
    let mut answers = report::ask(sockets, question(0), timeout);
    let deadline = Instant::now() + timeout;
    // A device that is being opened sends an empty reply, and so does a further socket of a device.
    answers.retain(|(_, answer)| !answer.report.as_ref().is_ok_and(Vec::is_empty));
    answers
        .into_iter()
        .map(|(at, answer)| {
            let mut report = DeviceReport::of(answer);
            let mut next = report.next();
            for _ in 0..MAX_PIECES {
                let left = deadline.saturating_duration_since(Instant::now());
                let Some(from) = next.take().filter(|_| !left.is_zero()) else { break };
                let more = report::ask(&sockets[at..=at], question(from), left);
                let Some((_, answer)) = more.into_iter().next() else { break };
                let mut more = DeviceReport::of(answer);
                next = more.next().filter(|next| *next > from && more.pid == report.pid);
                if let (Ok(all), Ok(records)) = (&mut report.records, more.records) {
                    all.extend(records.into_iter().filter(|record| record.kind() != "device"));
                }
            }
            report
        })
        .collect()
}

impl DeviceReport {
    fn of(answer: report::Answer) -> Self {
        let records = match answer.report {
            Ok(text) => Record::parse_all(&text).ok_or(Silence::Nonsense),
            Err(NoReport::Silent) => Err(Silence::Late),
            Err(NoReport::HungUp) => Err(Silence::HungUp),
            Err(NoReport::Nonsense) => Err(Silence::Nonsense),
        };
        let records = records.and_then(|records| match records.first() {
            _ if records.iter().any(|record| record.kind() == BUSY) => Err(Silence::Busy),
            Some(first) if first.kind() == "device" => Ok(records),
            _ => Err(Silence::Nonsense),
        });
        Self { pid: answer.pid, uid: answer.uid, records, total: 0 }
    }

    /// Removes the record about the list and returns where the list continues.
    fn next(&mut self) -> Option<u32> {
        let records = self.records.as_mut().ok()?;
        let total = records.pop_if(|record| record.kind() == TOTAL)?;
        self.total = total.number("objects").unwrap_or(0);
        total.number("next").and_then(|next| u32::try_from(next).ok()).filter(|next| *next > 0)
    }

    /// Returns a field of the device: `name`, `netdev` or `backend`.
    pub fn device(&self, key: &str) -> Option<&str> {
        self.records.as_ref().ok()?.first()?.get(key)
    }

    /// Returns the record of this kind, if there is one.
    pub fn record(&self, kind: &str) -> Option<&Record> {
        self.objects().iter().find(|record| record.kind() == kind)
    }

    /// Returns the records of the subject.
    pub fn objects(&self) -> &[Record] {
        self.records.as_ref().ok().and_then(|records| records.get(1..)).unwrap_or_default()
    }
}

//! Queries to the devices that are open on this host: `rxe stat` and `rxe resource`.
//!
//! The caller trusts no process: it only reads directories that belong to a single user, connects
//! only to a process of that user, waits for a bounded time, and accepts an answer of bounded size.
//! The reader must check the content of the answer.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::{ControlMessage, REPORT_HEADER};
use super::directory::candidates;
pub use super::opened::OpenedDevices;
pub use super::report::{MAX_REPORT, Question, Reporter};
pub use super::timeout::Timeout;
use rxe_sys::may_block;
pub use rxe_sys::sockopt::network_namespace;
use rxe_sys::unix::{UnixSocket, own_uid};

/// The control socket of an open device, as a recipient of queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSocket {
    pub(super) path: PathBuf,
    /// The only user whose process may be behind the socket.
    pub(super) uid: u32,
}

/// The answer of a process, and which process that is.
#[derive(Debug)]
pub struct Answer {
    /// The process ID, if the process is visible here.
    pub pid: Option<u32>,
    /// The user ID of the process.
    pub uid: u32,
    /// The report, or why there is none.
    pub report: Result<Vec<u8>, NoReport>,
}

/// Why a process gave no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReport {
    /// No answer came in time: the process is stopped, or the host is busy.
    Silent,
    /// The process closed the connection: its version has no reports, or it is just ending.
    HungUp,
    /// The answer is malformed.
    Nonsense,
}

/// The maximum number of names read in a user's directories, and of sockets found there.
const MAX_NAMES: usize = 16 << 10;
const MAX_SOCKETS: usize = 1024;
/// The number of sockets that are queried simultaneously.
const AT_ONCE: usize = 64;

impl ReportSocket {
    /// Returns the sockets of all devices that processes of this user have open. All network
    /// namespaces count, and for root all users. Includes the sockets of dead processes, which do
    /// not answer.
    pub fn all() -> Vec<Self> {
        may_block("looking for devices");
        let mut found = Vec::new();
        let mut roots = candidates().to_vec();
        if own_uid() == 0 {
            roots.extend(of_all_users());
            roots.sort_unstable();
            roots.dedup();
        }
        for root in roots {
            if let Some(uid) = owner(&root)
                && (uid == own_uid() || own_uid() == 0)
            {
                found.extend(sockets(&root, uid));
            }
        }
        found
    }
}

impl ReportSocket {
    /// Returns the sockets of [`ReportSocket::all`] in this thread's network namespace.
    pub fn of_this_network() -> Vec<Self> {
        let network = network_namespace();
        let mut all = Self::all();
        all.retain(|socket| {
            let of = socket.path.parent().and_then(Path::parent).and_then(Path::file_name);
            of.is_some_and(|of| *of == *network)
        });
        all
    }
}

/// Queries all these sockets, 64 at a time. Waits for each group of 64 at most `timeout` for
/// stopped processes, and longer for running ones ([`Timeout`]). Each answer comes with the index
/// of its socket. Sockets without a listener are left out.
pub fn ask(
    sockets: &[ReportSocket],
    question: Question,
    timeout: Duration,
) -> Vec<(usize, Answer)> {
    may_block("asking other processes");
    let places: Vec<_> = sockets.iter().enumerate().collect();
    places.chunks(AT_ONCE).flat_map(|some| ask_some(some, question, timeout)).collect()
}

fn ask_some(
    sockets: &[(usize, &ReportSocket)],
    question: Question,
    timeout: Duration,
) -> Vec<(usize, Answer)> {
    let timeout = Timeout::new(timeout);
    let asked = sockets.iter().filter_map(|(at, to)| {
        let (socket, peer) = UnixSocket::connect_to(&to.path, to.uid).ok()?;
        let sent = socket.send(&ControlMessage::Report(question).emit(), &[]);
        let report = sent.map_or(Err(NoReport::HungUp), |()| Err(NoReport::Silent));
        Some((*at, socket, Answer { pid: peer.pid, uid: peer.uid, report }))
    });
    let mut asked: Vec<_> = asked.collect();
    let mut buf = vec![0; REPORT_HEADER.len() + MAX_REPORT];
    loop {
        let silent = |answer: &Answer| matches!(answer.report, Err(NoReport::Silent));
        let mut left = Duration::ZERO;
        let mut waiting: Vec<_> = asked
            .iter_mut()
            .filter(|(_, _, answer)| {
                let more = if silent(answer) { timeout.left(answer.pid) } else { Duration::ZERO };
                left = left.max(more);
                !more.is_zero()
            })
            .collect();
        if waiting.is_empty() {
            return asked.into_iter().map(|(at, _, answer)| (at, answer)).collect();
        }
        let mut fds: Vec<_> = waiting
            .iter()
            .map(|(_, socket, _)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        let left = Timespec::try_from(left).ok();
        let ready: Vec<_> = match poll(&mut fds, left.as_ref()) {
            Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        };
        drop(fds);
        for ((_, socket, answer), _) in waiting.iter_mut().zip(&ready).filter(|(_, ready)| **ready)
        {
            answer.report = match socket.receive(&mut buf) {
                Ok(None) => continue,
                Ok(Some(received)) if received.len == 0 => Err(NoReport::HungUp),
                Ok(Some(received)) => match buf[..received.len].strip_prefix(&REPORT_HEADER) {
                    Some(report) => Ok(report.to_vec()),
                    None => Err(NoReport::Nonsense),
                },
                Err(_) => Err(NoReport::HungUp),
            };
        }
    }
}

/// Returns the paths where directories of all users may be.
fn of_all_users() -> Vec<PathBuf> {
    let named = ["/dev/shm", "/tmp"].into_iter().flat_map(|directory| {
        let names = names(Path::new(directory), &mut MAX_NAMES.clone());
        let users = names.into_iter().filter(|name| {
            name.strip_prefix("rxe-").is_some_and(|user| user.parse::<u32>().is_ok())
        });
        users.map(|name| Path::new(directory).join(name)).collect::<Vec<_>>()
    });
    let run = Path::new("/run/user");
    let at_run =
        names(run, &mut MAX_NAMES.clone()).into_iter().map(|user| run.join(user).join("rxe"));
    named.chain(at_run).collect()
}

/// Returns the user that owns a directory, if no other user can enter it.
fn owner(directory: &Path) -> Option<u32> {
    let found = fs::symlink_metadata(directory).ok()?;
    (found.is_dir() && found.mode() & 0o077 == 0).then_some(found.uid())
}

/// Returns the control sockets in a user's directory. A socket with several paths appears once.
fn sockets(root: &Path, uid: u32) -> Vec<ReportSocket> {
    let mut budget = MAX_NAMES;
    let mut inodes = Vec::new();
    let mut found = Vec::new();
    for network in names(root, &mut budget) {
        let network = root.join(network);
        for address in names(&network, &mut budget) {
            let address = network.join(address);
            for block in names(&address, &mut budget) {
                let path = address.join(&block);
                let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
                let inode = (metadata.dev(), metadata.ino());
                let is_control = block.parse::<u8>().is_ok() && metadata.file_type().is_socket();
                if is_control && !inodes.contains(&inode) && found.len() < MAX_SOCKETS {
                    inodes.push(inode);
                    found.push(ReportSocket { path, uid });
                }
            }
        }
    }
    found
}

/// Returns the names in a directory, up to `budget`, which is reduced. Refuses a symbolic link.
fn names(directory: &Path, budget: &mut usize) -> Vec<String> {
    let is_directory = |found: fs::Metadata| found.is_dir();
    if !fs::symlink_metadata(directory).is_ok_and(is_directory) {
        return Vec::new();
    }
    let read = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries.take(*budget).filter_map(read).collect();
    *budget -= names.len();
    names.sort_unstable();
    names
}

//! Files that one process at a time locks with flock(2). These are the lock of an address, and
//! claims to services. The kernel releases them when their holder dies.
//!
//! Many processes may wait for one lock, as when a launcher starts hundreds on one address. Each
//! keeps the file open and retries after growing pauses, so that a try costs one system call, and
//! the waiting processes leave the CPUs to the holder. The holder sets the file's modification time
//! when it has succeeded. While this time changes, processes are being served, and the others
//! continue to wait.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use rustix::time::Timespec;

use rxe_sys::ForkGuarded;
use rxe_sys::may_block;

/// The file name of an address's lock.
pub(super) const LOCK: &str = "lock";

/// The shortest and the longest pause between two tries to lock a file. With the longest, 200
/// waiting processes take a sixth of a CPU, and a free lock stays unused for 32 ms at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];

/// The lock of an address: its holder may add sockets to the address's group. Without a directory
/// there is nothing to lock.
#[derive(Debug)]
pub(super) struct Lock {
    file: Option<LockedFile>,
}

impl Lock {
    /// Takes the lock with this path. Returns `None` if another process or thread holds it.
    pub(super) fn take(path: PathBuf) -> io::Result<Option<Self>> {
        LockAttempt::new(Some(path)).take()
    }

    /// Tells the waiting processes that this holder has succeeded.
    pub(super) fn note_success(&self) {
        let Some(file) = &self.file else { return };
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let now = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
        let _ = rustix::fs::futimens(file, &now);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(file) = self.file.as_mut().filter(|file| file.is_own()) else { return };
        let Some(directory) = file.path.parent() else { return };
        may_block("removing an address's files");
        // If only the lock is left in the directory, no process uses the address.
        if fs::read_dir(directory).is_ok_and(|entries| entries.count() == 1) {
            let _ = fs::remove_file(&file.path);
            let _ = fs::remove_dir(directory);
            let _ = directory.parent().map(fs::remove_dir);
        }
    }
}

/// The state of a thread that waits for an address's lock.
#[derive(Debug)]
pub(super) struct LockAttempt {
    path: Option<PathBuf>,
    /// The open file of the lock, while another process has locked it.
    file: Option<ForkGuarded>,
    pause: Duration,
}

/// Identifies the latest success of a holder: the file's inode and its modification time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Success(u64, i64, u64);

impl LockAttempt {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self { path, file: None, pause: PAUSES[0] }
    }

    /// Tries to take the lock. Returns `None` if another process or thread holds it.
    pub(super) fn take(&mut self) -> io::Result<Option<Lock>> {
        let Some(path) = &self.path else { return Ok(Some(Lock { file: None })) };
        let locked = LockedFile::lock(path, &mut self.file)?;
        Ok(locked.map(|file| Lock { file: Some(file) }))
    }

    /// Returns the latest success of a holder.
    pub(super) fn latest_success(&self) -> Success {
        let file = self.file.as_ref().and_then(|file| rustix::fs::fstat(file).ok());
        #[expect(clippy::unnecessary_cast, reason = "the fields' types are the architecture's")]
        file.map_or_else(Success::default, |file| {
            Success(file.st_ino as u64, file.st_mtime as i64, file.st_mtime_nsec as u64)
        })
    }

    /// Sleeps before the next try, each time longer.
    pub(super) fn pause(&mut self) {
        thread::sleep(self.pause);
        self.pause = (2 * self.pause).min(PAUSES[1]);
    }
}

/// A file with an exclusive flock(2), which the kernel releases when the process ends.
#[derive(Debug)]
pub(super) struct LockedFile {
    fd: ForkGuarded,
    path: PathBuf,
    pid: u32,
}

impl LockedFile {
    /// Locks the file with this path. Returns `None` if another process holds it.
    pub(super) fn open(path: PathBuf) -> io::Result<Option<Self>> {
        Self::lock(&path, &mut None)
    }

    /// Locks `file`, or the file with this path if `file` is `None` or was removed. If another
    /// process holds the lock, leaves the open file in `file` and returns `None`.
    fn lock(path: &Path, file: &mut Option<ForkGuarded>) -> io::Result<Option<Self>> {
        may_block("locking a file");
        // The last holder may remove the file and its directory, which are then created again. Even
        // if other processes come and go all the time, one of the tries succeeds.
        for _ in 0..1000 {
            let opened = match file.take().filter(|file| file.ensure().is_ok()) {
                Some(opened) => opened,
                None => match open(path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    opened => opened?,
                },
            };
            match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    *file = Some(opened);
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
            let locked = rustix::fs::fstat(&opened)?;
            if fs::symlink_metadata(path).is_ok_and(|named| named.ino() == locked.st_ino) {
                let (path, pid) = (path.to_owned(), std::process::id());
                return Ok(Some(Self { fd: opened, path, pid }));
            }
        }
        Ok(None)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this process took the lock: a forked child only has a copy.
    pub(super) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a file to be locked. Creates the file and its directory if necessary.
fn open(path: &Path) -> io::Result<ForkGuarded> {
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    Ok(ForkGuarded::new(file.into()))
}

/// Creates a directory that only this user may enter, and its parent if necessary.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    let make = |path: &Path| match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    match make(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make(path.parent().unwrap_or(Path::new("/")))?;
            make(path)
        }
        made => made,
    }
}

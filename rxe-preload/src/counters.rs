//! Updates the counters of a port in the tree when a program reads them.
//! They are the files in `hw_counters/` and `counters/`.
//!
//! A value is the sum over the processes of this user that have the device open in this network
//! namespace. All counters of a device are written together, into files that replace the old ones.
//! The files that the tree has in these directories define which counters exist.
//!
//! A file in sysfs has a new value when it is read again from its beginning, so programs keep
//! counters open. Here an open file is the one that has been replaced. So the functions that read
//! from descriptors are overridden too, and first write the new value into the open file. Only this
//! process, and processes that inherited the descriptor, have that file open.
//!
//! Invariant: until the program has opened a counter, a read costs one load of a variable more.

use std::ffi::{OsStr, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, process};

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rxe_net::report::network_namespace;
use rxe_verbs::device::sysfs;
use rxe_verbs::observe::{PORT_COUNTERS, port_counters};

use crate::ffi::set_errno;

/// How long values count as current: the kernel's default in `hw_counters/lifespan`.
const LIFESPAN: Duration = Duration::from_millis(10);
/// How long other processes may take to report their values.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The directory whose values were last written, and the time.
static LAST: Mutex<Option<(PathBuf, Instant)>> = Mutex::new(None);

/// Whether the program has accessed a counter.
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns a file with the present value, if this path below the tree is that of a counter.
pub(crate) fn current(tree: &[u8], below: &[u8]) -> Option<PathBuf> {
    let (device, counter) = counter(below)?;
    let tree = Path::new(OsStr::from_bytes(tree));
    // In the tree, a device of the host is a symbolic link.
    let shown = rustix::fs::lstat(tree.join("class/infiniband").join(device)).ok()?;
    if !FileType::from_raw_mode(shown.st_mode).is_dir() {
        return None;
    }
    ANY.store(true, Ordering::Relaxed);
    let file = updated(tree, device).ok()?.join(counter);
    file.is_file().then_some(file)
}

/// Updates the values of a device. Returns the directory with them.
fn updated(tree: &Path, device: &str) -> io::Result<PathBuf> {
    // Programs in other network namespaces may use the same tree.
    let files = tree.join(COUNTERS).join(network_namespace()).join(device);
    // If the lock is taken, another thread is updating, and the old values are recent. If a fork
    // copied a lock that was taken, the child uses the old values from then on.
    if let Some(mut last) = LAST.try_lock()
        && !last.as_ref().is_some_and(|(of, at)| *of == files && at.elapsed() < LIFESPAN)
    {
        // The device may have another name for programs.
        let own = fs::read_to_string(tree.join("names").join(device)).ok();
        let own = own.as_deref().map_or(device, str::trim_end);
        write(&files, &port_counters(own, TIMEOUT))?;
        *last = Some((files.clone(), Instant::now()));
    }
    Ok(files)
}

/// The name of the directory in a tree that has the current counters.
const COUNTERS: &str = "counters";
/// The length in bytes of the largest value (20 digits) and a newline.
const LONGEST: usize = 21;

/// Writes the present value into an open counter that is about to be read.
/// The read must start at the beginning of the file: at `offset` or, if that is `None`, at the
/// descriptor's position.
fn update_open(fd: c_int, offset: Option<i64>) {
    if offset.is_some_and(|offset| offset != 0) || fd < 0 {
        return;
    }
    // SAFETY: the descriptor is used for these calls only. The program must not close it during its
    // own call.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let is_small = |stat: &Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && usize::try_from(stat.st_size).is_ok_and(|size| size <= LONGEST)
    };
    if !rustix::fs::fstat(file).is_ok_and(|stat| is_small(&stat))
        || offset.is_none() && rustix::fs::seek(file, SeekFrom::Current(0)) != Ok(0)
    {
        return;
    }
    let link = format!("/proc/self/fd/{fd}");
    let Ok(path) = rustix::fs::readlink(&link, Vec::new()) else { return };
    let Some((tree, device, counter)) = path.to_str().ok().and_then(counter_file) else { return };
    let _ = update(&link, Path::new(tree), device, counter);
}

/// Copies the present value into the file to which `link` leads.
fn update(link: &str, tree: &Path, device: &str, counter: &str) -> io::Result<()> {
    let file = updated(tree, device)?.join(counter);
    // Direct system calls, because the C library's functions would lead back to this library.
    let open = |path: &Path, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let mut value = [0; LONGEST];
    let new = open(&file, OFlags::RDONLY)?;
    // The program has opened the file for reading only, so it is opened again.
    let kept = open(Path::new(link), OFlags::WRONLY)?;
    if rustix::fs::fstat(&new)?.st_ino == rustix::fs::fstat(&kept)?.st_ino {
        return Ok(());
    }
    let length = rustix::io::read(&new, &mut value)?;
    rustix::io::pwrite(&kept, &value[..length], 0)?;
    // The value may be shorter than before.
    rustix::fs::ftruncate(&kept, length as u64)?;
    Ok(())
}

/// Splits the path of a counter's file.
/// Returns the tree, the device, and the path below the device.
fn counter_file(path: &str) -> Option<(&str, &str, &str)> {
    // The kernel adds this if a newer file has replaced the open one.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let (tree, below) = path.split_once(&format!("/{COUNTERS}/{}/", network_namespace()))?;
    let (device, counter) = below.split_once('/')?;
    let (directory, name) = counter.split_once('/')?;
    let name = PORT_COUNTERS.contains(&(directory, name)).then_some(counter)?;
    sysfs::is_tree(Path::new(tree)).then_some((tree, device, name))
}

/// Defines overrides of C library functions that read from a descriptor.
/// They read at offset `at` or, if that is `None`, at the descriptor's position.
macro_rules! hooks {
    ($(fn $name:ident(fd $(, $argument:ident: $type:ty)*) at $at:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(fd: c_int $(, $argument: $type)*) -> isize {
                type Function = unsafe extern "C-unwind" fn(c_int $(, $type)*) -> isize;
                let Some(next) = behind::$name.get() else {
                    set_errno(libc::ENOSYS);
                    return -1;
                };
                // SAFETY: the C library's function of this name, which has this type.
                let next: Function = unsafe { std::mem::transmute(next) };
                if ANY.load(Ordering::Relaxed) {
                    update_open(fd, $at);
                }
                // SAFETY: the caller's arguments.
                unsafe { next(fd $(, $argument)*) }
            }
        )*

        /// The C library's versions of our functions.
        #[allow(non_upper_case_globals, reason = "each has the name of its function")]
        mod behind {
            use crate::next::Next;
            $(pub(super) static $name: Next = Next::named(concat!(stringify!($name), "\0"));)*
        }

        /// Looks up the C library's functions.
        /// Called at load, so that no signal handler has to call `dlsym`.
        pub(crate) fn resolve() {
            $(behind::$name.get();)*
        }
    };
}

hooks! {
    fn read(fd, buf: *mut c_void, count: usize) at None;
    fn __read_chk(fd, buf: *mut c_void, count: usize, room: usize) at None;
    fn pread(fd, buf: *mut c_void, count: usize, offset: i64) at Some(offset);
    fn pread64(fd, buf: *mut c_void, count: usize, offset: i64) at Some(offset);
    fn __pread_chk(fd, buf: *mut c_void, count: usize, offset: i64, room: usize) at Some(offset);
    fn __pread64_chk(fd, buf: *mut c_void, count: usize, offset: i64, room: usize) at Some(offset);
}

fn write(files: &Path, values: &[u64]) -> io::Result<()> {
    let new = files.join(format!("new-{}", process::id()));
    for ((directory, name), value) in PORT_COUNTERS.iter().zip(values) {
        fs::create_dir_all(files.join(directory))?;
        fs::write(&new, format!("{value}\n"))?;
        fs::rename(&new, files.join(directory).join(name))?;
    }
    Ok(())
}

/// Returns the device in the path of a counter, and the path below the port.
fn counter(below: &[u8]) -> Option<(&str, &str)> {
    let path = std::str::from_utf8(below).ok()?.strip_prefix("/class/infiniband/")?;
    let (device, rest) = path.split_once('/')?;
    let file = rest.strip_prefix("ports/1/")?;
    let (directory, name) = file.split_once('/')?;
    (device != ".." && PORT_COUNTERS.contains(&(directory, name))).then_some((device, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_counter_is_known_by_its_path() {
        let files = format!("/run/rxe/sys-0/counters/{}/rxe_lo", network_namespace());
        let sent = format!("{files}/hw_counters/sent_pkts");
        let expected = Some(("/run/rxe/sys-0", "rxe_lo", "hw_counters/sent_pkts"));
        assert_eq!(counter_file(&sent), expected);
        assert_eq!(counter_file(&format!("{sent} (deleted)")), expected);
        for other in [
            format!("{files}/hw_counters/other"),
            sent.replace("sys-0", "etc"),
            sent.replace(&network_namespace(), "no"),
        ] {
            assert_eq!(counter_file(&other), None, "{other}");
        }
    }

    #[test]
    fn only_counters_are_asked_for() {
        let port = "/class/infiniband/rxe_lo/ports/1";
        let sent = format!("{port}/hw_counters/sent_pkts");
        assert_eq!(counter(sent.as_bytes()), Some(("rxe_lo", "hw_counters/sent_pkts")));
        for other in [
            format!("{port}/state"),
            format!("{port}/hw_counters"),
            format!("{port}/hw_counters/lifespan"),
            "/class/infiniband/../ports/1/counters/link_downed".into(),
        ] {
            assert_eq!(counter(other.as_bytes()), None, "{other}");
        }
    }
}

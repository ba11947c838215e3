//! The directory tree with the files of a kernel's devices.
//! Paths in `/sys` and `/dev` are redirected to it.
//!
//! `rxe run` writes the tree for the devices that are present then, and names it in `RXE_SYSFS`.
//! Later the devices may get other names (`rxe link add`) or addresses. A program that reads their
//! files then gets a tree of the present devices, which match the list from `ibv_get_device_list`.
//!
//! With a card's names (`RXE_AS`), or with devices of the host, the tree of `RXE_SYSFS` remains in
//! use, because these devices are numbered at the start.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FileType;
use rxe_sys::PerProcess;
use rxe_verbs::DeviceInfo;
use rxe_verbs::device::sysfs;

use crate::config::{self, CONFIG};
use crate::stderr;

/// How long a tree is used before the devices are listed again: programs read many files in a row.
const LIFESPAN: Duration = Duration::from_millis(100);

static GIVEN: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let tree = config::var("RXE_SYSFS")?;
    // A direct system call, because the C library's functions would lead back to this library.
    let found = rustix::fs::stat(tree.as_str());
    if !found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir()) {
        stderr::line(&format!(
            "RXE_SYSFS={tree} is no directory: leave it to `rxe run` or to `rxe env`, which make it"
        ));
    }
    Some(tree.into())
});

/// The tree that was last written, and the time.
static LAST: PerProcess<Mutex<Option<(PathBuf, Instant)>>> = PerProcess::new();

thread_local! {
    /// Whether this thread holds the lock. While it does, it may itself read files of devices.
    static UPDATING: Cell<bool> = const { Cell::new(false) };
}

/// Returns the tree that `RXE_SYSFS` names.
pub(crate) fn given() -> Option<PathBuf> {
    GIVEN.clone()
}

/// Returns the tree of the present devices.
pub(crate) fn current() -> Option<PathBuf> {
    let given = given()?;
    let stays = CONFIG.identity.is_some() || CONFIG.host_devices || !sysfs::is_tree(&given);
    if stays || UPDATING.get() {
        return Some(given);
    }
    UPDATING.set(true);
    let mut last = LAST.get().lock();
    if last.as_ref().is_none_or(|(_, at)| at.elapsed() >= LIFESPAN)
        && let Some(tree) = written(&given)
    {
        *last = Some((tree, Instant::now()));
    }
    let tree = last.as_ref().map(|(tree, _)| tree.clone());
    drop(last);
    UPDATING.set(false);
    tree.or(Some(given))
}

/// Writes the tree for the present devices, unless it exists. Its programs are copied from `given`.
fn written(given: &Path) -> Option<PathBuf> {
    let devices = match &CONFIG.devices {
        None => DeviceInfo::offered().ok()?,
        Some(names) => {
            let mut devices = DeviceInfo::list().ok()?;
            devices.retain(|device| names.iter().any(|name| device.is_called(name)));
            devices
        }
    };
    let rdma = fs::read_to_string(sysfs::programs(given).join("rdma")).ok()?;
    sysfs::tree(&devices, None, false, &[("rdma", rdma)]).ok()
}

//! The counters of a port in the tree: `hw_counters/` and `counters/` have the present values when a
//! program looks at them.
//!
//! They are the sums over the processes of this user that have the device open in this network. All of a
//! device are written at once, into files that replace the old ones. What the tree has in these places says
//! which counters there are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, process};

use parking_lot::Mutex;
use rustix::fs::FileType;
use rxe_net::report::network_namespace;
use rxe_verbs::report::{PORT_COUNTERS, port_counters};

/// How long values are taken for present: what kernels say in `hw_counters/lifespan`.
const LIFESPAN: Duration = Duration::from_millis(10);
/// How long other processes may take to answer.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The device whose values were last written, and when.
static LAST: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// A file with the present value, if this path below the tree is that of a counter.
pub(crate) fn current(tree: &[u8], below: &[u8]) -> Option<PathBuf> {
    let (device, counter) = counter(below)?;
    let tree = Path::new(OsStr::from_bytes(tree));
    // In the tree, a device of the host is a link.
    let shown = rustix::fs::lstat(tree.join("class/infiniband").join(device)).ok()?;
    if !FileType::from_raw_mode(shown.st_mode).is_dir() {
        return None;
    }
    // Programs in other networks may use the same tree.
    let files = tree.join("counters").join(network_namespace()).join(device);
    // If another thread is at it, the values are a moment old; so they are if the process was forked then.
    if let Some(mut last) = LAST.try_lock()
        && !last.as_ref().is_some_and(|(name, at)| name == device && at.elapsed() < LIFESPAN)
    {
        // The device may have another name for programs.
        let own = fs::read_to_string(tree.join("names").join(device)).ok();
        let own = own.as_deref().map_or(device, str::trim_end);
        write(&files, &port_counters(own, TIMEOUT)).ok()?;
        *last = Some((device.to_owned(), Instant::now()));
    }
    let file = files.join(counter);
    file.is_file().then_some(file)
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

/// The device of a counter's path, and what is behind the port.
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

//! Removes what dead processes have left in the user's directory ([`super::directory`]).
//!
//! A killed process leaves its names behind. The names of its block are replaced when the block is
//! leased again, but the address may never be used again, nor the network namespace. So each device
//! that is opened checks a bounded number of names, across all networks and addresses.
//!
//! Invariants:
//! - A block's names are removed only while no process listens on its control socket and the
//!   address's lock is held. A process that leases a block holds that lock until it listens, so
//!   nothing of a starting process is removed. If the lock is taken, the address is skipped.
//! - Claims to services are removed only where no block is leased, because every claiming process
//!   has a block.
//! - No lock is taken where nothing seems to be left over, so starting processes do not wait.

use std::fs;
use std::path::{Path, PathBuf};

use super::lock::{LOCK, Lock};
use super::{BLOCKS, Blocks};
use rxe_sys::unix::exists;

/// The number of names checked in one sweep, which takes some milliseconds.
const BUDGET: usize = 1024;

/// Removes leftovers from this directory of the user.
pub(super) fn sweep(root: &Path) {
    let mut budget = BUDGET;
    let mut networks = names(root, &mut budget);
    if !networks.is_empty() {
        // Each process starts at another network, so that all of them are checked over time.
        let first = usize::try_from(std::process::id()).unwrap_or(0) % networks.len();
        networks.rotate_left(first);
    }
    for network in networks {
        let network = root.join(network);
        for address in names(&network, &mut budget) {
            let address = network.join(address);
            if Leftovers::read(&address, &mut budget).is_left_over()
                && let Ok(Some(lock)) = Lock::take(address.join(LOCK))
            {
                Leftovers::read(&address, &mut BUDGET.clone()).remove();
                // Dropping the lock removes the directory if only the lock is left.
                drop(lock);
            }
        }
        // Fails if the directory is not empty, which is intended.
        let _ = fs::remove_dir(network);
    }
}

/// The names in an address's directory.
#[derive(Default)]
struct Leftovers {
    /// The paths of blocks that no process has leased.
    dead: Vec<PathBuf>,
    services: Vec<PathBuf>,
    /// The blocks that processes have leased.
    leased: Blocks,
    /// The directory contains a name that this library does not create.
    unknown: bool,
}

impl Leftovers {
    fn read(address: &Path, budget: &mut usize) -> Self {
        let mut found = Self::default();
        let mut of_blocks = Vec::new();
        for name in names(address, budget) {
            let path = address.join(&name);
            let block = name.strip_suffix(".inbox").or(name.strip_suffix(".memory"));
            if let Ok(block) = block.unwrap_or(&name).parse::<u8>() {
                of_blocks.push((block, path));
            } else if name.starts_with("service-") {
                found.services.push(path);
            } else {
                found.unknown |= name != LOCK;
            }
        }
        let mut blocks: Vec<u8> = of_blocks.iter().map(|(block, _)| *block).collect();
        if *budget == 0 {
            // The budget is used up, so there may be more names: check every block.
            blocks.extend(BLOCKS);
        }
        blocks.sort_unstable();
        blocks.dedup();
        // If it cannot be determined, the block may be in use.
        blocks.retain(|block| exists(&address.join(block.to_string())).unwrap_or(true));
        found.leased = blocks.into_iter().collect();
        let dead = of_blocks.into_iter().filter(|(block, _)| !found.leased.has(*block));
        found.dead = dead.map(|(_, path)| path).collect();
        found
    }

    /// Returns whether there is something to remove, even if only the directory.
    fn is_left_over(&self) -> bool {
        !self.dead.is_empty() || (self.leased.is_empty() && !self.unknown)
    }

    /// Removes the leftovers. The caller has locked the address.
    fn remove(self) {
        let services = if self.leased.is_empty() { self.services } else { Vec::new() };
        for path in self.dead.into_iter().chain(services) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the names in a directory, up to `budget`, which is reduced.
fn names(directory: &Path, budget: &mut usize) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.take(*budget).filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<_> = names.collect();
    *budget -= names.len();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_sys::unix::{NamedSocket, Rights};

    fn all(directory: &Path) -> Vec<String> {
        let mut names = names(directory, &mut 100);
        names.sort_unstable();
        names
    }

    /// Sweeps until the condition holds. A child that another test has just forked holds a lock of
    /// this process until it calls exec.
    fn sweep_until(root: &Path, done: impl Fn() -> bool) {
        while !done() {
            sweep(root);
        }
    }

    #[test]
    fn what_is_in_use_stays_and_the_rest_goes() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        let [used, dead, locked, foreign] =
            ["1/used", "2/dead", "3/locked", "4/foreign"].map(|name| root.join(name));
        for address in [&used, &dead, &locked, &foreign] {
            fs::create_dir_all(address).unwrap();
            for name in ["2.inbox", "2.memory", "lock", "service-1"] {
                fs::write(address.join(name), "").unwrap();
            }
        }
        let one = NamedSocket::listen(&used.join("1"), Rights::Refused).unwrap();
        fs::write(used.join("1.memory"), "").unwrap();
        fs::create_dir(root.join("5")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        fs::write(foreign.join("notes"), "").unwrap();
        // A starting process: it has bound its socket, but does not listen yet.
        let starting = Lock::take(locked.join(LOCK)).unwrap().unwrap();
        sweep(root);
        assert_eq!(all(&used), ["1", "1.memory", "lock", "service-1"]);
        assert_eq!(all(&locked), ["2.inbox", "2.memory", "lock", "service-1"]);
        assert_eq!(all(&foreign), ["lock", "notes"]);
        assert_eq!(all(root), ["1", "3", "4", "file"]);
        drop((one, starting));
        sweep_until(root, || all(root) == ["4", "file"]);
    }

    #[test]
    fn a_sweep_is_bounded_and_the_next_one_goes_on() {
        let scratch = tempfile::tempdir().unwrap();
        let address = scratch.path().join("1/a");
        fs::create_dir_all(&address).unwrap();
        for i in 0..2 * BUDGET {
            fs::write(address.join(format!("service-{i}")), "").unwrap();
        }
        let count = || fs::read_dir(&address).unwrap().count();
        // A process listens whose name is not among the first.
        let one = NamedSocket::listen(&address.join("7"), Rights::Refused).unwrap();
        sweep(scratch.path());
        assert_eq!(count(), 2 * BUDGET + 1);
        drop(one);
        sweep(scratch.path());
        assert!((BUDGET..2 * BUDGET).contains(&count()), "{}", count());
        sweep_until(scratch.path(), || !address.exists());
    }
}

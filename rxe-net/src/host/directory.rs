//! The directory through which processes of one user find each other.
//!
//! Another user cannot even address sockets in a directory that only its owner may enter: the
//! kernel checks the mode of the directory before it looks up the socket. Any user of a network
//! namespace can connect to an abstract name or take it. A stranger could then hand over
//! descriptors that are slow to close, fill queues, or keep a name from its owner.
//!
//! ```text
//! /dev/shm/rxe-UID/                 mode 0700, owned by the user
//!     opened                        socket of a capture, to which devices announce their opening
//!     NETNS/                        the network namespace: its cookie
//!         ADDRESS/                  with %INTERFACE for a link-local address
//!             lock                  flock(2): held by a process while it joins
//!             BLOCK                 control socket of the device that has leased this block
//!             BLOCK.inbox           its socket for packets that have reached another process
//!             BLOCK.memory          its socket for offers of shared memory
//!             service-ID            flock(2): held by the listening process; contains its block, and
//!                                   whether it listens on this address or on all
//! ```
//!
//! All processes of a user must find the same directory, so nothing in their environment decides:
//! neither XDG_RUNTIME_DIR, which cron, `su` and batch systems do not set, nor the working
//! directory. `/dev/shm` comes first because it is shared by containers that share a network for
//! MPI or NCCL (`--ipc=host`), and by services with a private `/tmp`.
//!
//! A device has one control socket, one inbox and one socket for offers; each of their names is a
//! hard link to it. So this costs a device three descriptors, however many addresses it has.
//!
//! The names never change. Messages on the sockets carry a version.

use std::fmt::{self, Display};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rxe_core::wire::UDP_PORT;

use super::Blocks;
use super::lock::{LOCK, Lock, LockAttempt, LockedFile, make_directory};
use crate::error::PortOwner;
use crate::host::port_owner;
use rxe_sys::sockopt::network_namespace;
use rxe_sys::unix::{exists, own_uid};
use rxe_sys::{is_in_memory, may_block};

/// An address as a shared resource. A link-local address is a different one on each interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScopedAddr {
    pub(crate) address: IpAddr,
    /// The interface index of a link-local address; 0 for other addresses.
    scope: u32,
}

impl ScopedAddr {
    /// Returns the scoped form of an address on the interface with index `scope`.
    pub(crate) fn new(address: IpAddr, scope: u32) -> Self {
        let local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
        Self { address, scope: if local { scope } else { 0 } }
    }

    /// Returns whether `bound` is the socket address of the sockets in this address's group.
    pub(super) fn is_bound_to(&self, bound: SocketAddr) -> bool {
        let scope = match bound {
            SocketAddr::V6(bound) => bound.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        (bound.ip(), bound.port(), scope) == (self.address, UDP_PORT, self.scope)
    }

    /// Returns whether another interface may have the same address.
    pub(super) fn is_link_local(&self) -> bool {
        self.scope != 0
    }
}

impl Display for ScopedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            0 => write!(f, "{}", self.address),
            scope => write!(f, "{}%{scope}", self.address),
        }
    }
}

/// The directory of this network namespace, if one can be used.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The path for this network namespace. `None` if no directory can be used: then the process
    /// has its addresses for itself, and other processes are told so.
    path: Option<PathBuf>,
    /// The directory is in tmpfs, as `/dev/shm` is.
    in_memory: bool,
    /// The directories that were preferred but cannot be used.
    refused: Vec<Refused>,
}

/// A directory that cannot be used.
#[derive(Debug)]
struct Refused {
    path: PathBuf,
    why: String,
    /// What the user can do about it, if anything.
    remedy: Option<String>,
}

impl Directory {
    /// Finds or creates the user's directory.
    pub(crate) fn open() -> Self {
        Self::first_of(candidates())
    }

    /// Returns the directory in which processes of this network namespace already meet. It must be
    /// a private directory of this user. If there is none, returns the first private one, which is
    /// created if necessary.
    ///
    /// A directory that the first processes could not use, because it belonged to another user for
    /// example, may be available when later processes start. They must still choose the directory
    /// of the first ones.
    pub(super) fn first_of(candidates: impl IntoIterator<Item = PathBuf>) -> Self {
        may_block("making a directory");
        let network = network_namespace();
        let candidates: Vec<_> = candidates.into_iter().collect();
        let is_met_in =
            |candidate: &&PathBuf| private(candidate).is_ok() && is_used(&candidate.join(&network));
        let met = candidates.iter().find(is_met_in);
        let mut refused = Vec::new();
        for candidate in met.into_iter().chain(&candidates) {
            let made = make_private(candidate).and_then(|()| {
                let path = candidate.join(&network);
                make_directory(&path).map_err(Unusable::from).map(|()| path)
            });
            match made {
                Ok(path) => {
                    let in_memory = is_in_memory(&path);
                    return Self { path: Some(path), in_memory, refused };
                }
                Err(Unusable { why, remedy }) => {
                    refused.push(Refused { path: candidate.clone(), why, remedy });
                }
            }
        }
        Self { path: None, in_memory: false, refused }
    }

    /// Returns whether a path lookup in the directory never waits for a disk.
    pub(super) fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Returns the user's directory, which contains all network namespaces.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.path.as_deref()?.parent()
    }

    /// Describes for an error why another process was not found. Names the directory that was
    /// searched, or the reason why none can be used.
    pub(crate) fn describe(&self) -> String {
        let refused = self.refused.iter();
        let refused = refused.map(|refused| format!("{}: {}", refused.path.display(), refused.why));
        let refused = refused.collect::<Vec<_>>().join("; ");
        match &self.path {
            Some(path) if refused.is_empty() => {
                format!("it is not in {}, where processes meet", path.display())
            }
            Some(path) => {
                format!("it is not in {}, where processes meet ({refused})", path.display())
            }
            None => format!("no directory can be used to meet in ({refused})"),
        }
    }

    /// Returns what the user can do about an unusable directory, if anything.
    pub(crate) fn remedy(&self) -> Option<&str> {
        self.refused.iter().find_map(|refused| refused.remedy.as_deref())
    }

    /// Returns the path of the control socket of the process that has leased the block.
    pub(super) fn control(&self, addr: &ScopedAddr, block: u8) -> Option<PathBuf> {
        self.at(addr, &block.to_string())
    }

    /// Returns the path of the inbox for packets that have reached another process.
    pub(super) fn inbox(&self, addr: &ScopedAddr, block: u8) -> Option<PathBuf> {
        self.at(addr, &format!("{block}.inbox"))
    }

    /// Returns the path of the socket that accepts offers of shared memory.
    pub(crate) fn memory(&self, addr: &ScopedAddr, block: u8) -> Option<PathBuf> {
        self.at(addr, &format!("{block}.memory"))
    }

    /// Takes the address's lock. Returns `None` if another process or thread holds it.
    pub(super) fn lock(&self, addr: &ScopedAddr) -> io::Result<Option<Lock>> {
        self.lock_attempt(addr).take()
    }

    /// Returns the state for a thread that waits for the address's lock.
    pub(super) fn lock_attempt(&self, addr: &ScopedAddr) -> LockAttempt {
        LockAttempt::new(self.at(addr, LOCK))
    }

    /// Returns the process that holds the address's lock, if the kernel tells.
    pub(super) fn lock_owner(&self, addr: &ScopedAddr) -> Option<PortOwner> {
        may_block("looking up an address's lock");
        let file = fs::metadata(self.at(addr, LOCK)?).ok()?;
        port_owner::of_flock(file.dev(), file.ino())
    }

    /// Claims a service on an address for the process that has leased `block` there. Returns `None`
    /// if another process has claimed it.
    pub(super) fn claim(
        &self,
        addr: &ScopedAddr,
        service: u64,
        block: u8,
        at: ListenAddress,
    ) -> io::Result<Option<Claim>> {
        let Some(path) = self.service(addr, service) else { return Ok(Some(Claim { file: None })) };
        let Some(file) = LockedFile::open(path)? else { return Ok(None) };
        rustix::io::pwrite(&file, &[block, at as u8], 0)?;
        Ok(Some(Claim { file: Some(file) }))
    }

    /// Returns the block of the process that has claimed this service. If that process has died,
    /// the block may be free, or leased by a process that does not know the service.
    pub(super) fn claimed_by(&self, addr: &ScopedAddr, service: u64) -> Option<u8> {
        read_claim(&self.service(addr, service)?).map(|(block, _)| block)
    }

    /// Returns the blocks of all processes that have claimed a service on this address. Dead
    /// processes may be among them.
    pub(super) fn claimants(&self, addr: &ScopedAddr) -> Blocks {
        may_block("reading an address's directory");
        let path = self.path.as_ref().map(|path| path.join(addr.to_string()));
        let entries = path.and_then(|path| fs::read_dir(path).ok()).into_iter().flatten().flatten();
        let claims = entries.filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(SERVICE))
        });
        claims.filter_map(|entry| read_claim(&entry.path())).map(|(block, _)| block).collect()
    }

    /// Returns the addresses on which the claiming process listens, as its claim says.
    pub(super) fn claimed_at(&self, addr: &ScopedAddr, service: u64) -> ListenAddress {
        let claim = self.service(addr, service).and_then(|path| read_claim(&path));
        claim.map_or(ListenAddress::This, |(_, at)| at)
    }

    /// Removes the files of an address, if no process uses it.
    pub(super) fn tidy(&self, addr: &ScopedAddr) {
        may_block("removing an address's files");
        // Dropping the lock removes the files.
        if self.at(addr, LOCK).is_some_and(|lock| lock.exists()) {
            drop(self.lock(addr));
        }
    }

    pub(super) fn service(&self, addr: &ScopedAddr, service: u64) -> Option<PathBuf> {
        self.at(addr, &format!("{SERVICE}{service:016x}"))
    }

    fn at(&self, addr: &ScopedAddr, name: &str) -> Option<PathBuf> {
        Some(self.path.as_ref()?.join(addr.to_string()).join(name))
    }
}

/// The addresses on which a process listens that has claimed a service on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenAddress {
    /// On this address only.
    This = 0,
    /// On all addresses of its family.
    Family = 1,
    /// On all addresses.
    All = 2,
}

/// Returns the possible directories of this process's user, the preferred one first.
pub(super) fn candidates() -> [PathBuf; 3] {
    let user = outer_uid(own_uid());
    [
        format!("/dev/shm/rxe-{user}").into(),
        format!("/tmp/rxe-{user}").into(),
        format!("/run/user/{user}/rxe").into(),
    ]
}

/// The prefix of the file names of claims.
const SERVICE: &str = "service-";

/// Reads a claim: the block of the claiming process, and where it listens.
fn read_claim(claim: &Path) -> Option<(u8, ListenAddress)> {
    may_block("reading a claim");
    // The path may be anything, such as a FIFO: the open must not block, and only 2 bytes are read.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file =
        OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(claim).ok()?;
    let mut claim = [0; 2];
    rustix::io::read(&file, &mut claim).ok().filter(|len| *len > 0)?;
    let [block, claimed] = claim;
    let known = [ListenAddress::Family, ListenAddress::All];
    let at = known.into_iter().find(|at| claimed == *at as u8).unwrap_or(ListenAddress::This);
    (block != 0).then_some((block, at))
}

/// A claim to a service on an address. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    file: Option<LockedFile>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(file) = self.file.as_ref().filter(|file| file.is_own()) {
            may_block("giving up a claim");
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Why a directory cannot be used.
struct Unusable {
    why: String,
    remedy: Option<String>,
}

impl From<io::Error> for Unusable {
    fn from(e: io::Error) -> Self {
        Self { why: e.to_string(), remedy: None }
    }
}

/// Ensures that this directory exists, belongs to this user, and admits no other user.
fn make_private(path: &Path) -> Result<(), Unusable> {
    match DirBuilder::new().mode(0o700).create(path) {
        // The umask may have cleared some of these mode bits.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o700))?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e.into()),
    }
    private(path)
}

/// Checks that this is a directory of this user that admits no other user.
fn private(path: &Path) -> Result<(), Unusable> {
    let found = fs::symlink_metadata(path)?;
    let (uid, own, mode) = (found.uid(), own_uid(), found.mode() & 0o777);
    let path = path.display();
    let (why, remedy) = if uid != own {
        let remedy = format!("have {path} removed by user {uid} or root");
        (format!("belongs to user {uid}, not {own}"), remedy)
    } else if !found.is_dir() {
        ("is no directory".to_owned(), format!("remove {path}"))
    } else if mode != 0o700 {
        (format!("has mode {mode:o}, not 700"), format!("`chmod 700 {path}`"))
    } else {
        return Ok(());
    };
    Err(Unusable { why, remedy: Some(remedy) })
}

/// Returns whether a process has leased a block on any address of this network namespace.
fn is_used(network: &Path) -> bool {
    /// The maximum number of names checked.
    const BUDGET: usize = 1024;
    let names = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let of_addresses = names(network).flat_map(|address| names(&address.path()));
    of_addresses.take(BUDGET).any(|name| {
        let is_block = name.file_name().to_str().is_some_and(|name| name.parse::<u8>().is_ok());
        is_block && exists(&name.path()).unwrap_or(false)
    })
}

/// Returns the user ID outside of this user namespace, if it is mapped. With it, a program inside
/// `unshare -U` or a rootless container and one outside find each other.
fn outer_uid(uid: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map_uid(&map, uid).unwrap_or(uid)
}

/// Maps a user ID by the lines of `/proc/PID/uid_map`: first ID inside, first ID outside, count.
fn map_uid(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let numbers = line.split_ascii_whitespace().map(|n| n.parse::<u32>().ok());
        let numbers: Vec<u32> = numbers.collect::<Option<_>>()?;
        let [inside, outside, count] = *numbers.as_slice() else { return None };
        let offset = uid.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{FileType, Mode};

    use super::*;
    use rxe_sys::unix::{NamedSocket, Rights};

    fn directory() -> (tempfile::TempDir, Directory) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::first_of([scratch.path().join("rxe")]);
        (scratch, directory)
    }

    fn addr(ip: &str) -> ScopedAddr {
        ScopedAddr::new(ip.parse().unwrap(), 7)
    }

    #[test]
    fn names_are_for_ever() {
        let (_scratch, directory) = directory();
        let root = directory.path.clone().unwrap();
        let name = |path: Option<PathBuf>| {
            path.unwrap().strip_prefix(&root).unwrap().display().to_string()
        };
        assert_eq!(name(directory.control(&addr("10.0.0.1"), 3)), "10.0.0.1/3");
        assert_eq!(name(directory.inbox(&addr("10.0.0.1"), 3)), "10.0.0.1/3.inbox");
        assert_eq!(name(directory.memory(&addr("10.0.0.1"), 3)), "10.0.0.1/3.memory");
        let service = directory.service(&addr("10.0.0.1"), 0x0106_1234);
        assert_eq!(name(service), "10.0.0.1/service-0000000001061234");
        assert_eq!(name(directory.at(&addr("2001:db8::1"), LOCK)), "2001:db8::1/lock");
        assert_eq!(name(directory.control(&addr("fe80::1"), 255)), "fe80::1%7/255");
    }

    #[test]
    fn the_longest_name_fits_into_a_socket_s_address() {
        let longest = "/dev/shm/rxe-4294967295/ffffffffffffffff/\
                       2001:db81:1111:2222:3333:4444:5555:6666/255.memory";
        assert!(rustix::net::SocketAddrUnix::new(longest).is_ok());
    }

    #[test]
    fn a_directory_that_others_can_enter_or_own_or_have_linked_is_not_used() {
        let scratch = tempfile::tempdir().unwrap();
        let [open, link, file] = ["open", "link", "file"].map(|name| scratch.path().join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o770)).unwrap();
        symlink(scratch.path(), &link).unwrap();
        fs::write(&file, "").unwrap();
        let missing = scratch.path().join("missing/rxe");
        let refused = Directory::first_of([open, link, file, missing]);
        assert!(refused.path.is_none());
        let text = refused.describe();
        for why in ["open: has mode 770, not 700", "link: is no dir", "file: is no dir", "missing"]
        {
            assert!(text.contains(why), "{text}");
        }
        let remedy = format!("`chmod 700 {}`", scratch.path().join("open").display());
        assert_eq!(refused.remedy(), Some(&remedy[..]));
        let good = scratch.path().join("good");
        let found = Directory::first_of([scratch.path().join("open"), good.clone()]);
        assert!(found.path.unwrap().starts_with(&good));
        assert_eq!(fs::metadata(&good).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_was_in_the_way_does_not_part_processes_when_it_is_gone() {
        let scratch = tempfile::tempdir().unwrap();
        let candidates = ["first", "second"].map(|name| scratch.path().join(name));
        let [first, second] = &candidates;
        let meets_in = |root: &Path| {
            let directory = Directory::first_of(candidates.clone());
            assert!(directory.path.as_ref().unwrap().starts_with(root), "{directory:?}");
            directory
        };
        fs::write(first, "").unwrap();
        let directory = meets_in(second);
        let lock = directory.lock(&addr("10.0.0.1")).unwrap();
        let path = directory.control(&addr("10.0.0.1"), 3).unwrap();
        let process = NamedSocket::listen(&path, Rights::Refused).unwrap();
        drop(lock);
        fs::remove_file(first).unwrap();
        meets_in(second);
        assert!(!first.exists(), "looking makes nothing");
        // The process is gone.
        drop(process);
        meets_in(first);
    }

    #[test]
    fn a_lock_has_one_holder_and_leaves_nothing() {
        let (scratch, directory) = directory();
        let a = addr("10.0.0.1");
        let lock = directory.lock(&a).unwrap();
        assert!(lock.is_some());
        assert!(directory.lock(&a).unwrap().is_none());
        let owner = directory.lock_owner(&a);
        assert!(
            matches!(owner, Some(PortOwner::Process { pid, .. }) if pid == std::process::id()),
            "{owner:?}"
        );
        assert!(directory.lock(&addr("10.0.0.2")).unwrap().is_some());
        drop(lock);
        assert_eq!(fs::read_dir(scratch.path().join("rxe")).unwrap().count(), 0);
        assert!(directory.lock(&a).unwrap().is_some());
    }

    #[test]
    fn many_take_and_remove_a_lock_at_once() {
        let (_scratch, directory) = directory();
        let holders = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        if let Some(lock) = directory.lock(&addr("10.0.0.1")).unwrap() {
                            use std::sync::atomic::Ordering::SeqCst;
                            assert_eq!(holders.fetch_add(1, SeqCst), 0);
                            holders.fetch_sub(1, SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_service_has_one_listener() {
        let (_scratch, directory) = directory();
        let a = addr("10.0.0.1");
        assert_eq!(directory.claimed_by(&a, 7), None);
        let claim = directory.claim(&a, 7, 3, ListenAddress::This).unwrap();
        assert!(
            claim.is_some() && directory.claim(&a, 7, 4, ListenAddress::All).unwrap().is_none()
        );
        assert_eq!(directory.claimed_by(&a, 7), Some(3));
        let others = [(8, 3), (1 << 63, 5)]
            .map(|(service, block)| directory.claim(&a, service, block, ListenAddress::This));
        assert!(directory.claimants(&a).iter().eq([3, 5]));
        assert!(directory.claimants(&addr("10.0.0.2")).is_empty());
        drop((claim, others));
        assert!(directory.claimants(&a).is_empty());
        assert_eq!(directory.claimed_by(&a, 7), None);
        // A file that a killed process has left means nothing.
        fs::write(directory.service(&a, 7).unwrap(), [9]).unwrap();
        let claim = directory.claim(&a, 7, 4, ListenAddress::All).unwrap();
        assert!(claim.is_some());
        assert_eq!(directory.claimed_by(&a, 7), Some(4));
    }

    #[test]
    fn a_fifo_in_the_place_of_a_claim_is_not_waited_for() {
        let (_scratch, directory) = directory();
        let a = addr("10.0.0.1");
        drop(directory.claim(&a, 7, 3, ListenAddress::This).unwrap());
        // While the lock is held, the address's directory stays.
        let _lock = directory.lock(&a).unwrap().unwrap();
        let fifo = directory.service(&a, 7).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert_eq!(directory.claimed_by(&a, 7), None);
        assert!(directory.claimants(&a).is_empty());
    }

    #[test]
    fn users_have_one_number_inside_and_outside_of_a_namespace() {
        assert_eq!(map_uid("         0          0 4294967295\n", 1000), Some(1000));
        assert_eq!(map_uid("0 1000 1\n1 100000 65536\n", 0), Some(1000));
        assert_eq!(map_uid("0 1000 1\n1 100000 65536\n", 33), Some(100_032));
        assert_eq!(map_uid("0 1000 1\n", 5), None);
        assert_eq!(map_uid("nonsense", 5), None);
    }
}

//! bpf(2): maps, programs and links. Each is a descriptor that frees its object when it is closed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `BPF_PROG_TYPE_XDP`.
const XDP_PROGRAM: u32 = 6;
/// `BPF_XDP`, the attach type of an XDP program and of its link.
const XDP_ATTACH: u32 = 37;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;

/// The map types used here. The values are those of `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// A hash table.
    Hash = 1,
    /// An array. The keys are indexes; all entries exist from the start and are zero.
    Array = 2,
    /// AF_XDP sockets by index (`BPF_MAP_TYPE_XSKMAP`).
    Xsk = 17,
}

/// One BPF instruction: `struct bpf_insn` of `<linux/bpf.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Instruction {
    /// The opcode: class, operation and mode.
    pub code: u8,
    /// The destination and the source register.
    pub registers: u8,
    /// An offset: in bytes for a memory access, in instructions for a jump.
    pub offset: i16,
    /// A constant, or a file descriptor.
    pub immediate: i32,
}

/// The part of `union bpf_attr` that is used here, in words of 8 bytes.
type Attributes = [u64; 16];

/// Creates a map. `key` and `value` are sizes in bytes.
pub fn create_map(kind: MapKind, key: u32, value: u32, entries: u32) -> io::Result<OwnedFd> {
    let attributes = words(&[pair(kind as u32, key), pair(value, entries)]);
    // SAFETY: the attributes of this command hold no addresses.
    unsafe { open(MAP_CREATE, &attributes) }
}

/// Sets an entry of a map.
///
/// # Safety
/// `key` and `value` must have the key and value size of the map: the kernel reads that many bytes.
pub unsafe fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let attributes = words(&[number(map), key.as_ptr() as u64, value.as_ptr() as u64, 0]);
    // SAFETY: the kernel reads a key and a value, whose lengths the caller guarantees.
    unsafe { call(MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

/// Removes an entry from a map.
///
/// # Safety
/// `key` must have the key size of the map: the kernel reads that many bytes.
pub unsafe fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let attributes = words(&[number(map), key.as_ptr() as u64]);
    // SAFETY: as in `update`.
    unsafe { call(MAP_DELETE_ELEM, &attributes) }.map(drop)
}

/// Loads an XDP program into the kernel, which verifies it. The name is `rxe_xdp`, the licence MIT;
/// `flags` are `BPF_F_*`.
pub fn load_xdp(program: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    const LICENSE: &[u8] = b"MIT\0";
    let len = u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attributes = words(&[
        pair(XDP_PROGRAM, len),
        program.as_ptr() as u64,
        LICENSE.as_ptr() as u64,
        0,
        0,
        pair(0, flags),
        u64::from_ne_bytes(*b"rxe_xdp\0"),
    ]);
    attributes[8] = pair(0, XDP_ATTACH);
    // SAFETY: the kernel reads `len` instructions, and the licence up to its zero byte. There is no
    // log.
    unsafe { open(PROG_LOAD, &attributes) }
}

/// Attaches an XDP program to an interface until the returned link is closed. `flags` are
/// `XDP_FLAGS_*`.
pub fn link_xdp(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let attributes = words(&[pair(raw(program), interface), pair(XDP_ATTACH, flags)]);
    // SAFETY: the attributes of this command hold no addresses.
    unsafe { open(LINK_CREATE, &attributes) }
}

/// Runs an XDP program on a frame and returns its verdict.
pub fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    let len = u32::try_from(frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attributes =
        words(&[pair(raw(program), 0), pair(len, 0), frame.as_ptr() as u64, 0, pair(1, 0)]);
    let at = attributes.as_mut_ptr();
    // SAFETY: the kernel reads `len` bytes of the frame, and writes into the attributes only.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, at, size_of::<Attributes>()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let [_, _, _, _, a, b, c, d] = attributes[0].to_ne_bytes();
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Calls bpf(2) and takes ownership of the descriptor that the command returns.
///
/// # Safety
/// As [`call`]. In addition, the command must return a descriptor.
unsafe fn open(command: libc::c_int, attributes: &Attributes) -> io::Result<OwnedFd> {
    // SAFETY: the caller upholds the contract of `call`.
    let fd = with_locked_memory(|| unsafe { call(command, attributes) })?;
    // SAFETY: the command has just created this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `call`, and on EPERM once more without a limit on locked memory.
///
/// Before Linux 5.11 maps and programs count as locked memory (RLIMIT_MEMLOCK, usually 64 KiB), and
/// a call that exceeds the limit fails with EPERM. The process can lift the limit only with
/// CAP_SYS_RESOURCE.
fn with_locked_memory<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let refused = match call() {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => e,
        done => return done,
    };
    let limit = getrlimit(Resource::Memlock);
    let none = Rlimit { current: None, maximum: None };
    if limit.current.is_none() || setrlimit(Resource::Memlock, none).is_err() {
        return Err(refused);
    }
    let done = call();
    // Lowering a limit needs no privilege.
    let _ = setrlimit(Resource::Memlock, limit);
    done
}

/// Calls bpf(2).
///
/// # Safety
/// Every address in `attributes` must be valid for the access that the kernel makes in this
/// command.
unsafe fn call(command: libc::c_int, attributes: &Attributes) -> io::Result<libc::c_int> {
    let at = attributes.as_ptr();
    // SAFETY: the kernel reads `size_of::<Attributes>()` bytes, and follows addresses as the caller
    // allows.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<Attributes>()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(rc).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn words(first: &[u64]) -> Attributes {
    let mut all = [0; 16];
    all[..first.len()].copy_from_slice(first);
    all
}

/// Packs two adjacent 4-byte fields into one word.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn number(fd: BorrowedFd<'_>) -> u64 {
    pair(raw(fd), 0)
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    // The number of an open descriptor is never negative.
    u32::try_from(fd.as_fd().as_raw_fd()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_permitted<T>() -> io::Result<T> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn the_limit_of_locked_memory_is_lifted_for_one_more_call_only() {
        let before = getrlimit(Resource::Memlock);
        let mut seen = Vec::new();
        let done = with_locked_memory(|| {
            seen.push(getrlimit(Resource::Memlock).current);
            if seen.last() == Some(&None) { Ok(()) } else { not_permitted() }
        });
        assert_eq!(getrlimit(Resource::Memlock), before);
        // A process that may not lift the limit makes only one call.
        assert_eq!(done.is_ok(), seen.last() == Some(&None), "{seen:?}");
        assert!(seen.len() == 1 || seen == [before.current, None], "{seen:?}");
    }

    #[test]
    fn who_is_not_permitted_is_told_so() {
        let mut calls = 0;
        let done: io::Result<()> = with_locked_memory(|| {
            calls += 1;
            not_permitted()
        });
        assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(calls <= 2);
    }
}

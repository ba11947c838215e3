//! bpf(2): maps, programs and links. Everything that it makes is a descriptor; what hangs on a
//! descriptor ends with it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `BPF_PROG_TYPE_XDP`.
const XDP_PROGRAM: u32 = 6;
/// `BPF_XDP`, what a program or a link of this kind is attached as.
const XDP_ATTACH: u32 = 37;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;

/// The kinds of maps that are used here, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Keys of any form.
    Hash = 1,
    /// Keys are indexes. All entries exist, as zeros.
    Array = 2,
    /// AF_XDP sockets by index.
    Xsk = 17,
}

/// One instruction. `<linux/bpf.h>`, `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Instruction {
    /// What it does: class, operation and mode.
    pub code: u8,
    /// Destination and source register.
    pub registers: u8,
    /// Of memory in bytes, or of a jump in instructions.
    pub offset: i16,
    /// A constant, or a file descriptor.
    pub immediate: i32,
}

/// The part of `union bpf_attr` that is used here, in words of 8 bytes.
type Attributes = [u64; 16];

/// Makes a map.
pub fn create_map(kind: MapKind, key: u32, value: u32, entries: u32) -> io::Result<OwnedFd> {
    let attributes = words(&[pair(kind as u32, key), pair(value, entries)]);
    // SAFETY: the attributes of this command hold no addresses.
    unsafe { open(MAP_CREATE, &attributes) }
}

/// Sets an entry of a map.
///
/// # Safety
/// `key` and `value` must be as long as the keys and values of the map: the kernel reads that many bytes.
pub unsafe fn update(map: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> io::Result<()> {
    let attributes = words(&[number(map), key.as_ptr() as u64, value.as_ptr() as u64, 0]);
    // SAFETY: the kernel reads a key and a value, whose lengths the caller vouches for.
    unsafe { call(MAP_UPDATE_ELEM, &attributes) }.map(drop)
}

/// Removes an entry from a map.
///
/// # Safety
/// `key` must be as long as the keys of the map: the kernel reads that many bytes.
pub unsafe fn delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<()> {
    let attributes = words(&[number(map), key.as_ptr() as u64]);
    // SAFETY: as in `update`.
    unsafe { call(MAP_DELETE_ELEM, &attributes) }.map(drop)
}

/// Has the kernel check an XDP program and load it, under the name `rxe_xdp` and the MIT licence. `flags` are
/// `BPF_F_*`.
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
    // SAFETY: the kernel reads `len` instructions and the licence up to its zero. There is no log.
    unsafe { open(PROG_LOAD, &attributes) }
}

/// Attaches an XDP program to an interface, until the result is closed. `flags` are `XDP_FLAGS_*`.
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
    // SAFETY: the kernel reads `len` bytes of the frame, and writes into the attributes.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, at, size_of::<Attributes>()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let [_, _, _, _, a, b, c, d] = attributes[0].to_ne_bytes();
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// # Safety
/// As [`call`]; and the command must return a descriptor.
unsafe fn open(command: libc::c_int, attributes: &Attributes) -> io::Result<OwnedFd> {
    // SAFETY: the caller's.
    let fd = with_locked_memory(|| unsafe { call(command, attributes) })?;
    // SAFETY: the command has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Before Linux 5.11 maps and programs count as locked memory (RLIMIT_MEMLOCK, mostly 64 KiB), and the answer
/// to what is too much is EPERM. Then the call is made once more without a limit, if the process may lift it
/// (CAP_SYS_RESOURCE).
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
    // A limit may always be lowered.
    let _ = setrlimit(Resource::Memlock, limit);
    done
}

/// # Safety
/// Addresses in the attributes must be valid for what the kernel does with them in this command.
unsafe fn call(command: libc::c_int, attributes: &Attributes) -> io::Result<libc::c_int> {
    let at = attributes.as_ptr();
    // SAFETY: the kernel reads that many bytes, and follows addresses as the caller allows.
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

/// Two neighbours of 4 bytes.
fn pair(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn number(fd: BorrowedFd<'_>) -> u64 {
    pair(raw(fd), 0)
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    // An open descriptor's number is not negative.
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
        // Without the right to lift it there is one call.
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

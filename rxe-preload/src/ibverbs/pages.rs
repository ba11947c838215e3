//! Checks that the memory that a program registers is mapped.
//!
//! A kernel driver pins the pages, which fails if they are not mapped.
//! Here the pages are populated (MADV_POPULATE_READ, or _WRITE if the region may be written), which
//! fails in the same cases. So the mistake is found in the call that registers the memory, and not
//! when a peer writes.
//!
//! Pinning uses memory for the whole region, and so would populating, even if the program never
//! fills the region. So in regions larger than [`WHOLE`] only the last page of each mapping is
//! populated. That is enough: one mapping has one protection, and if its file is too short, the
//! last page is missing.
//!
//! Kernels before 5.14 cannot populate; then `/proc/self/maps` is checked instead.

use std::ffi::c_void;
use std::fs;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rxe_verbs::Access;

use crate::ffi::{Failure, Outcome};

/// Regions of up to this many bytes are populated completely.
const WHOLE: usize = 4 << 20;

/// Fails if the memory does not permit the accesses of `access`.
pub(super) fn check(addr: *mut c_void, length: usize, access: Access) -> Outcome {
    if length == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size();
    let start = addr.addr() & !(page - 1);
    let end = addr.addr().checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end else {
        return Err(Failure::new(libc::EINVAL, "the memory passes the end of the address space"));
    };
    let write = access.intersects(
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND,
    );
    if end - start <= WHOLE {
        return match populate(addr, start, end, write) {
            Ok(()) => Ok(()),
            Err(e) => explain(e, &mappings(), start, end, write),
        };
    }
    let mappings = mappings();
    missing(&mappings, start, end, write)?;
    for mapping in mappings.iter().filter(|mapping| mapping.start < end && start < mapping.end) {
        let last = mapping.end.min(end) - page;
        if let Err(e) = populate(addr, last, last + page, write) {
            return explain(e, &mappings, start, end, write);
        }
    }
    Ok(())
}

fn populate(addr: *mut c_void, start: usize, end: usize, write: bool) -> Result<(), Errno> {
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: accesses pages of the program as a load or store would, and changes none of them.
    unsafe { madvise(addr.map_addr(|_| start), end - start, advice) }
}

/// Returns the error to report if the pages could not be populated.
fn explain(e: Errno, mappings: &[Mapping], start: usize, end: usize, write: bool) -> Outcome {
    missing(mappings, start, end, write)?;
    match e {
        Errno::FAULT => Err(Failure::new(
            libc::EFAULT,
            "the file that is mapped there is shorter than the mapping: extend it (ftruncate) before \
             it is registered",
        )),
        Errno::HWPOISON => Err(Failure::new(libc::EFAULT, "a page of the memory is damaged")),
        Errno::NOMEM if mappings.is_empty() => Err(not_mapped(start)),
        Errno::NOMEM => Err(Failure::new(libc::ENOMEM, "there is no memory for all of its pages")),
        // The kernel is old, or the memory belongs to a device and can be copied but not populated.
        _ => Ok(()),
    }
}

/// Fails if a part of the range is not mapped, or its protection forbids the access.
fn missing(mappings: &[Mapping], start: usize, end: usize, write: bool) -> Outcome {
    if mappings.is_empty() {
        return Ok(());
    }
    let mut at = start;
    for mapping in mappings.iter().filter(|mapping| mapping.end > start && mapping.start < end) {
        if mapping.start > at {
            return Err(not_mapped(at));
        }
        let refused = match (mapping.read, mapping.write) {
            (false, false) => "cannot be read (PROT_NONE)",
            (true, false) if write => {
                "is read-only: map it with PROT_WRITE, or register it without \
                 IBV_ACCESS_LOCAL_WRITE and rights of peers to write"
            }
            _ => {
                at = mapping.end;
                continue;
            }
        };
        return Err(Failure::new(libc::EFAULT, format!("the memory at {at:#x} {refused}")));
    }
    if at < end { Err(not_mapped(at)) } else { Ok(()) }
}

fn not_mapped(at: usize) -> Failure {
    let why =
        format!("not all of the memory is mapped: nothing is at {at:#x}; is the length right?");
    Failure::new(libc::EFAULT, why)
}

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
    read: bool,
    write: bool,
}

/// Returns the mappings of the process by rising addresses. Empty if they cannot be read.
fn mappings() -> Vec<Mapping> {
    let text = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (read, write) = (rest.starts_with('r'), rest.as_bytes().get(1) == Some(&b'w'));
    Some(Mapping { start: number(start)?, end: number(end)?, read, write })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const ALL: i32 = libc::PROT_READ | libc::PROT_WRITE;

    fn map(len: usize, protection: i32, fd: i32) -> *mut c_void {
        let kind = if fd < 0 {
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
        } else {
            libc::MAP_SHARED
        };
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, kind, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    }

    fn refusal(at: *mut c_void, len: usize, access: Access) -> (i32, String) {
        let failure = check(at, len, access).unwrap_err();
        (failure.errno, failure.text.unwrap_or_default())
    }

    #[test]
    fn memory_that_is_not_there_is_refused_in_small_and_large_regions() {
        for len in [4 * PAGE, WHOLE + 4 * PAGE] {
            let at = map(len, ALL, -1);
            check(at, len, Access::LOCAL_WRITE).unwrap();
            // SAFETY: part of the mapping just created.
            unsafe { libc::mprotect(at.byte_add(2 * PAGE), PAGE, libc::PROT_READ) };
            let (errno, why) = refusal(at, len, Access::LOCAL_WRITE);
            assert!(errno == libc::EFAULT && why.contains("is read-only"), "{errno} {why}");
            check(at, len, Access::REMOTE_READ).unwrap();
            // SAFETY: as above.
            unsafe { libc::mprotect(at.byte_add(2 * PAGE), PAGE, libc::PROT_NONE) };
            let (errno, why) = refusal(at, len, Access::REMOTE_READ);
            assert!(errno == libc::EFAULT && why.contains("PROT_NONE"), "{errno} {why}");
            // SAFETY: as above.
            unsafe { libc::munmap(at.byte_add(2 * PAGE), PAGE) };
            let (errno, why) = refusal(at, len, Access::LOCAL_WRITE);
            assert!(
                errno == libc::EFAULT && why.contains("not all of the memory"),
                "{errno} {why}"
            );
            // SAFETY: as above.
            unsafe { libc::munmap(at, len) };
        }
    }

    /// Every CPU can read a page that can be written, and kernel drivers pin it for writing.
    #[test]
    fn memory_that_can_only_be_written_is_accepted() {
        for len in [4 * PAGE, WHOLE + 4 * PAGE] {
            let at = map(len, libc::PROT_WRITE, -1);
            check(at, len, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
            // SAFETY: the mapping just created.
            unsafe { libc::munmap(at, len) };
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        use std::os::fd::AsRawFd;
        for len in [4 * PAGE, WHOLE + 4 * PAGE] {
            let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, len as u64).unwrap();
            let at = map(len, ALL, file.as_raw_fd());
            check(at, len, Access::LOCAL_WRITE).unwrap();
            rustix::fs::ftruncate(&file, (len - PAGE) as u64).unwrap();
            let (errno, why) = refusal(at, len, Access::LOCAL_WRITE);
            assert!(errno == libc::EFAULT && why.contains("is shorter"), "{errno} {why}");
            // SAFETY: the mapping just created.
            unsafe { libc::munmap(at, len) };
        }
    }

    #[test]
    fn a_huge_region_takes_no_memory() {
        const HUGE: usize = 64 << 30;
        let resident = || {
            let statm = fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        let at = map(HUGE, ALL, -1);
        let before = resident();
        check(at, HUGE, Access::LOCAL_WRITE).unwrap();
        assert!(resident() < before + (64 << 20) / PAGE);
        // SAFETY: the mapping just created.
        unsafe { libc::munmap(at, HUGE) };
    }
}

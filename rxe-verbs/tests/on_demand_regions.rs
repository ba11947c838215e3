//! On-demand paging: memory that is mapped and unmapped while it is registered.

mod common;

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use common::*;
use rxe_verbs::*;

const PAGE: usize = 4096;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// Pages at an address that stays reserved while they become accessible and inaccessible.
struct Pages {
    at: *mut c_void,
    len: usize,
}

impl Pages {
    /// Reserves `len` bytes of address space, which are not accessible.
    fn reserved(len: usize) -> Self {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, len }
    }

    fn protect(&self, protection: i32) {
        // SAFETY: of this mapping, to which no reference leads.
        assert_eq!(unsafe { libc::mprotect(self.at, self.len, protection) }, 0);
    }

    fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.at.cast()).unwrap()
    }

    fn first(&self) -> u8 {
        // SAFETY: called while the pages are accessible, and nobody writes them.
        unsafe { self.ptr().read_volatile() }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nothing is registered any more, or its accesses may fault.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Connects a new pair of queue pairs, because each fault ends one.
fn renew(a: &mut Side, b: &mut Side) {
    (a.qp, b.qp) = (a.pd.qp(&a.cq).build().unwrap(), b.pd.qp(&b.cq).build().unwrap());
    connect(&a.qp, &b.qp);
}

#[test]
fn pages_may_come_after_the_region_and_go_before_it() {
    handle_memory_faults().unwrap();
    let (mut a, mut b) = pair();
    let pages = Pages::reserved(4 * PAGE);
    let at = pages.ptr().addr().get() as u64;
    // SAFETY: faults are handled, and no reference leads to the pages.
    let region = unsafe { b.pd.register_raw(pages.ptr(), pages.len, at, ALL | Access::ON_DEMAND) };
    let region = region.unwrap();
    let own = a.region(4 * PAGE);
    own.write_at(0, &[7; 4 * PAGE]).unwrap();
    for _ in 0..2 {
        pages.protect(libc::PROT_NONE);
        a.qp.write(1, &[own.slice(..)], region.remote(0)).post().unwrap();
        assert_eq!(a.done().status, Status::RemoteAccess);
        renew(&mut a, &mut b);
        b.qp.write(2, &[region.slice(..8)], own.remote(0)).post().unwrap();
        assert_eq!(b.done().status, Status::LocalProtection);
        let refused = region.write_at(0, b"by the program").unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
        renew(&mut a, &mut b);
        pages.protect(libc::PROT_READ | libc::PROT_WRITE);
        a.qp.write(1, &[own.slice(..)], region.remote(0)).post().unwrap();
        a.ok();
        assert_eq!(pages.first(), 7);
    }
}

#[test]
fn one_region_has_all_memory() {
    handle_memory_faults().unwrap();
    let (mut a, mut b) = pair();
    // SAFETY: faults are handled, and requests name only what no reference leads to.
    let all = unsafe { b.pd.register_address_space(ALL) }.unwrap();
    assert!(all.access().contains(Access::ON_DEMAND));
    // SAFETY: it is refused.
    let zero_based = unsafe { b.pd.register_address_space(ALL | Access::ZERO_BASED) };
    assert_eq!(zero_based.unwrap_err().errno(), libc::EINVAL);
    let pages = Pages::reserved(PAGE);
    pages.protect(libc::PROT_READ | libc::PROT_WRITE);
    let remote = |addr| Remote { addr, rkey: all.rkey() };
    let at = pages.ptr().addr().get() as u64;
    a.qp.write_bytes(1, b"mapped later", remote(at)).post().unwrap();
    a.ok();
    assert_eq!(pages.first(), b'm');
    assert_eq!(all.remote(usize::try_from(at).unwrap() - 1), remote(at));
    for wrong in [0, 1, 4095, 1 << 62, u64::MAX >> 1, 1 << 63, u64::MAX - 8] {
        a.qp.write_bytes(1, b"nothing is there", remote(wrong)).post().unwrap();
        assert_eq!(a.done().status, Status::RemoteAccess, "{wrong:#x}");
        renew(&mut a, &mut b);
    }
}

#[test]
fn prefetching_makes_pages_present_and_says_what_is_wrong() {
    let (a, b) = pair();
    let pages = Pages::reserved(8 * PAGE);
    pages.protect(libc::PROT_READ | libc::PROT_WRITE);
    let present = || {
        let mut map = [0u8; 8];
        // SAFETY: a byte for each page.
        assert_eq!(unsafe { libc::mincore(pages.at, pages.len, map.as_mut_ptr()) }, 0);
        map.iter().filter(|page| **page & 1 == 1).count()
    };
    // SAFETY: the pages outlive the regions, and no reference leads to them.
    let region = |access| unsafe { b.pd.register_raw(pages.ptr(), pages.len, 0x1000, access) };
    let (region, read_only) =
        (region(ALL | Access::ON_DEMAND).unwrap(), region(Access::ON_DEMAND).unwrap());
    let other = b.device.create_pd().unwrap();
    let errno = |list: &[Sge], how| b.pd.prefetch(list, how).map_err(|e| e.errno());

    assert_eq!(errno(&[region.slice(..)], Prefetch::NoFault), Ok(()));
    assert_eq!(present(), 0);
    let two = [region.slice(100..200), region.slice(PAGE + 1..2 * PAGE)];
    assert_eq!(errno(&two, Prefetch::Write), Ok(()));
    assert_eq!(present(), 2);
    assert_eq!(errno(&[read_only.slice(..)], Prefetch::Read), Ok(()));
    assert_eq!(present(), 8);

    let beyond = Sge { length: 8 * 4096 + 1, ..region.slice(..) };
    let unknown = Sge { lkey: Key::new(region.lkey().value() ^ 0x100), ..region.slice(..) };
    let pinned = b.region(64);
    for (sge, how, expected) in [
        (read_only.slice(..), Prefetch::Write, libc::EPERM),
        (beyond, Prefetch::Read, libc::EFAULT),
        (unknown, Prefetch::Read, libc::ENOENT),
        (pinned.slice(..), Prefetch::Read, libc::EINVAL),
        (a.region(64).slice(..), Prefetch::Read, libc::ENOENT),
    ] {
        assert_eq!(errno(&[sge], how), Err(expected), "{sge:?}");
        assert_eq!(errno(&[sge], Prefetch::NoFault).is_ok(), how == Prefetch::Write);
    }
    let foreign = other.prefetch(&[region.slice(..)], Prefetch::Read).unwrap_err();
    assert_eq!(foreign.errno(), libc::EPERM, "{foreign}");
    pages.protect(libc::PROT_READ);
    let protected = b.pd.prefetch(&[region.slice(..)], Prefetch::Write).unwrap_err();
    assert!(protected.faulted() && protected.errno() == libc::EFAULT, "{protected}");
    assert_eq!(errno(&[region.slice(..)], Prefetch::Read), Ok(()));
}

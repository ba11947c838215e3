//! XRC domains. IBTA annex A14.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use super::abi::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use super::objects::{Context, FileId, Xrcd};
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

fn identity(fd: c_int) -> Outcome<FileId> {
    // SAFETY: borrowed for this call from the program, which keeps it open meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(fd).map_err(|e| Failure::plain(e.raw_os_error()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens an XRC domain.
/// A file identifies it: opening the same file again returns the same domain. This holds only
/// within a process, because each process has its own engine and domains.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an open context and the caller's structure.
    let (owner, attr) = unsafe { (Context::of(context), &*attr) };
    let make = || -> Outcome<*mut ibv_xrcd> {
        const FD: u32 = 1;
        const OFLAGS: u32 = 2;
        may_fail("ibv_open_xrcd")?;
        if attr.comp_mask != FD | OFLAGS {
            return Err(Failure::new(libc::EINVAL, "fd and oflags are both needed"));
        }
        let create = attr.oflags & libc::O_CREAT != 0;
        let exclusive = attr.oflags & libc::O_EXCL != 0;
        let device = owner.device()?;
        let new = || Ok::<_, Failure>(device.create_xrc_domain()?);
        if attr.fd == -1 {
            if !create {
                let why = "an XRC domain without a file needs O_CREAT";
                return Err(Failure::new(libc::EINVAL, why));
            }
            return Ok(Xrcd::into_ptr(context, new()?, None));
        }
        let file = identity(attr.fd)?;
        let mut domains = owner.xrc_domains.lock();
        let domain = match domains.get(&file) {
            Some(_) if create && exclusive => return Err(Failure::plain(libc::EINVAL)),
            Some((domain, _)) => domain.clone(),
            None if create => new()?,
            None => {
                let why = "there is no XRC domain for this file yet: give O_CREAT";
                return Err(Failure::new(libc::EINVAL, why));
            }
        };
        domains.entry(file).or_insert_with(|| (domain.clone(), 0)).1 += 1;
        Ok(Xrcd::into_ptr(context, domain, Some(file)))
    };
    pointer_of("ibv_open_xrcd", make())
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: a domain, whose context is open.
    let this = unsafe { Xrcd::of(xrcd) };
    // SAFETY: as above.
    let owner = unsafe { Context::of(this.verbs.context) };
    if let Err(failure) = owner.check_open() {
        return errno_of("ibv_close_xrcd", Err(failure));
    }
    if !owner.is_own() {
        return 0;
    }
    let mut domains = owner.xrc_domains.lock();
    let shared = this.file.and_then(|file| domains.get_mut(&file));
    let last = shared.as_ref().is_none_or(|(_, handles)| *handles == 1);
    // The copy of the domain in the table counts as a user too.
    if last && this.domain.users() > usize::from(shared.is_some()) {
        let busy = Failure::in_use(this.domain.used_by(), "the XRC domain");
        return errno_of("ibv_close_xrcd", Err(busy));
    }
    if let Some((_, handles)) = shared {
        *handles -= 1;
    }
    if last && let Some(file) = this.file {
        domains.remove(&file);
    }
    drop(domains);
    // SAFETY: from `into_ptr`; the program gives it up.
    unsafe { owner.alive.free(xrcd.cast::<Xrcd>()) };
    0
}

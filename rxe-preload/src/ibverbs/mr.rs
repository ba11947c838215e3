//! Memory regions. IBTA 10.6, 11.2.8.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

use rxe_verbs::{Access, Key, MemoryRegion, Prefetch, Reregistration, Sge};

use super::abi::{ibv_mr, ibv_pd, ibv_sge};
use super::mapping::Mapping;
use super::objects::{Context, Ends, Handle, Importable, Mr, Pd};
use super::{of_host, pages};
use crate::fault_guard;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, pointer_of};

/// The flag of `ibv_access_flags` for huge pages, and the flags that a provider may ignore.
const HUGETLB: c_uint = 1 << 7;
const OPTIONAL: c_uint = 0x3ff0_0000;

/// Registers memory as a region.
/// # Safety
/// As for `ibv_reg_mr`: the memory stays until the region is deregistered.
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Outcome<*mut ibv_mr> {
    if pd.is_null() {
        return Err(Failure::null("the protection domain"));
    }
    may_fail("ibv_reg_mr")?;
    // SAFETY: a protection domain.
    let (context, owner) = unsafe { ((*pd).context, Pd::known(pd)?) };
    // SAFETY: its context is open.
    unsafe { Context::of(context) }.check()?;
    let access = access(flags)?;
    let on_demand = access.contains(Access::ON_DEMAND);
    if addr.is_null() && length == usize::MAX && on_demand {
        if iova != 0 {
            let why = "all memory (address NULL, length SIZE_MAX) is named by its own addresses: iova is 0";
            return Err(Failure::new(libc::EINVAL, why));
        }
        fault_guard::install();
        // SAFETY: `ibv_reg_mr`'s own contract: the memory that requests name is theirs to use.
        // Faults are handled.
        let region = unsafe { owner.domain.register_address_space(access) }?;
        return Ok(into_ptr(pd, addr, length, region, None));
    }
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    let first = NonNull::new(addr.cast()).unwrap_or(NonNull::dangling());
    if addr.is_null() && length > 0 {
        return Err(Failure::new(libc::EFAULT, "memory at address 0 cannot be registered"));
    }
    if !on_demand {
        pages::check(addr, length, access)?;
    }
    // The program may have installed a signal handler since the device was opened.
    fault_guard::install();
    // SAFETY: `ibv_reg_mr`'s own contract: the memory stays until the region is deregistered. No
    // Rust reference to a program's memory exists. Faults are handled.
    let region = unsafe { owner.domain.register_raw(first, length, start, access) }?;
    Ok(into_ptr(pd, addr, length, region, None))
}

/// Creates a region for the program, which frees it with `ibv_dereg_mr`.
/// The memory is at `addr`, or in the mapping if there is one.
pub(super) fn into_ptr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    region: MemoryRegion,
    mapping: Option<Mapping>,
) -> *mut ibv_mr {
    // SAFETY: a protection domain.
    let context = unsafe { (*pd).context };
    let made = Handle::new(context);
    let verbs = ibv_mr {
        context,
        pd,
        addr,
        length,
        handle: made.number(),
        lkey: region.lkey().value(),
        rkey: region.rkey().value(),
    };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(context) };
    let at = mapping.as_ref().map_or(addr, Mapping::addr).addr().max(1);
    owner.watch.registered(verbs.rkey, region.addr(), region.len() as u64, at, region.access());
    let object = owner.alive.make(Mr { verbs, made, region: Some(region), mapping });
    owner.imports.made(made.number(), Importable::Mr, object.cast());
    object.cast()
}

/// Converts access flags of a program. Huge pages and optional flags have no effect.
pub(super) fn access(flags: c_uint) -> Outcome<Access> {
    let without_effect = HUGETLB | OPTIONAL;
    Access::from_bits(flags & !without_effect).ok_or_else(|| {
        Failure::new(libc::EINVAL, format!("access flags {flags:#x}: there are no such flags"))
    })
}

pub(super) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let iova = addr.addr() as u64;
    // SAFETY: the caller's promise.
    pointer_of("ibv_reg_mr", unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    let made = unsafe { register(pd, addr, length, iova, access.cast_unsigned()) };
    pointer_of("ibv_reg_mr_iova", made)
}

pub(super) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    pointer_of("ibv_reg_mr", unsafe { register(pd, addr, length, iova, access) })
}

pub(super) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: a region.
    let this = match may_fail("ibv_dereg_mr").and_then(|()| unsafe { Mr::known(mr) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_dereg_mr", Err(failure)),
    };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(this.verbs.context) };
    if owner.is_own() {
        let Some(region) = &this.region else {
            return errno_of("ibv_dereg_mr", Err(Mr::gone()));
        };
        let windows = region.windows();
        if windows > 0 {
            // The region stays valid, so the program may try again.
            let why = format!(
                "memory windows ({windows}) are bound to the region: unbind or free them first"
            );
            return errno_of("ibv_dereg_mr", Err(Failure::new(libc::EBUSY, why)));
        }
        owner.watch.deregistered(this.verbs.rkey);
        let handle = this.verbs.handle;
        // SAFETY: from `into_ptr`; the program gives it up, and no other user calls anything on it.
        unsafe { (*mr.cast::<Mr>()).end() };
        if owner.imports.destroyed(handle) {
            // SAFETY: as above; no other user has it.
            unsafe { owner.alive.free(mr.cast::<Mr>()) };
        }
    }
    0
}

/// Returns 0 or an `ibv_rereg_mr_err_code`. On an error the region is not changed.
/// As in rdma-core, INPUT means that libibverbs refuses the call, and CMD that the device does.
pub(super) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const IBV_REREG_MR_ERR_INPUT: c_int = -1;
    const IBV_REREG_MR_ERR_CMD: c_int = -4;
    const VERB: &str = "ibv_rereg_mr";
    // SAFETY: a region.
    let checked = match unsafe { Mr::known(mr) } {
        Ok(Mr { mapping: Some(_), .. }) => {
            let why = "regions of DMA buffers cannot be changed: register another";
            Err(Failure::new(libc::EINVAL, why))
        }
        _ => check_change(flags, pd, addr, length, access),
    };
    if let Err(failure) = checked {
        errno_of(VERB, Err(failure));
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: a region, which no other thread uses meanwhile; and the caller's promise.
    let outcome = unsafe { reregister(&mut *mr.cast(), flags, pd, addr, length, access) };
    if errno_of(VERB, outcome) == 0 { 0 } else { IBV_REREG_MR_ERR_CMD }
}

/// The flags of `ibv_rereg_mr_flags`.
const TRANSLATION: c_int = 1;
const PD: c_int = 1 << 1;
const ACCESS: c_int = 1 << 2;

/// Checks that the parameters of a re-registration are consistent.
fn check_change(
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Outcome {
    let why = if flags == 0 || flags & !(TRANSLATION | PD | ACCESS) != 0 {
        format!("flags {flags:#x}: 1, 2 and 4 have a meaning")
    } else if flags & PD != 0 && pd.is_null() {
        "the protection domain is missing".into()
    } else if flags & TRANSLATION != 0 && (addr.is_null() || length == 0) {
        format!("the new memory is {length} bytes at {addr:p}: both must be given")
    } else if flags & ACCESS == 0 && access != 0 {
        "access rights are given without IBV_REREG_MR_CHANGE_ACCESS".into()
    } else {
        return Ok(());
    };
    Err(Failure::new(libc::EINVAL, why))
}

/// Re-registers a memory region, whose keys may change.
/// # Safety
/// As for registering memory.
unsafe fn reregister(
    mr: &mut Mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags_of_access: c_int,
) -> Outcome {
    mr.made.check("the memory region", mr.verbs.context, mr.verbs.handle)?;
    // SAFETY: its context is open.
    unsafe { Context::of(mr.verbs.context) }.check()?;
    let region = mr.region.as_mut().ok_or_else(Mr::gone)?;
    let mut change = Reregistration::new();
    let mut rights = region.access();
    if flags & PD != 0 {
        // SAFETY: a protection domain.
        change = change.pd(&unsafe { Pd::known(pd) }?.domain);
    }
    if flags & ACCESS != 0 {
        rights = access(flags_of_access.cast_unsigned())?;
        change = change.access(rights);
    }
    if flags & TRANSLATION != 0 {
        let first = NonNull::new(addr.cast::<u8>());
        let first = first.ok_or_else(|| Failure::new(libc::EINVAL, "the memory is missing"))?;
        // SAFETY: `ibv_rereg_mr`'s own contract, as for registering.
        change = unsafe { change.raw_memory(first, length, addr.addr() as u64) };
    } else {
        // SAFETY: as above; `pages::check` asks the kernel whether the memory can be written.
        change = unsafe { change.writable() };
    }
    if flags & (ACCESS | TRANSLATION) != 0 {
        let memory = (flags & TRANSLATION != 0).then_some((addr, length));
        let (addr, length) = memory.unwrap_or((mr.verbs.addr, mr.verbs.length));
        let own = memory.is_none() && region.is_device_memory();
        if !own && !rights.contains(Access::ON_DEMAND) {
            pages::check(addr, length, rights)?;
        }
    }
    let old = mr.verbs.rkey;
    region.reregister(change)?;
    if flags & PD != 0 {
        mr.verbs.pd = pd;
    }
    if flags & TRANSLATION != 0 {
        (mr.verbs.addr, mr.verbs.length) = (addr, length);
    }
    (mr.verbs.lkey, mr.verbs.rkey) = (region.lkey().value(), region.rkey().value());
    // SAFETY: its context is open.
    let watch = unsafe { &Context::of(mr.verbs.context).watch };
    watch.deregistered(old);
    let (start, len) = (region.addr(), region.len() as u64);
    watch.registered(mr.verbs.rkey, start, len, mr.verbs.addr.addr(), rights);
    Ok(())
}

/// Prefetches memory of on-demand regions.
/// The pages are present when this returns, with or without IBV_ADVISE_MR_FLAG_FLUSH. Without the
/// flag, memory that cannot be made present is not an error.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *const ibv_sge,
    count: u32,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's.
    errno_of("ibv_advise_mr", unsafe { advise(pd, advice, flags, list, count) })
}

unsafe fn advise(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *const ibv_sge,
    count: u32,
) -> Outcome {
    const FLUSH: u32 = 1;
    let how = match advice {
        0 => Prefetch::Read,
        1 => Prefetch::Write,
        2 => Prefetch::NoFault,
        _ => {
            let why = format!("advice {advice}: 0, 1 and 2 (IBV_ADVISE_MR_ADVICE_) have a meaning");
            return Err(Failure::new(libc::EOPNOTSUPP, why));
        }
    };
    if flags & !FLUSH != 0 || count == 0 || list.is_null() {
        let why = format!(
            "flags {flags:#x} and {count} elements: IBV_ADVISE_MR_FLAG_FLUSH is the only flag, and at \
             least one element is needed"
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    if pd.is_null() {
        return Err(Failure::null("the protection domain"));
    }
    // SAFETY: a protection domain, and its context is open.
    let owner = unsafe {
        Context::of((*pd).context).check()?;
        Pd::known(pd)?
    };
    // SAFETY: the caller's list has `count` elements.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let list: Vec<_> = list
        .iter()
        .map(|sge| Sge { addr: sge.addr, length: sge.length, lkey: Key::new(sge.lkey) })
        .collect();
    match owner.domain.prefetch(&list, how) {
        Err(e) if e.faulted() && flags & FLUSH == 0 => Ok(()),
        done => Ok(done?),
    }
}

/// Does nothing for our devices: the CPU copies memory, so a fork does no harm.
/// The host's devices need the call.
pub(super) extern "C" fn ibv_fork_init() -> c_int {
    of_host::fork_init().unwrap_or(0)
}

pub(super) extern "C" fn ibv_is_fork_initialized() -> c_uint {
    const IBV_FORK_UNNEEDED: c_uint = 2;
    of_host::is_fork_initialized().unwrap_or(IBV_FORK_UNNEEDED)
}

pub(super) extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
    of_host::dontfork_range(base, size).unwrap_or(0)
}

pub(super) extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
    of_host::dofork_range(base, size).unwrap_or(0)
}

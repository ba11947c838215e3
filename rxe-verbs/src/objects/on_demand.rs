//! On-demand paging: regions whose pages need not be present, and prefetching of pages. One of the
//! few files with `unsafe` code.
//!
//! The CPU copies registered memory by the program's own addresses, so in every region a page is
//! needed only while it is used. [`Access::ON_DEMAND`] says that the program relies on this: the
//! memory is not accessed when it is registered.

use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rxe_core::VerbsError;
use rxe_core::mem::{Access, AccessError, Buffer, FaultCause, MemoryFault};
use rxe_core::queue::Sge;

use crate::error::{Error, Result};
use crate::objects::mr::MemoryRegion;
use crate::objects::pd::ProtectionDomain;

/// How pages are prefetched. `enum ibv_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Makes pages present for reading.
    Read,
    /// Makes pages present for reading and writing.
    Write,
    /// Tells the device about pages that are already present. It needs no telling, so this only
    /// checks the arguments.
    NoFault,
}

impl ProtectionDomain {
    /// Registers all memory of the process, including later mappings: implicit on-demand paging.
    ///
    /// Requests name memory by its own addresses. The region's first byte ([`MemoryRegion::addr`])
    /// has the address 1, so requests should use [`Sge`]s and addresses rather than slices of the
    /// region.
    ///
    /// # Errors
    /// Fails like [`ProtectionDomain::register_raw`], and if [`Access::ZERO_BASED`] is requested.
    ///
    /// # Safety
    /// All memory that the program, or a peer that knows the key, names in a request must be valid,
    /// or fault while faults are handled ([`handle_memory_faults`](crate::handle_memory_faults)).
    /// No Rust references may exist to memory that requests read or write.
    pub unsafe fn register_address_space(&self, access: Access) -> Result<MemoryRegion> {
        if access.contains(Access::ZERO_BASED) {
            let why = "ZERO_BASED: the addresses of all memory are its own".into();
            return Err(VerbsError::InvalidAttribute { name: "access", why }.into());
        }
        // SAFETY: the caller's promise is the one that is asked for here.
        let buffer = unsafe { Buffer::address_space() };
        let start = buffer.as_ptr().addr() as u64;
        self.register_buffer(buffer, start, access | Access::ON_DEMAND)
    }

    /// Makes pages of regions with [`Access::ON_DEMAND`] present, and returns when they are.
    ///
    /// The next requests then need not wait for the pages. `ibv_advise_mr`.
    ///
    /// # Errors
    /// Fails before anything is prefetched if an element has the key of no region (ENOENT), of a
    /// region in another domain or without LOCAL_WRITE for [`Prefetch::Write`] (EPERM), or of a
    /// region without ON_DEMAND (EINVAL), or is not inside its region (EFAULT). Fails if memory is
    /// not mapped or is protected (EFAULT); the elements before it have been prefetched then.
    pub fn prefetch(&self, list: &[Sge], how: Prefetch) -> Result<()> {
        self.device().shard().check()?;
        let need = if how == Prefetch::Write { Access::LOCAL_WRITE } else { Access::empty() };
        let memory = self.device().memory().guard();
        let place = |sge: &Sge| match memory.on_demand(self.id(), *sge, need) {
            Ok(Some(at)) => Ok((at, sge.length as usize)),
            Ok(None) => {
                let why = format!("{} is the key of a region without ON_DEMAND", sge.lkey);
                Err(VerbsError::InvalidAttribute { name: "lkey", why })
            }
            Err(why) => Err(VerbsError::Prefetch(why)),
        };
        let places: Vec<_> = list.iter().map(place).collect::<std::result::Result<_, _>>()?;
        // Making pages present takes long, so the guard is released. A region may be deregistered
        // meanwhile, which is harmless: its memory belongs to this process, and populating changes
        // no contents.
        drop(memory);
        if how == Prefetch::NoFault {
            return Ok(());
        }
        places.into_iter().try_for_each(|(at, len)| populate(at, len, how))
    }
}

/// Makes all pages of a range present, if the kernel supports it (Linux 5.14).
fn populate(at: NonNull<u8>, len: usize, how: Prefetch) -> Result<()> {
    let page = rustix::param::page_size();
    let offset = at.addr().get() % page;
    let start = at.as_ptr().wrapping_sub(offset);
    let end = (offset + len).next_multiple_of(page);
    let write = how == Prefetch::Write;
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: touches pages of the program as a load or store would, and changes none of them.
    let done = unsafe { madvise(start.cast(), end, advice) };
    let cause = match done {
        Ok(()) => return Ok(()),
        Err(Errno::NOMEM) => FaultCause::Unmapped,
        Err(Errno::FAULT) => FaultCause::BeyondFile,
        // Either the pages are protected, or the kernel does not know the advice. In the second
        // case it rejects even an empty range.
        // SAFETY: as above.
        Err(Errno::INVAL) if unsafe { madvise(start.cast(), 0, advice) }.is_ok() => {
            FaultCause::Protected
        }
        Err(Errno::INVAL) => return Ok(()),
        Err(Errno::HWPOISON) => FaultCause::Other,
        Err(other) => return Err(Error::io("prefetch memory", other)),
    };
    let addr = at.addr().get() as u64;
    Err(VerbsError::Prefetch(AccessError::Faulted(MemoryFault { addr, cause })).into())
}

//! Address handles. IBTA 11.2.2.

use std::ffi::c_int;

use rxe_core::wire::grh::{self, Grh};
use rxe_verbs::{AddressVector, Gid};

use super::abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_grh, ibv_pd, ibv_wc};
use super::objects::{Ah, Context, Pd};
use super::qp_attr;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, minus_one_of, pointer_of};

unsafe fn create(pd: *mut ibv_pd, address: &AddressVector) -> Outcome<*mut ibv_ah> {
    // SAFETY: a protection domain, whose context is open.
    let (context, owner) = unsafe { ((*pd).context, Pd::known(pd)?) };
    // SAFETY: as above.
    unsafe { Context::of(context) }.check()?;
    may_fail("ibv_create_ah")?;
    let handle = owner.domain.create_ah(address)?;
    Ok(Ah::into_ptr(context, pd, handle))
}

pub(super) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: a protection domain, whose context is open, and the caller's structure.
    let address = unsafe { qp_attr::address(Context::of((*pd).context), &*attr) };
    // SAFETY: a protection domain.
    let made = address.and_then(|address| unsafe { create(pd, &address) });
    pointer_of("ibv_create_ah", made)
}

pub(super) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: a handle.
    let this = match may_fail("ibv_destroy_ah").and_then(|()| unsafe { Ah::known(ah) }) {
        Ok(this) => this,
        Err(failure) => return errno_of("ibv_destroy_ah", Err(failure)),
    };
    // SAFETY: its context is open.
    let owner = unsafe { Context::of(this.verbs.context) };
    if owner.is_own() {
        // SAFETY: from `into_ptr`; the program gives it up.
        unsafe { owner.alive.free(ah.cast::<Ah>()) };
    }
    0
}

/// Returns the address vector of a datagram's sender.
///
/// # Safety
/// The pointers are to the caller's structures.
unsafe fn sender(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Outcome<AddressVector> {
    // SAFETY: the caller's promise.
    let (context, wc) = unsafe { (Context::of(context), &*wc) };
    if port != 1 {
        return Err(Failure::new(libc::EINVAL, format!("port {port}: there is only port 1")));
    }
    if wc.wc_flags & IBV_WC_GRH == 0 || grh.is_null() {
        let why = "the sender stands in the GRH, in the first 40 bytes of a datagram's receive \
                   buffer: give the completion and the address of these";
        return Err(Failure::new(libc::EINVAL, why));
    }
    // SAFETY: the caller's promise.
    let bytes: [u8; grh::LEN] = unsafe { (*grh).bytes };
    let grh = Grh::parse(&bytes)
        .map_err(|_| Failure::new(libc::EINVAL, "there is no IP header in these 40 bytes"))?;
    let device = context.device()?;
    let (src, dst) = (Gid::from(grh.src), Gid::from(grh.dst));
    let own = device.gids().iter().position(|&gid| gid == dst);
    let sgid_index = match own.and_then(|at| u16::try_from(at).ok()) {
        Some(index) => index,
        None if grh.dst.is_multicast() => device.gid_index_for(src),
        None => return Err(Failure::new(libc::EINVAL, "the datagram was sent to another address")),
    };
    Ok(AddressVector {
        sgid_index,
        dgid: src,
        flow_label: grh.flow_label,
        traffic_class: grh.traffic_class,
        hop_limit: 64,
    })
}

pub(super) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's promise.
    let outcome = unsafe { sender(context, port, wc, grh) }.map(|address| {
        // SAFETY: room for the answer.
        unsafe { attr.write(qp_attr::to_ah_attr(&address)) };
    });
    minus_one_of("ibv_init_ah_from_wc", outcome)
}

pub(super) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the caller's promise.
    let made = unsafe { sender((*pd).context, port, wc, grh) }
        // SAFETY: as above.
        .and_then(|address| unsafe { create(pd, &address) });
    pointer_of("ibv_create_ah_from_wc", made)
}

/// Would resolve the Ethernet address of a GID, as libibverbs does for librdmacm.
/// Not supported, because the kernel resolves Ethernet addresses for the engine.
pub(super) extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    libc::EOPNOTSUPP
}

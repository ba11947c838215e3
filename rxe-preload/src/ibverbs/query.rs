//! Queries devices and their port. IBTA 11.2.1.2.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use rustix::time::{ClockId, clock_gettime};
use rxe_verbs::Gid;
use rxe_verbs::device::{DeviceAttr, DeviceInfo, PortAttr};

use super::abi::{
    IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, ibv_context, ibv_device_attr,
    ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_port_attr, ibv_values_ex,
};
use super::lid;
use super::objects::Context;
use crate::config::CONFIG;
use crate::explain;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of, minus_one_of, set_errno};

/// The only port and the only P_Key of a device.
const PORT: u32 = DeviceInfo::PORT as u32;
const PKEY: u16 = 0xffff;

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    let int = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(attr.fw_ver.bytes()) {
        *to = from;
    }
    ibv_device_attr {
        fw_ver,
        node_guid: attr.node_guid.0.to_be(),
        sys_image_guid: attr.sys_image_guid.0.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        #[expect(clippy::cast_possible_truncation, reason = "verbs shows the low half here")]
        device_cap_flags: attr.device_cap_flags.bits() as c_uint,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: attr.atomic_cap as c_uint,
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as c_uint,
        max_mtu: attr.max_mtu.to_verbs().into(),
        active_mtu: attr.active_mtu.to_verbs().into(),
        gid_tbl_len: c_int::try_from(attr.gid_tbl_len).unwrap_or(c_int::MAX),
        port_cap_flags: attr.port_cap_flags,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state as u8,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: attr.flags,
        port_cap_flags2: attr.port_cap_flags2,
    }
}

pub(super) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    let outcome = may_fail("ibv_query_device").map(|()| {
        // SAFETY: an open context, and room for the answer.
        unsafe { attr.write(device_attr(&Context::of(context).info().attr())) };
    });
    errno_of("ibv_query_device", outcome)
}

pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    if size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    if let Err(failure) = may_fail("ibv_query_device") {
        return errno_of("ibv_query_device_ex", Err(failure));
    }
    // SAFETY: an open context.
    let own = unsafe { Context::of(context) }.info().attr();
    // SAFETY: all zeros is a valid value of this structure.
    let mut all: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    all.orig_attr = device_attr(&own);
    // Completions carry the time of CLOCK_MONOTONIC in nanoseconds.
    all.completion_timestamp_mask = u64::MAX;
    all.hca_core_clock = 1_000_000;
    all.device_cap_flags_ex = own.device_cap_flags.bits();
    all.phys_port_cnt_ex = own.phys_port_cnt.into();
    all.odp_caps = ibv_odp_caps {
        general_caps: own.odp_caps.general,
        rc_odp_caps: own.odp_caps.rc.bits(),
        uc_odp_caps: own.odp_caps.uc.bits(),
        ud_odp_caps: own.odp_caps.ud.bits(),
    };
    all.max_dm_size = own.max_dm_size;
    all.xrc_odp_caps = own.odp_caps.xrc.bits();
    // SAFETY: the caller has `size` bytes, which may be more than this structure if its header is
    // newer.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, size);
        let ours = size.min(size_of_val(&all));
        ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast::<u8>(), ours);
    }
    0
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: the caller's.
    errno_of("ibv_query_port", unsafe { fill_port(context, port, attr, size) })
}

/// Queries a port for programs compiled with old headers.
/// Their structure ends before `port_cap_flags2`.
pub(super) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    const OLD: usize = std::mem::offset_of!(ibv_port_attr, link_layer) + 1;
    // SAFETY: the caller's structure has at least the size of the old one.
    errno_of("ibv_query_port", unsafe { fill_port(context, port, attr, OLD) })
}

/// Returns the speed of the port in units of 100 Mb/s.
/// It matches `active_width` and `active_speed`: one lane of 2.5 Gb/s.
pub(super) unsafe extern "C" fn ibv_query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    let outcome = check_port(port).map(|()| {
        // SAFETY: room for the answer.
        unsafe { speed.write(25) };
    });
    errno_of("ibv_query_port_speed", outcome)
}

unsafe fn fill_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> Outcome {
    check_port(port.into())?;
    may_fail("ibv_query_port")?;
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    let own = match context.opened() {
        Some(device) if context.is_own() => device.port_attr(),
        _ => fresh(context).port_attr(),
    };
    let mut own = port_attr(&own);
    if CONFIG.lids {
        own.lid = lid::of_port(&gids(context));
    }
    // SAFETY: the caller has `size` bytes.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, size);
        let ours = size.min(size_of_val(&own));
        ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), attr.cast::<u8>(), ours);
    }
    Ok(())
}

/// Returns the device with the present state of its interface.
fn fresh(context: &Context) -> DeviceInfo {
    let info = context.info();
    DeviceInfo::find(info.name()).unwrap_or(info)
}

fn check_port(port: u32) -> Outcome {
    if port == PORT {
        return Ok(());
    }
    Err(Failure::new(libc::EINVAL, format!("port {port}: the device has only port {PORT}")))
}

/// Returns the GID table.
/// If the engine is open, the table is the engine's, because its queue pairs use those indices.
pub(super) fn gids(context: &Context) -> Vec<Gid> {
    match context.opened() {
        Some(device) if context.is_own() => device.gid_table(),
        _ => fresh(context).gids().iter().map(|entry| entry.gid).collect(),
    }
}

/// Returns the GID at an index, or `None` if the entry is empty.
///
/// If a program sends an empty GID to its peer, the failure appears at the peer. So it is explained
/// here, to the program that asks, unless that scans the table, having asked for the previous index
/// too.
fn gid_at(context: &Context, port: u32, index: usize) -> Outcome<Option<Gid>> {
    check_port(port)?;
    let table = gids(context);
    let found = table.get(index).copied().filter(|gid| !gid.is_zero());
    let scans = context.scans_gids(index);
    let capacity = usize::try_from(context.info().port_attr().gid_tbl_len).unwrap_or(0);
    if index >= capacity {
        return Err(Failure::new(libc::EINVAL, empty_gid(context, index, &table)));
    }
    if found.is_none() && !scans {
        explain::once("ibv_query_gid", &empty_gid(context, index, &table));
    }
    Ok(found)
}

fn empty_gid(context: &Context, index: usize, table: &[Gid]) -> String {
    let used = table.iter().enumerate().filter(|(_, gid)| !gid.is_zero());
    let used: Vec<_> = used.map(|(index, gid)| format!("{index} ({})", gid.to_ip())).collect();
    let info = context.info();
    let name = info.name();
    if used.is_empty() {
        return format!("GID index {index} of {name} is empty: the interface has no address");
    }
    format!(
        "GID index {index} of {name} is empty, so a peer that is sent it fails: choose one of {} \
         (-g INDEX; perftest: -x INDEX; `rxe gids` lists them)",
        used.join(", ")
    )
}

pub(super) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let found = may_fail("ibv_query_gid").and_then(|()| gid_at(context, port.into(), index));
    let outcome = found.map(|found| {
        let found = found.unwrap_or(Gid::ZERO);
        // SAFETY: room for the answer.
        unsafe { gid.write(ibv_gid { raw: *found.as_bytes() }) };
    });
    minus_one_of("ibv_query_gid", outcome)
}

/// Returns the type of a GID. This is the only private function of libibverbs that perftest uses.
pub(super) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    // The values of this function differ from those of the public one: 0 is InfiniBand and RoCE v1,
    // 1 is RoCE v2.
    const ROCE_V1: c_uint = 0;
    const ROCE_V2: c_uint = 1;
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let outcome = gid_at(context, port.into(), index).map(|found| {
        // An empty entry has the first type, as in rdma-core.
        let own = if found.is_some() { ROCE_V2 } else { ROCE_V1 };
        // SAFETY: room for the answer.
        unsafe { kind.write(own) };
    });
    minus_one_of("ibv_query_gid_type", outcome)
}

fn entry(context: &Context, index: usize, gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: *gid.as_bytes() },
        gid_index: u32::try_from(index).unwrap_or(u32::MAX),
        port_num: PORT,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: context.info().interface().index,
    }
}

/// Writes the first `size` bytes of an entry, padded with zeros.
/// # Safety
/// There is room for `size` bytes at `to`.
unsafe fn put_entry(entry: &ibv_gid_entry, to: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        ptr::write_bytes(to, 0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(entry).cast(), to, size.min(size_of_val(entry)));
    }
}

pub(super) unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let outcome = gid_at(context, port, index).and_then(|found| {
        let gid = found.ok_or(Failure::plain(libc::ENODATA))?;
        // SAFETY: the caller's promise.
        unsafe { put_entry(&entry(context, index, gid), to.cast(), size) };
        Ok(())
    });
    errno_of("ibv_query_gid_ex", outcome)
}

pub(super) unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: an open context.
    let context = unsafe { Context::of(context) };
    if flags != 0 {
        return -libc::EOPNOTSUPP as isize;
    }
    let all = gids(context);
    let used = || all.iter().enumerate().filter(|(_, gid)| !gid.is_zero());
    let count = used().count();
    if count > max {
        // The kernel fails too, instead of leaving entries out silently.
        let why = format!("room for {max} entries: the table has {count} (gid_tbl_len is enough)");
        let failure = Failure::new(libc::EINVAL, why);
        return -isize::try_from(errno_of("ibv_query_gid_table", Err(failure))).unwrap_or(1);
    }
    for (at, (index, gid)) in used().enumerate() {
        // SAFETY: `at` is less than `max`, and each has `size` bytes.
        unsafe { put_entry(&entry(context, index, *gid), to.cast::<u8>().add(at * size), size) };
    }
    count.cast_signed()
}

pub(super) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if u32::from(port) != PORT || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: room for the answer.
    unsafe { pkey.write(PKEY.to_be()) };
    0
}

pub(super) unsafe extern "C" fn ibv_get_pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    if u32::from(port) == PORT && pkey == PKEY.to_be() {
        return 0;
    }
    set_errno(libc::EINVAL);
    -1
}

pub(super) unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    const RAW_CLOCK: u32 = 1;
    // SAFETY: the caller's structure.
    let values = unsafe { &mut *values };
    if values.comp_mask & RAW_CLOCK != 0 {
        let now = clock_gettime(ClockId::Monotonic);
        values.raw_clock = libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec };
    }
    values.comp_mask &= RAW_CLOCK;
    0
}

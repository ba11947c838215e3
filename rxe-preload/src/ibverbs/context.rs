//! Opening a device: the context, with the tables of functions that inline functions go through.
//!
//! The engine behind it is opened when the program first makes something on it, so that looking at
//! all devices (`ibv_devinfo`, and libraries that choose one) takes no address from anybody.

use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::event::epoll;
use rxe_verbs::{Completion, Device, DeviceInfo, Status, XrcDomain};

use super::abi::{
    ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_cq, ibv_device, ibv_qp, ibv_srq,
    verbs_context,
};
use super::device::DeviceEntry;
use super::xrcd::FileId;
use super::{cq, cq_ex, device, mw, pd, post, qp, query, srq, xrcd};
use crate::config::CONFIG;
use crate::explain::{self, Watch};
use crate::fault_guard;
use crate::ffi::{self, Failure, Outcome, errno_of, pointer_of};
use crate::liveness::LivenessGuard;
use crate::per_process::PerProcess;

/// An open device as programs hold it. They have the address of `verbs.context`.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    /// Threads sleep in `ibv_get_async_event`.
    pub(super) liveness: LivenessGuard,
    generation: u64,
    entry: &'static DeviceEntry,
    /// What a person may want to know of its queue pairs.
    pub(super) watch: Arc<Watch>,
    /// The engine, once there is one.
    device: OnceLock<Device>,
    opening: Mutex<()>,
    /// Readable when there are asynchronous events. An epoll instance, so that the descriptor is
    /// there before the engine is.
    asyncs: OwnedFd,
    /// The objects that asynchronous events are about, by number.
    pub(super) qps: Mutex<HashMap<u32, *mut ibv_qp>>,
    pub(super) srqs: Mutex<HashMap<u32, *mut ibv_srq>>,
    pub(super) cqs: Mutex<HashMap<u64, *mut ibv_cq>>,
    /// The XRC domains that files stand for, and how many handles each has.
    pub(super) xrc_domains: Mutex<HashMap<FileId, (XrcDomain, u32)>>,
}

// SAFETY: the pointers in the maps are of objects that take themselves out before they end; the
// rest is thread-safe by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn new(entry: &'static DeviceEntry) -> Outcome<Box<Self>> {
        let asyncs = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| Failure::plain(e.raw_os_error()))?;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let context = ibv_context {
            device: entry.as_ptr(),
            ops: ops(),
            // There is no kernel to command. Programs duplicate it or set flags of it, so it is one
            // that is open.
            cmd_fd: asyncs.as_raw_fd(),
            async_fd: asyncs.as_raw_fd(),
            num_comp_vectors: c_int::try_from(cpus).unwrap_or(1),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::without_provenance_mut(ABI_IS_EXTENDED),
        };
        Ok(Box::new(Self {
            verbs: table(context),
            liveness: LivenessGuard::new(),
            generation: ffi::generation(),
            entry,
            watch: Watch::new(entry.info().name()),
            device: OnceLock::new(),
            opening: Mutex::new(()),
            asyncs,
            qps: Mutex::default(),
            srqs: Mutex::default(),
            cqs: Mutex::default(),
            xrc_domains: Mutex::default(),
        }))
    }

    /// # Safety
    /// `context` is open.
    pub(crate) unsafe fn of<'c>(context: *mut ibv_context) -> &'c Self {
        const BEFORE: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
        // SAFETY: programs only have the address of this field of a `Context`, see `into_ptr`, whose
        // provenance is all of it.
        unsafe { &*context.byte_sub(BEFORE).cast() }
    }

    fn into_ptr(self: Box<Self>) -> *mut ibv_context {
        let this = Box::into_raw(self);
        // SAFETY: just made from a Box.
        unsafe { &raw mut (*this).verbs.context }
    }

    /// The engine, opened if it is not.
    pub(crate) fn device(&self) -> Outcome<&Device> {
        self.check()?;
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let _opening = self.opening.lock();
        if let Some(device) = self.device.get() {
            return Ok(device);
        }
        let info = self.entry.info();
        let watch = Arc::clone(&self.watch);
        let mut options = Device::options(info.name())
            .backend(CONFIG.backend)
            .shared_memory(CONFIG.shared_memory)
            .ack_policy(CONFIG.acks)
            .segmentation(CONFIG.segmentation)
            .on_event(Box::new(move |event| watch.event(event)));
        if let Some(path) = CONFIG.pcap() {
            options = options.pcap(path);
        }
        let device = options.open()?;
        fault_guard::install();
        if let Some(capture) = device.capture() {
            flush_at_exit(capture.clone());
        }
        epoll::add(
            &self.asyncs,
            device.async_fd(),
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .map_err(|e| Failure::plain(e.raw_os_error()))?;
        Ok(self.device.get_or_init(|| device))
    }

    /// The engine, if there is one.
    pub(crate) fn opened(&self) -> Option<&Device> {
        self.device.get()
    }

    /// What programs sleep on for asynchronous events.
    pub(super) fn async_fd(&self) -> &OwnedFd {
        &self.asyncs
    }

    /// What is known of the device without opening it.
    pub(crate) fn info(&self) -> DeviceInfo {
        self.entry.info()
    }

    /// A completion tells of a failure.
    pub(super) fn failed(&self, completion: &Completion) {
        self.watch.completion(completion);
        if completion.status == Status::RetryExceeded
            && let Some(device) = self.device.get()
        {
            explain::unsent(device.name(), &device.net_counters());
        }
    }

    /// Whether it is this process's own, and not left behind by a fork.
    pub(super) fn is_own(&self) -> bool {
        self.generation == ffi::generation()
    }

    /// Refuses to work with what belongs to the parent of this process.
    pub(super) fn check(&self) -> Outcome {
        if self.is_own() {
            return Ok(());
        }
        Err(Failure::new(
            libc::EIO,
            "the device was opened before fork(), by the parent of this process, and is the \
             parent's: open it anew in the child",
        ))
    }
}

/// A capture is to be whole even if the program ends without closing the device.
fn flush_at_exit(capture: rxe_verbs::PcapHandle) {
    /// What a forked child finds in the buffers of its parent's captures the parent writes itself.
    static CAPTURES: PerProcess<Mutex<Vec<rxe_verbs::PcapHandle>>> = PerProcess::new();
    extern "C" fn flush() {
        // The program may end in a signal handler, over a call that holds the lock.
        let Some(captures) = CAPTURES.get().try_lock() else { return };
        captures.iter().for_each(rxe_verbs::PcapHandle::flush);
    }
    let mut captures = CAPTURES.get().lock();
    if captures.is_empty() {
        // SAFETY: registers a function that may be called at any exit.
        unsafe { libc::atexit(flush) };
    }
    captures.push(capture);
}

fn ops() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_to_dereg: [ptr::null(); 7],
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        _compat_create_cq: ptr::null(),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event_to_destroy_srq: [ptr::null(); 7],
        post_srq_recv: Some(post::post_srq_recv),
        _compat_create_to_destroy_qp: [ptr::null(); 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah_to_async_event: [ptr::null(); 5],
    }
}

/// What is null here is what a provider without that feature has: the header's inline functions
/// then fail with EOPNOTSUPP.
fn table(context: ibv_context) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: ptr::null(),
        alloc_null_mr: ptr::null(),
        read_counters: ptr::null(),
        attach_counters_point_flow: ptr::null(),
        create_counters: ptr::null(),
        destroy_counters: ptr::null(),
        reg_dm_mr: ptr::null(),
        alloc_dm: ptr::null(),
        free_dm: ptr::null(),
        modify_flow_action_esp: ptr::null(),
        destroy_flow_action: ptr::null(),
        create_flow_action_esp: ptr::null(),
        modify_qp_rate_limit: ptr::null(),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: ptr::null(),
        post_srq_ops: ptr::null(),
        destroy_rwq_ind_table: ptr::null(),
        create_rwq_ind_table: ptr::null(),
        destroy_wq: ptr::null(),
        modify_wq: ptr::null(),
        create_wq: ptr::null(),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        r#priv: ptr::null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: ptr::null(),
        abi_placeholder2: ptr::null(),
        ibv_create_flow: ptr::null(),
        abi_placeholder1: ptr::null(),
        open_qp: None,
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        _abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let opened = if device.is_null() {
        let names = device::names().join(", ");
        let why = format!(
            "device is NULL: no name in the list is the one looked for, or the index is behind its end. \
             The devices here are: {names}"
        );
        Err(Failure::new(libc::ENODEV, why))
    } else {
        // SAFETY: a device from the list.
        Context::new(unsafe { DeviceEntry::of(device) }).map(Context::into_ptr)
    };
    pointer_of("ibv_open_device", opened)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: an open context, which the program gives up.
    let this = unsafe { Context::of(context) };
    if !this.is_own() {
        return 0;
    }
    let in_use = !this.qps.lock().is_empty()
        || !this.srqs.lock().is_empty()
        || this.device.get().is_some_and(|device| device.users() > 0);
    if in_use {
        // It goes on as long as what was made on it, which points to it.
        return 0;
    }
    this.liveness.end();
    // SAFETY: from `into_ptr`, and nothing that points to it is left.
    drop(unsafe { Box::from_raw(ptr::from_ref(this).cast_mut()) });
    errno_of("ibv_close_device", Ok(()))
}

/// Sharing a device with another process through its command descriptor: rxe's provider in rdma-core
/// does not have that either.
#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    pointer_of("ibv_import_device", Err(Failure::plain(libc::EOPNOTSUPP)))
}

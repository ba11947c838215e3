//! The object behind a program's `struct ibv_context`: an open device.
//!
//! The engine is opened when the program first creates an object on the context.
//! So a program that only lists devices (`ibv_devinfo`, and libraries that choose a device)
//! occupies no address.

use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_verbs::{Completion, Device, DeviceInfo, Status, XrcDomain};

use super::{Alive, Imports};
use crate::config::CONFIG;
use crate::explain::{self, Watch};
use crate::fault_guard;
use crate::faults;
use crate::ffi::{Failure, Outcome};
use crate::ibverbs::abi::{
    ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_cq, ibv_qp, ibv_srq, verbs_context,
};
use crate::ibverbs::device::DeviceEntry;
use crate::liveness::LivenessGuard;
use rxe_sys::{EventFd, PerProcess, TokenFd, fork_generation};

/// The device and inode numbers of a file.
pub(crate) type FileId = (u64, u64);

/// An open device. Programs hold the address of `verbs.context`.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) verbs: verbs_context,
    /// The guard for threads that sleep in `ibv_get_async_event`.
    pub(crate) liveness: LivenessGuard,
    /// The fork generation of the process that opened the context.
    /// [`ENDED`] after the program has closed it.
    generation: AtomicU64,
    entry: &'static DeviceEntry,
    /// The recorded state of the queue pairs, for explanations.
    pub(crate) watch: Arc<Watch>,
    /// The engine, once it has been opened.
    device: OnceLock<Device>,
    opening: Mutex<()>,
    /// The event descriptor that is readable when there are asynchronous events.
    /// It exists before the engine, to which it is passed.
    asyncs: ManuallyDrop<Arc<EventFd>>,
    /// The descriptor that is the program's `cmd_fd`.
    /// There is no kernel device that takes commands. But programs duplicate this descriptor, set
    /// flags on it or import the device with it, so it must be open.
    commands: ManuallyDrop<TokenFd>,
    /// The queue pairs, SRQs and CQs that asynchronous events may name, by number or ID.
    pub(crate) qps: Mutex<HashMap<u32, *mut ibv_qp>>,
    pub(crate) srqs: Mutex<HashMap<u32, *mut ibv_srq>>,
    pub(crate) cqs: Mutex<HashMap<u64, *mut ibv_cq>>,
    /// The objects that the program has created on the context and not destroyed.
    pub(crate) alive: Alive,
    /// The objects of the context that can be imported.
    pub(crate) imports: Imports,
    /// One more than the highest index of the GID table that the program has asked for.
    gids_asked: AtomicUsize,
    /// The XRC domains that are identified by files, and the number of handles of each.
    pub(crate) xrc_domains: Mutex<HashMap<FileId, (XrcDomain, u32)>>,
}

// SAFETY: the pointers in the maps are to objects that remove themselves before they end; the rest
// is thread-safe by itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device for the program, which closes it with `ibv_close_device`.
    /// `ops` and `table` hold the functions that the header's inline functions call.
    pub(crate) fn open(
        entry: &'static DeviceEntry,
        ops: ibv_context_ops,
        table: impl FnOnce(ibv_context) -> verbs_context,
    ) -> Outcome<*mut ibv_context> {
        if let Err(why) = &CONFIG.faults {
            return Err(Failure::new(libc::EINVAL, why));
        }
        let (asyncs, commands) = (Arc::new(EventFd::for_program()?), TokenFd::new()?);
        let vectors = entry.info().attr().num_comp_vectors;
        let context = ibv_context {
            device: entry.as_ptr(),
            ops,
            cmd_fd: commands.as_raw_fd(),
            async_fd: asyncs.as_raw_fd(),
            num_comp_vectors: c_int::try_from(vectors).unwrap_or(1),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::without_provenance_mut(ABI_IS_EXTENDED),
        };
        let this = Box::into_raw(Box::new(Self {
            verbs: table(context),
            liveness: LivenessGuard::new(),
            generation: AtomicU64::new(fork_generation()),
            entry,
            watch: Watch::new(entry.info().name()),
            device: OnceLock::new(),
            opening: Mutex::new(()),
            asyncs: ManuallyDrop::new(asyncs),
            commands: ManuallyDrop::new(commands),
            qps: Mutex::default(),
            srqs: Mutex::default(),
            cqs: Mutex::default(),
            alive: Alive::default(),
            imports: Imports::default(),
            gids_asked: AtomicUsize::new(0),
            xrc_domains: Mutex::default(),
        }));
        // SAFETY: just made from a Box.
        Ok(unsafe { &raw mut (*this).verbs.context })
    }

    /// Returns the context behind a program's pointer.
    /// # Safety
    /// `context` is open.
    pub(crate) unsafe fn of<'c>(context: *mut ibv_context) -> &'c Self {
        const BEFORE: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
        // SAFETY: programs only have the address of this field of a `Context`, see `open`, whose
        // provenance is all of it.
        unsafe { &*context.byte_sub(BEFORE).cast() }
    }

    /// Closes the context.
    /// Objects that the program has not destroyed end, as when the kernel closes a context. The
    /// structure stays allocated if pointers to it remain.
    ///
    /// # Safety
    /// `context` is open and this process's, and the program gives it up.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::of(context) };
        this.liveness.end();
        this.generation.store(ENDED, Ordering::Relaxed);
        let mut is_pointed_to = !this.alive.is_empty();
        for qpn in this.qps.lock().drain().map(|(qpn, _)| qpn) {
            this.watch.destroyed(qpn);
        }
        this.srqs.lock().clear();
        this.cqs.lock().clear();
        this.xrc_domains.lock().clear();
        if is_pointed_to {
            thread::sleep(GRACE);
        }
        // SAFETY: calls on the objects fail from now on.
        unsafe { this.alive.end_all() };
        // SAFETY: from `open`; no call uses what is dropped here any more.
        let mut this = unsafe { Box::from_raw(ptr::from_ref(this).cast_mut()) };
        // SAFETY: once.
        unsafe {
            ManuallyDrop::drop(&mut this.asyncs);
            ManuallyDrop::drop(&mut this.commands);
        }
        let device = this.device.take();
        // Identifiers of librdmacm have it, and find this context by it.
        is_pointed_to |= device.is_some_and(|device| device.users() > 0);
        if is_pointed_to {
            Box::leak(this);
        }
    }

    /// Returns the engine, which is opened if necessary.
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
            .source_port(CONFIG.source_port)
            .keepalive(CONFIG.keepalive)
            .realtime(CONFIG.realtime)
            .segmentation(CONFIG.segmentation)
            .async_fd(Arc::clone(&self.asyncs))
            .on_event(Box::new(move |event| watch.event(event)));
        if let Some(count) = CONFIG.shards {
            options = options.shards(count);
        }
        if let Some(path) = CONFIG.pcap() {
            options = options.pcap(path);
        }
        if let Ok(Some((seed, plan))) = &CONFIG.faults {
            options = options.faults(*seed, plan.clone());
        }
        let device = options.open()?;
        faults::report_at_exit(&device);
        fault_guard::install();
        if let Some(capture) = device.capture() {
            flush_at_exit(capture.clone());
        }
        Ok(self.device.get_or_init(|| device))
    }

    /// Returns the engine, if it has been opened.
    pub(crate) fn opened(&self) -> Option<&Device> {
        self.device.get()
    }

    /// Returns the descriptor on which programs sleep for asynchronous events.
    pub(crate) fn async_fd(&self) -> &EventFd {
        &self.asyncs
    }

    /// Returns the descriptor with which a program imports the device.
    pub(crate) fn cmd_fd(&self) -> &TokenFd {
        &self.commands
    }

    /// Returns the properties of the device that are known without opening the engine.
    pub(crate) fn info(&self) -> DeviceInfo {
        self.entry.info()
    }

    /// Records that the program asks for an index of the GID table.
    /// Returns whether the program scans the table, so the index was not chosen by its user.
    pub(crate) fn scans_gids(&self, index: usize) -> bool {
        index <= self.gids_asked.fetch_max(index.saturating_add(1), Ordering::Relaxed)
    }

    /// Returns whether the program has asked for a GID of its own.
    pub(crate) fn has_asked_for_gid(&self) -> bool {
        self.gids_asked.load(Ordering::Relaxed) > 0
    }

    /// Records a completion with an error, for explanations.
    pub(crate) fn failed(&self, completion: &Completion) {
        self.watch.completion(completion);
        if completion.status == Status::RetryExceeded
            && let Some(device) = self.device.get()
        {
            explain::unsent(device.name(), &device.net_counters());
        }
    }

    /// Returns whether this process opened the context, rather than a parent before a fork.
    pub(crate) fn is_own(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == fork_generation()
    }

    /// Fails if the program has closed the context.
    pub(crate) fn check_open(&self) -> Outcome {
        if self.generation.load(Ordering::Relaxed) != ENDED {
            return Ok(());
        }
        let why =
            "the program has closed the device (ibv_close_device): its objects have ended with it";
        Err(Failure::new(libc::EIO, why))
    }

    /// Fails if a parent of this process opened the context, or the program has closed it.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_own() {
            return Ok(());
        }
        self.check_open()?;
        Err(Failure::new(
            libc::EIO,
            "the device was opened before fork(), by the parent of this process, and is the \
             parent's: open it anew in the child",
        ))
    }
}

/// How long to wait before objects end.
/// A thread may be in a poll or a post that began before the device was closed, as it may with
/// cards, whose queues stay mapped. No lock says when it has left, but it takes far less time than
/// this.
const GRACE: Duration = Duration::from_millis(20);

/// The generation of a closed context, which no process has.
const ENDED: u64 = u64::MAX;

/// Flushes the capture at exit, in case the program does not close the device.
fn flush_at_exit(capture: rxe_verbs::PcapHandle) {
    /// The captures of this process.
    /// A forked child has copies of its parent's buffers, but the parent writes those itself.
    static CAPTURES: PerProcess<Mutex<Vec<rxe_verbs::PcapHandle>>> = PerProcess::new();
    extern "C" fn flush() {
        // The program may end in a signal handler that interrupts a holder of the lock.
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

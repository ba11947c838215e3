//! Creates, binds, resolves and destroys identifiers.

mod ids;

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::time::Instant;

use parking_lot::Mutex;
use rxe_verbs::cm::{CmId, EventChannel, PortSpace};
use rxe_verbs::{Gid, QpType};

pub(super) use self::ids::{expect_answer, find};
use super::abi::{
    ibv_sa_path_rec, rdma_cm_event, rdma_cm_id, rdma_event_channel, read_address, write_address,
};
use super::channel::Channel;
use super::devices::{context_of, default_pd, source};
use super::event::Event;
use super::getaddrinfo::Resolving;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, minus_one_of};
use crate::ibverbs::Unacknowledged;
use crate::ibverbs::abi::{ibv_gid, ibv_qp_init_attr};
use rxe_sys::fork_generation;

/// A multicast group that an identifier has joined or asked to join.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) gid: Gid,
    /// The context that the program passed when it joined.
    pub(super) context: *mut c_void,
    /// Whether the group was joined for sending only, so nothing is received from it.
    pub(super) only_sends: bool,
    /// Whether the program has received the event of this join.
    pub(super) told: bool,
}

/// An identifier as programs hold it.
#[repr(C)]
pub(super) struct Id {
    /// The header's structure. The program reads it, and writes some fields (`context`, `qp`).
    verbs: UnsafeCell<rdma_cm_id>,
    /// The private fields that rsockets read; `sync` is set if the identifier is synchronous.
    inner: Inner,
    generation: u64,
    pub(super) cm: CmId,
    pub(super) events: Unacknowledged,
    /// When the connection request was sent; `None` after the peer has answered.
    pub(super) asked: Mutex<Option<Instant>>,
    path: UnsafeCell<ibv_sa_path_rec>,
    /// The attributes for queue pairs of incoming requests (from `rdma_create_ep`).
    pub(super) template: Mutex<Option<ibv_qp_init_attr>>,
    /// The groups that the identifier has joined or asked to join.
    pub(super) groups: Mutex<Vec<Group>>,
    /// The state of `rdma_resolve_addrinfo`.
    pub(super) resolving: Mutex<Resolving>,
}

/// The fields that librdmacm keeps after the public ones of an identifier.
/// Its rsockets read `cma_dev`, which is null here, and `sync`.
#[repr(C)]
struct Inner {
    cma_dev: *const c_void,
    connect: *const c_void,
    connect_len: usize,
    events_completed: c_int,
    connect_error: c_int,
    sync: UnsafeCell<c_int>,
}

impl Id {
    /// Returns the identifier behind a program's pointer.
    /// # Safety
    /// `id` exists.
    pub(super) unsafe fn of<'i>(id: *mut rdma_cm_id) -> &'i Self {
        // SAFETY: programs only have the address of the first field of an `Id`.
        unsafe { &*id.cast() }
    }

    /// Returns whether this process created the identifier, rather than a parent before a fork.
    pub(super) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Returns the header's structure.
    /// No reference to it may be kept, because programs write to it.
    pub(super) fn verbs(&self) -> *mut rdma_cm_id {
        self.verbs.get()
    }

    /// Returns the identifier behind a program's pointer, after checking that it exists.
    /// Fails if the program has destroyed the identifier, or if it belongs to a parent of this
    /// process. Programs make this mistake: perftest uses an identifier after it was refused and
    /// destroyed.
    ///
    /// # Safety
    /// No other thread destroys the identifier meanwhile.
    pub(super) unsafe fn known<'i>(id: *mut rdma_cm_id) -> Outcome<&'i Self> {
        if ids::contains(id) {
            // SAFETY: the identifiers in the list exist.
            return Ok(unsafe { Self::of(id) });
        }
        if fork_generation() > 0 {
            return Err(Failure::of_parent("the identifier"));
        }
        let why = "there is no such identifier: was it destroyed before (rdma_destroy_id)?";
        Err(Failure::new(libc::EINVAL, why))
    }

    fn make(
        cm: CmId,
        events: Unacknowledged,
        channel: *mut rdma_event_channel,
        synchronous: bool,
        context: *mut c_void,
        qp_type: c_uint,
    ) -> *mut rdma_cm_id {
        // SAFETY: null pointers, numbers and addresses of no family: all may be zero.
        let mut verbs: rdma_cm_id = unsafe { std::mem::zeroed() };
        verbs.channel = channel;
        verbs.context = context;
        verbs.ps = c_uint::from(cm.port_space() as u16);
        verbs.qp_type = qp_type;
        if let Some(service) = SERVICES.into_iter().find(|&service| service as c_uint == qp_type) {
            cm.set_service(service);
        }
        let key = cm.key();
        let id: *mut rdma_cm_id = Box::into_raw(Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            inner: Inner {
                cma_dev: ptr::null(),
                connect: ptr::null(),
                connect_len: 0,
                events_completed: 0,
                connect_error: 0,
                sync: UnsafeCell::new(synchronous.into()),
            },
            generation: fork_generation(),
            cm,
            events,
            asked: Mutex::new(None),
            // SAFETY: numbers.
            path: UnsafeCell::new(unsafe { std::mem::zeroed() }),
            template: Mutex::new(None),
            groups: Mutex::new(Vec::new()),
            resolving: Mutex::default(),
        }))
        .cast();
        ids::add(key, id);
        id
    }

    /// Creates an identifier for a request to `listener`.
    /// One unacknowledged event is counted for it, so it exists until that event is acknowledged,
    /// whatever other threads do.
    pub(super) fn of_request(cm: CmId, listener: &Self) -> Option<*mut rdma_cm_id> {
        // SAFETY: the public fields of the listener, copied one by one.
        let (channel, context, qp_type) = unsafe {
            ((*listener.verbs()).channel, (*listener.verbs()).context, (*listener.verbs()).qp_type)
        };
        let events = Unacknowledged::default();
        events.delivered();
        let id = Self::make(cm, events, channel, false, context, qp_type);
        // SAFETY: just created.
        let this = unsafe { Self::of(id) };
        this.fill_addresses();
        this.fill_route();
        if listener.is_synchronous() && this.own_channel().is_err() {
            this.events.acknowledged(1);
            // SAFETY: just created, and no other code has it.
            unsafe { destroy(id) };
            return None;
        }
        Some(id)
    }

    /// Creates a channel for this identifier alone, which makes the identifier synchronous.
    pub(super) fn own_channel(&self) -> Outcome {
        let channel = Channel::create()?;
        // SAFETY: just created.
        self.cm.migrate(unsafe { Channel::own(channel) }?);
        // SAFETY: no other thread uses the identifier at this moment, as migrating requires.
        unsafe {
            (*self.verbs()).channel = channel;
            *self.inner.sync.get() = 1;
        }
        Ok(())
    }

    /// Returns whether the identifier is synchronous: it has a channel of its own, and its calls
    /// wait.
    pub(super) fn is_synchronous(&self) -> bool {
        // SAFETY: changed only by calls during which the program uses the identifier in no other
        // thread.
        unsafe { *self.inner.sync.get() != 0 }
    }

    /// Copies the known addresses and the device to the fields that programs read.
    pub(super) fn fill_addresses(&self) {
        let (local, peer) = (self.cm.local_addr(), self.cm.peer_addr());
        let device = self.cm.device();
        // SAFETY: the program's fields; no reference to them exists elsewhere.
        let verbs = unsafe { &mut *self.verbs() };
        if let Some(local) = local {
            write_address(local, &mut verbs.route.addr.src);
            verbs.route.addr.ib.sgid = gid(local.ip().into());
        }
        if let Some(peer) = peer {
            write_address(peer, &mut verbs.route.addr.dst);
            verbs.route.addr.ib.dgid = gid(peer.ip().into());
        }
        verbs.route.addr.ib.pkey = 0xffff;
        // An identifier bound only to a loopback address shows no device, because the kernel treats
        // this address like 0.0.0.0, and libfabric finds all devices that way.
        let anywhere = peer.is_none() && local.is_some_and(|local| local.ip().is_loopback());
        if let Some(device) = device
            && !anywhere
            && verbs.verbs.is_null()
        {
            verbs.verbs = context_of(&device);
            verbs.port_num = 1;
            if verbs.pd.is_null() {
                verbs.pd = default_pd(verbs.verbs);
            }
        }
    }

    /// Fills in the path record to the peer, for programs that read it.
    pub(super) fn fill_route(&self) {
        let (Some(local), Some(peer), Some(device)) =
            (self.cm.local_addr(), self.cm.peer_addr(), self.cm.device())
        else {
            return;
        };
        // SAFETY: the program's fields; no reference to them exists elsewhere.
        let (verbs, path) = unsafe { (&mut *self.verbs(), &mut *self.path.get()) };
        path.sgid = gid(local.ip().into());
        path.dgid = gid(peer.ip().into());
        path.hop_limit = 64;
        path.reversible = 1;
        path.pkey = 0xffff;
        path.mtu_selector = 2;
        path.mtu = device.active_mtu().to_verbs();
        path.rate_selector = 2;
        path.packet_life_time_selector = 2;
        path.packet_life_time = 15;
        verbs.route.path_rec = path;
        verbs.route.num_paths = 1;
    }

    /// Stores an event in the field that programs read. Acknowledges the previous event there.
    pub(super) fn keep(&self, event: *mut rdma_cm_event) {
        // SAFETY: the field is this library's; the event in it has not been acknowledged.
        unsafe {
            let last = std::mem::replace(&mut (*self.verbs()).event, event);
            if !last.is_null() {
                acknowledge(last);
            }
        }
    }
}

/// The queue pair types of connections.
const SERVICES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcRecv];

pub(super) fn gid(gid: Gid) -> ibv_gid {
    ibv_gid { raw: *gid.as_bytes() }
}

/// Frees an event and acknowledges it at its identifier or, for a request, at its listener.
///
/// # Safety
/// The program received `event` and gives it up. The identifier that counts it exists until then.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: the caller's promise.
    let counted = unsafe {
        let rdma_cm_event { id, listen_id, .. } = *event;
        Id::of(if listen_id.is_null() { id } else { listen_id })
    };
    // In a forked child there is nothing to do: the parent acknowledges its own events.
    if counted.is_own() {
        // SAFETY: the caller's promise.
        unsafe { Event::free(event) };
        counted.events.acknowledged(1);
    }
}

/// Creates an identifier. Without a channel it is synchronous.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: c_uint,
    qp_type: Option<c_uint>,
) -> Outcome<*mut rdma_cm_id> {
    let space = u16::try_from(ps).ok().and_then(PortSpace::from_number);
    let space = space
        .ok_or_else(|| Failure::new(libc::EINVAL, format!("there is no port space {ps:#x}")))?;
    let qp_type = qp_type.unwrap_or(match space {
        PortSpace::Udp | PortSpace::Ipoib => QpType::Ud as c_uint,
        PortSpace::Tcp | PortSpace::Ib => QpType::Rc as c_uint,
    });
    let synchronous = channel.is_null();
    let channel = if synchronous { Channel::create()? } else { channel };
    // SAFETY: the program's, or just created.
    let of: &EventChannel = unsafe { Channel::own(channel) }?;
    let events = Unacknowledged::default();
    Ok(Id::make(of.create_id(space)?, events, channel, synchronous, context, qp_type))
}

/// Destroys an identifier after all its events have been acknowledged.
/// # Safety
/// `id` exists, and is not used afterwards.
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    let this = unsafe { Id::of(id) };
    if !this.is_own() {
        return;
    }
    ids::remove(this.cm.key(), id);
    this.keep(ptr::null_mut());
    this.events.wait("rdma_destroy_id");
    // SAFETY: its own fields.
    let (channel, own) = unsafe { ((*this.verbs()).channel, this.is_synchronous()) };
    // SAFETY: from `make`.
    drop(unsafe { Box::from_raw(id.cast::<Id>()) });
    if own {
        // SAFETY: it was this identifier's.
        unsafe { Channel::destroy(channel) };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let made = may_fail("rdma_create_id").and_then(|()| create(channel, context, ps, None));
    let outcome = made.map(|made| {
        // SAFETY: the caller's variable.
        unsafe { *id = made };
    });
    minus_one_of("rdma_create_id", outcome)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier, which the program gives up.
    let known = unsafe { Id::known(id) };
    if known.is_err() && fork_generation() > 0 {
        // The identifier is a parent's: destroying it in the child does nothing.
        return 0;
    }
    let outcome = known.map(|_| {
        // SAFETY: it exists.
        unsafe { destroy(id) };
    });
    minus_one_of("rdma_destroy_id", outcome)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let bind = || -> Outcome {
        // SAFETY: an identifier and an address.
        let (this, address) = unsafe { (Id::known(id)?, given(address)) };
        may_fail("rdma_bind_addr")?;
        let address = address?;
        this.cm.bind_addr(address).map_err(|e| match e.errno() {
            libc::ENODEV => Failure::new(
                libc::ENODEV,
                format!(
                    "no device can use the address {}: `rxe gids` lists the addresses (an IPv6 \
                     address takes a second or two after its interface came up)",
                    address.ip()
                ),
            ),
            _ => e.into(),
        })?;
        if address.ip().is_unspecified() {
            // A program may tell its port to a client before it listens, as qperf does. So the
            // devices are opened now, and not when it listens.
            source().all();
        }
        this.fill_addresses();
        Ok(())
    };
    minus_one_of("rdma_bind_addr", bind())
}

/// Resolves an address.
/// The address is resolved immediately, so the timeout is ignored, here and in
/// [`rdma_resolve_route`].
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    destination: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let resolve = || -> Outcome {
        // SAFETY: an identifier and addresses.
        let (this, source, destination) = unsafe {
            let source = (!source.is_null()).then(|| given(source)).transpose();
            (Id::known(id)?, source, given(destination))
        };
        may_fail("rdma_resolve_addr")?;
        let (source, destination) = (source?, destination?);
        this.cm.resolve_addr(source, destination)?;
        this.fill_addresses();
        this.complete()
    };
    minus_one_of("rdma_resolve_addr", resolve())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let resolve = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        may_fail("rdma_resolve_route")?;
        this.cm.resolve_route()?;
        this.fill_route();
        this.complete()
    };
    minus_one_of("rdma_resolve_route", resolve())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let migrate = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        // SAFETY: its own fields.
        let (old, own) = unsafe { ((*this.verbs()).channel, this.is_synchronous()) };
        let delivered = this.events.so_far();
        if channel.is_null() {
            if own {
                return Err(Failure::new(libc::EINVAL, "the identifier is synchronous already"));
            }
            this.own_channel()?;
        } else {
            // SAFETY: a channel of the program.
            this.cm.migrate(unsafe { Channel::own(channel) }?);
            // SAFETY: the caller uses the identifier in no other thread meanwhile.
            unsafe {
                (*this.verbs()).channel = channel;
                *this.inner.sync.get() = 0;
            }
        }
        if own {
            this.keep(ptr::null_mut());
            // SAFETY: it was this identifier's.
            unsafe { Channel::destroy(old) };
        }
        // When this returns, no event that came through the old channel is in use.
        this.events.wait_for("rdma_migrate_id", delivered);
        Ok(())
    };
    minus_one_of("rdma_migrate_id", migrate())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    port(unsafe { &(*id).route.addr.src })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    let _uncancelled = crate::ffi::Uncancelled::new();
    // SAFETY: an identifier.
    port(unsafe { &(*id).route.addr.dst })
}

fn port(address: &libc::sockaddr_storage) -> u16 {
    // SAFETY: an address, or all zeros, in memory that fits every family.
    let address = unsafe { read_address(ptr::from_ref(address).cast()) };
    address.map_or(0, |address| address.port().to_be())
}

/// Reads the address that a program passes to a call.
///
/// # Safety
/// `address` is null or the caller's.
pub(super) unsafe fn given(address: *const libc::sockaddr) -> Outcome<SocketAddr> {
    const AF_IB: c_int = 27;
    // SAFETY: the caller's promise.
    let found = unsafe { read_address(address) };
    found.ok_or_else(|| {
        // SAFETY: as above.
        let family = unsafe { address.as_ref() }.map(|address| c_int::from(address.sa_family));
        // Not explained: librdmacm itself tries AF_IB to see whether it is supported.
        let known = family == Some(AF_IB);
        Failure::plain(if known { libc::EAFNOSUPPORT } else { libc::EINVAL })
    })
}

//! The connection manager of a device. It makes progress with the device's engine, under the shard's
//! lock.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::cm::mad::{Mad, Recipient, RejReason};
use rxe_core::cm::service::{IpCmHeader, PortSpace};
use rxe_core::cm::{self, CLOSED_FOR, CmConfig, ConnId, ListenerId, Manager, Route};
use rxe_core::engine::{Engine, ReceivedMad};
use rxe_core::types::{Qpn, Time};
use rxe_net::{NetError, Sharing, closed_service};

use super::error::refused;
use super::queue::What;
use super::state::Mailbox;
use crate::device::{Device, WeakDevice};
use crate::error::{Error, Result};
use crate::os::random_u64;
use crate::progress::{ConnectionManager, Timers};

/// See the module's opening.
pub(crate) struct Agent {
    pub(super) manager: Manager,
    device: WeakDevice,
    ids: HashMap<ConnId, Arc<Mailbox>>,
    listeners: HashMap<ListenerId, Vec<Entry>>,
    services: HashMap<u64, ListenerId>,
    /// The services of listeners that have ended, the oldest first. Until that time, requests for them
    /// still come here if no other process listens.
    closed: VecDeque<(Time, u64, Option<IpAddr>)>,
}

/// The service and address to listen on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listen {
    pub(super) service_id: u64,
    /// May be unspecified.
    pub(super) address: IpAddr,
    /// Whether an unspecified address means its own family only.
    pub(super) afonly: bool,
    /// Requests that may wait; 0 is as many as allowed.
    pub(super) backlog: usize,
}

/// An identifier that listens on a service. Several identifiers may, on different addresses.
struct Entry {
    mailbox: Arc<Mailbox>,
    service_id: u64,
    address: IpAddr,
    afonly: bool,
}

/// The most requests to one service that may wait for the programs, as in the kernel.
const MAX_BACKLOG: usize = 1024;

/// The most ended listeners whose requests still come here.
const MAX_CLOSED: usize = 8;

impl Device {
    /// Disconnects all connections made by address, and answers peers that have disconnected once more.
    /// For programs that end without dropping their objects. No events follow. Returns `false` if the
    /// device was busy for longer than `timeout`: a program may end in the middle of a call.
    pub fn disconnect_all(&self, timeout: Duration) -> bool {
        if !self.shard().is_free_within(timeout) {
            return false;
        }
        if self.shard().with(|core| core.has_cm()).unwrap_or(false) {
            // If the device has failed, nobody can be told.
            let _ = self.with_cm(|agent, now| agent.disconnect_all(now));
        }
        true
    }

    /// Calls `f` with the device's connection manager. The first call makes it.
    pub(crate) fn with_cm<R>(&self, f: impl FnOnce(&mut Agent, Time) -> R) -> Result<R> {
        self.with_cm_and_sharing(|agent, _, now| f(agent, now))
    }

    /// As [`Device::with_cm`], with the control path of the backend too, if it shares its addresses.
    pub(crate) fn with_cm_and_sharing<R>(
        &self,
        f: impl FnOnce(&mut Agent, Option<&mut dyn Sharing>, Time) -> R,
    ) -> Result<R> {
        let make = || {
            let config = CmConfig {
                block: self.qpn_block().unwrap_or(0),
                guid: self.attr().node_guid.0,
                seed: random_u64()?,
            };
            Ok(Agent::new(config, self.downgrade()))
        };
        self.shard().with(|core| core.with_cm(make, f))?
    }
}

impl ConnectionManager for Agent {
    fn turn(
        &mut self,
        now: Time,
        engine: &mut Engine,
        established: &[Qpn],
        timers: Timers,
        sharing: Option<&mut dyn Sharing>,
    ) {
        while let Some(mad) = engine.poll_mad() {
            self.take(now, &mad);
        }
        for &qpn in established {
            self.manager.established_by(qpn);
        }
        if timers == Timers::ExcuseAndRun {
            self.manager.excuse_silence(now);
        }
        if matches!(timers, Timers::Run | Timers::ExcuseAndRun) {
            self.manager.handle_timeout(now);
            if self.closed.front().is_some_and(|(until, ..)| *until <= now) {
                self.forget_closed(sharing, |until, _| until <= now);
            }
        }
        self.flush(now, engine);
    }

    fn poll_timeout(&self) -> Option<Time> {
        let of_closed = self.closed.front().map(|(until, ..)| *until);
        [self.manager.poll_timeout(), of_closed].into_iter().flatten().min()
    }
}

impl Agent {
    pub(crate) fn new(config: CmConfig, device: WeakDevice) -> Self {
        Self {
            manager: Manager::new(config),
            device,
            ids: HashMap::new(),
            listeners: HashMap::new(),
            services: HashMap::new(),
            closed: VecDeque::new(),
        }
    }

    /// Passes events to the programs and messages to the engine.
    pub(super) fn flush(&mut self, now: Time, engine: &mut Engine) {
        let mut ended = Vec::new();
        while let Some(event) = self.manager.poll_event() {
            let id = event.id();
            self.dispatch(now, event);
            if !self.manager.contains(id) {
                ended.push(id);
            }
        }
        // After all events: a connection may have had several left.
        for id in ended {
            self.ids.remove(&id);
        }
        while let Some(out) = self.manager.poll_transmit() {
            // If the own address is gone, retries run out.
            let Route { local, remote, traffic_class } = out.route;
            let _ = engine.send_mad(local, remote, traffic_class, &out.mad);
        }
    }

    fn take(&mut self, now: Time, received: &ReceivedMad) {
        let ReceivedMad { src, dst, traffic_class, mad } = received;
        let mad = Mad::from_array(mad);
        debug_assert!(matches!(
            mad.recipient(),
            Some(Recipient::Service(_) | Recipient::CommId(_))
        ));
        let route = Route { local: *dst, remote: *src, traffic_class: *traffic_class };
        self.manager.handle_mad(now, route, &mad);
    }

    /// Listens for an identifier.
    pub(super) fn listen(
        &mut self,
        now: Time,
        wanted: Listen,
        mailbox: &Arc<Mailbox>,
        mut sharing: Option<&mut dyn Sharing>,
    ) -> Result<ListenerId> {
        let Listen { service_id, address, afonly, backlog } = wanted;
        let backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        let port = PortSpace::of_service(service_id).map_or(0, |(_, port)| port);
        let listener = self.services.get(&service_id).copied();
        let taken = listener.and_then(|l| self.listeners.get(&l));
        if taken.is_some_and(|entries| entries.iter().any(|e| e.address == address)) {
            return Err(Error::ListenedTo { asked: SocketAddr::new(address, port), taken: None });
        }
        // Without this, requests on this address go to other processes.
        if let Some(sharing) = &mut sharing {
            sharing.listen(service_id, at(address, afonly)).map_err(|e| match e {
                NetError::ServiceTaken { address: taken, .. } => {
                    let asked = SocketAddr::new(address, port);
                    Error::ListenedTo { asked, taken: Some(taken) }
                }
                e => e.into(),
            })?;
        }
        self.forget_closed(sharing, |_, closed| closed == closed_service(service_id));
        let listener = match listener {
            Some(listener) => {
                self.manager.widen(listener, backlog);
                listener
            }
            None => {
                let listener = self.manager.listen(now, service_id, backlog).map_err(refused)?;
                self.services.insert(service_id, listener);
                listener
            }
        };
        let entry = Entry { mailbox: Arc::clone(mailbox), service_id, address, afonly };
        self.listeners.entry(listener).or_default().push(entry);
        Ok(listener)
    }

    pub(super) fn unlisten(
        &mut self,
        now: Time,
        listener: ListenerId,
        mailbox: &Arc<Mailbox>,
        mut sharing: Option<&mut dyn Sharing>,
    ) {
        let Some(entries) = self.listeners.get_mut(&listener) else { return };
        entries.retain(|entry| {
            let goes = Arc::ptr_eq(&entry.mailbox, mailbox);
            if goes && let Some(sharing) = &mut sharing {
                let (service, at) = (entry.service_id, at(entry.address, entry.afonly));
                sharing.unlisten(service, at);
                let closed = closed_service(service);
                let before = self.closed.len();
                self.closed.retain(|&(_, other, other_at)| (other, other_at) != (closed, at));
                let has_it = self.closed.len() < before;
                // Each ended listener costs one descriptor for each address. If another process has the
                // service already, requests go there.
                if has_it || before < MAX_CLOSED && sharing.listen(closed, at).is_ok() {
                    self.closed.push_back((now + CLOSED_FOR, closed, at));
                }
            }
            !goes
        });
        if entries.is_empty() {
            self.listeners.remove(&listener);
            self.services.retain(|_, l| *l != listener);
            self.manager.unlisten(now, listener);
            let manager = &self.manager;
            self.ids.retain(|id, _| manager.contains(*id));
        }
    }

    /// No longer takes requests for the ended listeners for which `goes` is true.
    fn forget_closed(
        &mut self,
        mut sharing: Option<&mut dyn Sharing>,
        goes: impl Fn(Time, u64) -> bool,
    ) {
        self.closed.retain(|&(until, closed, at)| {
            let goes = goes(until, closed);
            if goes && let Some(sharing) = &mut sharing {
                sharing.unlisten(closed, at);
            }
            !goes
        });
    }

    pub(super) fn register(&mut self, id: ConnId, mailbox: &Arc<Mailbox>) {
        self.ids.insert(id, Arc::clone(mailbox));
    }

    /// Destroys a connection, which the program does not need any more.
    pub(super) fn destroy(&mut self, now: Time, id: ConnId) {
        self.ids.remove(&id);
        self.manager.destroy(now, id);
    }

    /// Disconnects all connections, for [`Device::disconnect_all`].
    pub(crate) fn disconnect_all(&mut self, now: Time) {
        self.ids.clear();
        self.manager.close_at_exit(now);
    }

    /// Refuses a request or an answer without telling the program.
    pub(super) fn refuse(&mut self, id: ConnId, reason: RejReason) {
        // If the connection has ended already, the peer needs no refusal.
        let _ = self.manager.reject(id, reason, &[], &[]);
        self.ids.remove(&id);
    }

    fn dispatch(&mut self, now: Time, event: cm::CmEvent) {
        let id = event.id();
        let (mailbox, listener) = match &event {
            cm::CmEvent::Request { listener, req, .. } => {
                (None, self.entry(*listener, req.private_data.first_chunk()))
            }
            cm::CmEvent::Resolve { listener, req, .. } => {
                (None, self.entry(*listener, req.private_data.first_chunk()))
            }
            _ => (self.ids.get(&id).cloned(), None),
        };
        let mailbox = match (mailbox, &listener) {
            (Some(mailbox), _) => mailbox,
            (None, Some(listener)) => {
                let mailbox = Mailbox::new(listener.queue());
                self.ids.insert(id, Arc::clone(&mailbox));
                mailbox
            }
            (None, None) => {
                // No identifier listens on that address, or it is gone.
                let reason = RejReason::INVALID_SERVICE_ID;
                if self.manager.reject(id, reason, &[], &[]).is_err() {
                    self.manager.destroy(now, id);
                }
                return;
            }
        };
        let what = What::Manager { device: self.device.clone(), event: Box::new(event), listener };
        if mailbox.push(what).is_err() {
            self.destroy(now, id);
        }
    }

    /// The identifier that listens on the address that a request is for.
    fn entry(&self, listener: ListenerId, header: Option<&[u8; 36]>) -> Option<Arc<Mailbox>> {
        let asked = IpCmHeader::parse(header?)?.dst;
        let entries = self.listeners.get(&listener)?;
        let exact = entries.iter().find(|e| e.address == asked);
        let any = || {
            entries.iter().find(|e| {
                let family = e.address.is_ipv4() == asked.is_ipv4();
                e.address.is_unspecified() && (family || (e.address.is_ipv6() && !e.afonly))
            })
        };
        exact.or_else(any).map(|e| Arc::clone(&e.mailbox))
    }
}

/// The address to listen on, as backends take it; `None` is all addresses.
fn at(address: IpAddr, afonly: bool) -> Option<IpAddr> {
    let all = address.is_unspecified() && address.is_ipv6() && !afonly;
    (!all).then_some(address)
}

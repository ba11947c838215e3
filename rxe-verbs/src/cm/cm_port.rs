//! The connection manager of a device. It takes its turns with the device's engine, under the
//! shard's lock.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::cm::mad::{Mad, Recipient, RejReason, SidrRep};
use rxe_core::cm::service::{IpCmHeader, PortSpace};
use rxe_core::cm::{self, CmConfig, CmError, ConnId, ListenerId, Manager, Route};
use rxe_core::engine::{Engine, ReceivedMad};
use rxe_core::types::{Mtu, Time};
use rxe_core::wire::NetHeader;
use rxe_net::{NetError, PeerProbes};

use super::error::refused;
use super::queue::{CmMessage, Request};
use super::state::{IdInner, IdQueue};
use crate::device::{Device, WeakDevice};
use crate::error::{Error, Result};
use crate::progress::{CmList, ConnectionManager, Timers};

/// A device's connection manager and the event queues of the program's identifiers.
pub(crate) struct CmPort {
    pub(super) manager: Manager,
    device: WeakDevice,
    ids: HashMap<ConnId, Arc<IdQueue>>,
    listeners: HashMap<ListenerId, Vec<Entry>>,
    services: HashMap<u64, ListenerId>,
    /// Liveness probes to peers leave from their own sockets.
    asks_by_socket: bool,
}

/// Whether and how a device's connection manager asks whether peers still exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keepalive {
    Off,
    /// From separate sockets, so that an ICMP message about a question is received.
    BySocket,
    /// Like other messages, because a firewall may let no other source port through.
    AsMessage,
}

/// The service and address to listen on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listen {
    pub(super) service_id: u64,
    /// The address, which may be unspecified.
    pub(super) address: IpAddr,
    /// Whether an unspecified address covers only its own family.
    pub(super) afonly: bool,
    /// The number of requests that may wait; 0 means the maximum.
    pub(super) backlog: usize,
}

/// An identifier that listens on a service. Several may listen on one service, on different
/// addresses.
struct Entry {
    id_queue: Arc<IdQueue>,
    wanted: Listen,
}

/// The most requests to one service that may wait for the programs, as in the kernel.
const MAX_BACKLOG: usize = 1024;

impl Device {
    /// Disconnects all connections established by address. Repeats the answer to peers that have
    /// disconnected. For programs that end without dropping their objects. No events follow.
    /// Returns `false` if the device was busy for longer than `timeout`: a program may end in the
    /// middle of a call.
    pub fn disconnect_all(&self, timeout: Duration) -> bool {
        if self.shard().with_lock_within(timeout, |_| ()).is_none() {
            return false;
        }
        if self.shard().with(|core| core.has_cm()).unwrap_or(false) {
            // If the device has failed, no peer can be told.
            let _ = self.with_cm(|port, now| port.disconnect_all(now));
        }
        true
    }

    /// Listens for an identifier, also for requests that other processes receive.
    pub(super) fn listen(&self, wanted: Listen, id_queue: &Arc<IdQueue>) -> Result<ListenerId> {
        let listener = self.with_cm(|port, now| port.listen(now, wanted, id_queue))??;
        let (service, at) = wanted.at();
        // From now on, requests that other processes received arrive here too.
        if let Some(groups) = self.port_groups()
            && let Err(e) = groups.listen(service, at)
        {
            self.with_cm(|port, now| port.unlisten(now, listener, id_queue))?;
            return Err(match e {
                NetError::ServiceTaken { address, .. } => wanted.taken(Some(address)),
                e => e.into(),
            });
        }
        Ok(listener)
    }

    /// Undoes [`Device::listen`].
    pub(super) fn unlisten(&self, listener: ListenerId, id_queue: &Arc<IdQueue>) {
        // If the device has failed, its listeners have ended.
        let ended = self.with_cm(|port, now| port.unlisten(now, listener, id_queue));
        for wanted in ended.unwrap_or_default() {
            if let Some(groups) = self.port_groups() {
                let (service, at) = wanted.at();
                groups.close_listener(service, at);
            }
        }
    }

    /// Calls `f` with the device's connection manager. The first call creates it.
    pub(crate) fn with_cm<R>(&self, f: impl FnOnce(&mut CmPort, Time) -> R) -> Result<R> {
        let make = || {
            let config = CmConfig {
                block: self.qpn_block().unwrap_or(0),
                guid: self.attr().node_guid.0,
                seed: self.shard().environment().random_u64()?,
            };
            let keepalive = match self.keepalive() {
                (false, _) => Keepalive::Off,
                (true, true) => Keepalive::BySocket,
                (true, false) => Keepalive::AsMessage,
            };
            Ok(CmPort::new(config, self.downgrade(), keepalive))
        };
        self.shard().with(|core| core.with_cm(make, f))?
    }
}

impl Listen {
    /// Returns the service and the address for the port groups; `None` is all addresses.
    fn at(self) -> (u64, Option<IpAddr>) {
        let Self { service_id, address, afonly, .. } = self;
        let all = address.is_unspecified() && address.is_ipv6() && !afonly;
        (service_id, (!all).then_some(address))
    }

    /// Returns the error of a service that is taken; by a listener on `address` if in another
    /// process.
    fn taken(self, address: Option<IpAddr>) -> Error {
        let port = PortSpace::of_service(self.service_id).map_or(0, |(_, port)| port);
        Error::ListenedTo { asked: SocketAddr::new(self.address, port), taken: address }
    }
}

impl ConnectionManager for CmPort {
    fn turn(&mut self, now: Time, engine: &mut Engine, timers: Timers) {
        while let Some(mad) = engine.poll_mad() {
            self.take(now, &mad);
        }
        for qpn in engine.take_first_packets() {
            self.manager.established_by(qpn);
        }
        if timers == Timers::ExcuseAndRun {
            self.manager.excuse_silence(now);
        }
        if matches!(timers, Timers::Run | Timers::ExcuseAndRun) {
            self.manager.handle_timeout(now);
        }
        self.flush(now, engine);
    }

    fn exchange_probes(&mut self, engine: &mut Engine, probes: Option<&mut PeerProbes>) {
        let mut probes = probes.filter(|_| self.asks_by_socket);
        if let Some(probes) = &mut probes {
            probes.unreachable_reports(&mut |peer, mad| {
                self.manager.unreachable(peer.into(), &Mad::from_array(mad));
            });
        }
        while let Some(out) = self.manager.poll_question() {
            let Route { local, remote, traffic_class } = out.route;
            let net = NetHeader::outgoing(local.to_ip(), remote.to_ip(), 0);
            let net = NetHeader { tos: traffic_class, ..net };
            let asked = probes.as_mut().is_some_and(|probes| probes.probe(&net, &out.mad));
            if !asked {
                let _ = engine.send_mad(local, remote, traffic_class, &out.mad);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.manager.poll_timeout()
    }

    fn list(&self, max: usize) -> CmList {
        CmList {
            services: self.manager.services().take(max).collect(),
            connections: self.manager.list(max),
            total: self.manager.services().len() + self.manager.len(),
        }
    }
}

impl CmPort {
    fn new(config: CmConfig, device: WeakDevice, keepalive: Keepalive) -> Self {
        let mut manager = Manager::new(config);
        manager.set_keepalive(keepalive != Keepalive::Off);
        Self {
            manager,
            asks_by_socket: keepalive == Keepalive::BySocket,
            device,
            ids: HashMap::new(),
            listeners: HashMap::new(),
            services: HashMap::new(),
        }
    }

    /// Passes events to the program and messages to the engine.
    pub(super) fn flush(&mut self, now: Time, engine: &mut Engine) {
        let mut ended = Vec::new();
        while let Some(event) = self.manager.poll_event() {
            let id = event.id();
            self.dispatch(now, event, engine.config().max_mtu);
            if !self.manager.contains(id) {
                ended.push(id);
            }
        }
        // After all events, because a connection may have had several.
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

    /// Listens for an identifier. Identifiers on different addresses share the manager's listener.
    fn listen(&mut self, now: Time, wanted: Listen, id_queue: &Arc<IdQueue>) -> Result<ListenerId> {
        let Listen { service_id, backlog, .. } = wanted;
        let backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        let wanted = Listen { backlog, ..wanted };
        let listener = self.services.get(&service_id).copied();
        let entries = listener.and_then(|l| self.listeners.get(&l)).into_iter().flatten();
        if entries.into_iter().any(|e| e.wanted.address == wanted.address) {
            return Err(wanted.taken(None));
        }
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let listener = self.manager.listen(now, service_id, backlog).map_err(refused)?;
                self.services.insert(service_id, listener);
                listener
            }
        };
        let entry = Entry { id_queue: Arc::clone(id_queue), wanted };
        self.listeners.entry(listener).or_default().push(entry);
        self.update_backlog(listener);
        Ok(listener)
    }

    /// Sets the listener's backlog to the sum of its identifiers' backlogs.
    fn update_backlog(&mut self, listener: ListenerId) {
        let entries = self.listeners.get(&listener).into_iter().flatten();
        let backlog = entries.map(|entry| entry.wanted.backlog).sum();
        self.manager.set_backlog(listener, backlog);
    }

    /// Undoes [`CmPort::listen`]. Returns the services and addresses that are no longer listened
    /// to.
    fn unlisten(
        &mut self,
        now: Time,
        listener: ListenerId,
        id_queue: &Arc<IdQueue>,
    ) -> Vec<Listen> {
        let Some(entries) = self.listeners.get_mut(&listener) else { return Vec::new() };
        let ended = entries.extract_if(.., |entry| Arc::ptr_eq(&entry.id_queue, id_queue));
        let ended: Vec<_> = ended.map(|entry| entry.wanted).collect();
        if entries.is_empty() {
            self.listeners.remove(&listener);
            ended.iter().for_each(|wanted| {
                self.services.remove(&wanted.service_id);
            });
            for id in self.manager.unlisten(now, listener) {
                self.ids.remove(&id);
            }
        } else {
            self.update_backlog(listener);
        }
        ended
    }

    pub(super) fn register(&mut self, id: ConnId, id_queue: &Arc<IdQueue>) {
        self.ids.insert(id, Arc::clone(id_queue));
    }

    /// Destroys a connection that the program does not need any more. If the connection has ended,
    /// `id` may belong to another connection with another event queue, which stays.
    pub(super) fn destroy(&mut self, now: Time, id: ConnId, id_queue: &Arc<IdQueue>) {
        if self.ids.get(&id).is_some_and(|m| Arc::ptr_eq(m, id_queue)) {
            self.ids.remove(&id);
            self.manager.destroy(now, id);
        }
    }

    /// Disconnects all connections, for [`Device::disconnect_all`].
    pub(crate) fn disconnect_all(&mut self, now: Time) {
        self.ids.clear();
        self.manager.close_at_exit(now);
    }

    /// Rejects a request or an answer without telling the program.
    pub(super) fn refuse(&mut self, id: ConnId, reason: RejReason) {
        // If the connection has ended already, the peer needs no rejection.
        let _ = self.reject(id, reason, &[]);
    }

    /// Rejects a request or an answer. Afterwards the ID may belong to another connection.
    pub(super) fn reject(
        &mut self,
        id: ConnId,
        reason: RejReason,
        private_data: &[u8],
    ) -> std::result::Result<(), CmError> {
        self.manager.reject(id, reason, &[], private_data)?;
        self.ids.remove(&id);
        Ok(())
    }

    /// Answers a query. The manager repeats the answer if necessary, as long as it keeps the query.
    /// Afterwards the ID may belong to another connection.
    pub(super) fn answer_sidr(
        &mut self,
        now: Time,
        id: ConnId,
        rep: SidrRep,
    ) -> std::result::Result<(), CmError> {
        self.manager.answer_sidr(now, id, rep)?;
        self.ids.remove(&id);
        Ok(())
    }

    fn dispatch(&mut self, now: Time, event: cm::CmEvent, max_mtu: Mtu) {
        let id = event.id();
        // Rejected here, because the program would be woken and then find no event.
        if let cm::CmEvent::Request { req, .. } = &event
            && Mtu::from_verbs(req.path_mtu).is_some_and(|asked| asked > max_mtu)
        {
            let _ = self.manager.reject(id, RejReason::INVALID_MTU, &[], &[]);
            return;
        }
        let (id_queue, listener) = match &event {
            cm::CmEvent::Request { listener, req, .. } => {
                (None, self.entry(*listener, req.private_data.first_chunk()))
            }
            cm::CmEvent::Resolve { listener, req, .. } => {
                (None, self.entry(*listener, req.private_data.first_chunk()))
            }
            _ => (self.ids.get(&id).cloned(), None),
        };
        let id_queue = match (id_queue, &listener) {
            (Some(id_queue), _) => id_queue,
            (None, Some(listener)) => {
                let id_queue = IdQueue::new(listener.queue());
                self.ids.insert(id, Arc::clone(&id_queue));
                id_queue
            }
            (None, None) => {
                // No identifier listens on that address any more.
                let reason = RejReason::INVALID_SERVICE_ID;
                if self.manager.reject(id, reason, &[], &[]).is_err() {
                    self.manager.destroy(now, id);
                }
                return;
            }
        };
        let message =
            CmMessage::Manager { device: self.device.clone(), event: Box::new(event), listener };
        if id_queue.push(message).is_err() {
            self.destroy(now, id, &id_queue);
        }
    }

    /// Returns the identifier that listens on the address to which a request was sent.
    fn entry(&self, listener: ListenerId, header: Option<&[u8; 36]>) -> Option<Arc<IdQueue>> {
        let asked = IpCmHeader::parse(header?)?.dst;
        let entries = self.listeners.get(&listener)?;
        let exact = entries.iter().find(|e| e.wanted.address == asked);
        let any = || {
            entries.iter().find(|e| {
                let Listen { address, afonly, .. } = e.wanted;
                let family = address.is_ipv4() == asked.is_ipv4();
                address.is_unspecified() && (family || (address.is_ipv6() && !afonly))
            })
        };
        exact.or_else(any).map(|e| Arc::clone(&e.id_queue))
    }
}

/// Destroys requests that no program can take any more.
pub(super) fn destroy_requests(requests: Vec<Request<IdInner>>) {
    for Request { device, conn, id_queue } in requests {
        if let Some(device) = device.upgrade() {
            // If the device has failed, the peer is not told.
            let _ = device.with_cm(|port, now| port.destroy(now, conn, &id_queue));
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::types::Qpn;

    use super::*;
    use crate::cm::{CmEventKind, CmId, ConnParam, EventChannel};
    use crate::objects::{CompletionQueue, ProtectionDomain, QpBuilder};

    struct Host {
        ip: IpAddr,
        device: Device,
        channel: EventChannel,
        pd: ProtectionDomain,
        cq: CompletionQueue,
    }

    impl Host {
        fn new(last: u8) -> Self {
            let ip = [127, 77, 2, last].into();
            let device = Device::options("lo").address(ip).open().unwrap();
            let channel = EventChannel::on(std::slice::from_ref(&device)).unwrap();
            let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(16).unwrap());
            Self { ip, device, channel, pd, cq }
        }

        fn qp(&self) -> QpBuilder {
            self.pd.qp(&self.cq)
        }

        fn expect(&self, kind: CmEventKind) -> CmId {
            let event = self.channel.wait_event(Duration::from_secs(10)).unwrap();
            assert_eq!(event.kind, kind);
            event.id
        }

        /// Asserts that neither the identifier nor the port names a connection. Then the manager
        /// may reuse its ID.
        fn names_none(&self, id: &CmId) {
            assert_eq!(id.state().conn, None);
            assert!(self.device.with_cm(|port, _| port.ids.is_empty()).unwrap());
        }
    }

    /// Sends a request from one host to another. Calls `answer` with both hosts and the identifiers
    /// of the two ends.
    fn ask(space: PortSpace, answer: impl FnOnce([&Host; 2], [&CmId; 2])) {
        let (client, server) = (Host::new(1), Host::new(2));
        let listener = server.channel.create_id(space).unwrap();
        listener.bind_addr(SocketAddr::new(server.ip, 0)).unwrap();
        listener.listen(1).unwrap();
        let a = client.channel.create_id(space).unwrap();
        a.resolve_addr(None, listener.local_addr().unwrap()).unwrap();
        client.expect(CmEventKind::AddrResolved);
        a.resolve_route().unwrap();
        client.expect(CmEventKind::RouteResolved);
        a.connect(&ConnParam { qp_num: Some(Qpn::from_wire(0x77)), ..ConnParam::default() })
            .unwrap();
        let b = server.expect(CmEventKind::ConnectRequest);
        answer([&client, &server], [&a, &b]);
    }

    #[test]
    fn an_identifier_does_not_name_a_connection_that_its_manager_has_forgotten() {
        ask(PortSpace::Tcp, |[_, server], [_, b]| {
            b.reject(b"").unwrap();
            server.names_none(b);
        });
        ask(PortSpace::Tcp, |[_, server], [_, b]| {
            b.create_qp(server.qp()).unwrap().to_error().unwrap();
            b.accept(&ConnParam::default()).unwrap_err();
            server.names_none(b);
        });
        ask(PortSpace::Tcp, |[client, server], [a, b]| {
            b.create_qp(server.qp()).unwrap();
            b.accept(&ConnParam::default()).unwrap();
            client.expect(CmEventKind::ConnectResponse);
            a.reject(b"").unwrap();
            client.names_none(a);
        });
        ask(PortSpace::Udp, |[client, server], [_, b]| {
            b.reject(b"").unwrap();
            server.names_none(b);
            client.expect(CmEventKind::Unreachable);
        });
        ask(PortSpace::Udp, |[client, server], [_, b]| {
            b.create_qp(server.qp()).unwrap();
            b.accept(&ConnParam::default()).unwrap();
            server.names_none(b);
            client.expect(CmEventKind::Established);
        });
    }

    #[test]
    fn a_connection_with_the_id_of_an_old_one_does_not_end_with_the_old_identifier() {
        ask(PortSpace::Tcp, |[_, server], [_, b]| {
            let conn = b.state().conn.unwrap();
            let (own, old) = (&b.inner.id_queue, IdQueue::new(b.inner.id_queue.queue()));
            let stays = |id_queue| {
                let destroy = |port: &mut CmPort, now| {
                    port.destroy(now, conn, id_queue);
                    port.manager.contains(conn)
                };
                server.device.with_cm(destroy).unwrap()
            };
            assert!(stays(&old));
            assert!(!stays(own));
        });
    }
}

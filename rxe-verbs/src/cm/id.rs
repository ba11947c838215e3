//! Identifiers: addresses, devices, queue pairs, options. `rdma_cm_id`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rxe_core::cm::service::PortSpace;
use rxe_core::mem::Access;
use rxe_core::qp::QpType;
use rxe_core::types::{AckTimeout, Gid, Mtu, Psn, Qpn};

use super::cm_port::destroy_requests;
use super::error::invalid;
use super::event::{CmEventKind, CmParam};
use super::ports::{Port, Wanted, default_afonly};
use super::queue::CmMessage;
use super::state::{AgreedParam, ChannelInner, IdInner, IdQueue, Options, Stage, State};
use crate::device::Device;
use crate::error::Result;
use crate::objects::{QpBuilder, QueuePair};
use crate::observe::{UseCounts, closed};

/// An identifier, which listens or is one end of a connection. It may also be one end of a datagram
/// service. When the last handle is dropped, the peer is told that the connection has ended.
#[derive(Clone)]
pub struct CmId {
    pub(super) inner: Arc<IdInner>,
}

/// The code of the default ACK timeout, 0.27 s: longer than a busy peer takes, shorter than a
/// program notices.
pub(super) const ACK_TIMEOUT: u8 = 16;

impl CmId {
    pub(super) fn new(channel: &Arc<ChannelInner>, space: PortSpace) -> Result<Self> {
        Self::with_id_queue(channel, space, IdQueue::new(Arc::clone(&channel.queue)))
    }

    pub(super) fn with_id_queue(
        channel: &Arc<ChannelInner>,
        space: PortSpace,
        id_queue: Arc<IdQueue>,
    ) -> Result<Self> {
        let state = State {
            channel: Arc::clone(channel),
            stage: Stage::Idle,
            port: None,
            local: None,
            peer: None,
            device: None,
            conn: None,
            listening: Vec::new(),
            qp: None,
            foreign_qpn: None,
            psn: Psn::new(channel.environment.random_u32()?),
            agreed: AgreedParam {
                remote_qpn: Qpn::default(),
                remote_psn: Psn::default(),
                mtu: Mtu::M1024,
                responder_resources: 16,
                initiator_depth: 16,
                retry_count: 7,
                rnr_retry_count: 7,
                ack_timeout: AckTimeout::new(ACK_TIMEOUT).unwrap_or_default(),
                flow_label: 0,
                service: QpType::Rc,
            },
            options: Options::default(),
            groups: Vec::new(),
            ended: false,
        };
        let inner = Arc::new(IdInner { space, id_queue, state: Mutex::new(state) });
        inner.id_queue.set_id(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// Returns a number that is unique among existing identifiers.
    pub fn key(&self) -> u64 {
        Arc::as_ptr(&self.inner).addr() as u64
    }

    /// Returns the port space of the identifier.
    pub fn port_space(&self) -> PortSpace {
        self.inner.space
    }

    /// Returns the device, once an address determines it.
    pub fn device(&self) -> Option<Device> {
        self.state().device.clone()
    }

    /// Returns the own address and port, once they are known.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.state().local
    }

    /// Returns the peer's address and port, once they are known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.state().peer
    }

    /// Returns the queue pair that [`CmId::create_qp`] created.
    pub fn qp(&self) -> Option<Arc<QueuePair>> {
        self.state().qp.clone()
    }

    /// Returns the index of the own address in the device's GID table.
    pub fn gid_index(&self) -> Option<u16> {
        let state = self.state();
        let gid = Gid::from(state.local?.ip());
        let at = state.device.as_ref()?.gids().iter().position(|g| *g == gid)?;
        u16::try_from(at).ok()
    }

    /// Binds the identifier to an own address and port. Port 0 means any free port, an unspecified
    /// address means all addresses. A specific address determines the device.
    ///
    /// # Errors
    /// The identifier has an address already, no device has the address, or the port is taken.
    pub fn bind_addr(&self, address: SocketAddr) -> Result<()> {
        let mut state = self.state();
        self.bind(&mut state, address)
    }

    pub(super) fn bind(&self, state: &mut State, address: SocketAddr) -> Result<()> {
        if state.stage != Stage::Idle {
            return Err(invalid("it has an address already"));
        }
        let mut device = None;
        if !address.ip().is_unspecified() {
            let found = state.channel.devices.with_address(address.ip());
            // Programs bind a loopback address to check whether rdma_cm is available. Listening
            // there needs a device.
            let asks = address.ip().is_loopback()
                && found.as_ref().is_err_and(|e| e.errno() == libc::ENODEV);
            device = if asks { None } else { Some(found?) };
        }
        let environment = &state.channel.environment;
        let (reuse, key) = (state.options.reuseaddr, environment.random_u64()?);
        let afonly = state.options.afonly.unwrap_or_else(|| default_afonly(address.ip()));
        let wanted = Wanted { address, reuse, afonly, key };
        let port = Port::take(environment, self.inner.space, wanted)?;
        state.options.afonly = Some(afonly);
        state.local = Some(port.address());
        state.port = Some(port);
        if let Some(device) = device {
            state.set_device(&self.inner.id_queue, device);
        }
        state.stage = Stage::Bound;
        Ok(())
    }

    /// Finds the device that leads to `peer`. [`CmEventKind::AddrResolved`] or
    /// [`CmEventKind::AddrError`] reports the result. Binds to `local` first; if it is `None`, the
    /// kernel chooses the own address.
    ///
    /// # Errors
    /// The identifier is in another state, `local` cannot be bound, or the families of the
    /// addresses differ.
    pub fn resolve_addr(&self, local: Option<SocketAddr>, peer: SocketAddr) -> Result<()> {
        let mut state = self.state();
        let peer = match peer.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => (Ipv4Addr::LOCALHOST, peer.port()).into(),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => (Ipv6Addr::LOCALHOST, peer.port()).into(),
            _ => peer,
        };
        if let Some(local) = local
            && state.stage == Stage::Idle
        {
            self.bind(&mut state, local)?;
        }
        if !matches!(state.stage, Stage::Idle | Stage::Bound) {
            return Err(invalid("its address is resolved already, or it listens"));
        }
        if state.local.is_some_and(|local| local.is_ipv4() != peer.is_ipv4()) {
            return Err(invalid("own address and peer have different address families"));
        }
        let before = state.stage;
        let result = self.find_way(&mut state, peer);
        drop(state);
        let (kind, status) = match result {
            Ok(()) => (CmEventKind::AddrResolved, 0),
            Err(e) => {
                self.state().stage = before;
                (CmEventKind::AddrError, -e.errno())
            }
        };
        self.post(kind, status, CmParam::None);
        Ok(())
    }

    fn find_way(&self, state: &mut State, peer: SocketAddr) -> Result<()> {
        let own = state.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let (device, ip) = match (&state.device, own) {
            (Some(device), Some(ip)) => (device.clone(), ip),
            _ => state.channel.devices.towards(peer)?,
        };
        if state.stage == Stage::Idle {
            let environment = &state.channel.environment;
            let (address, key) = (SocketAddr::new(ip, 0), environment.random_u64()?);
            let wanted = Wanted { address, reuse: false, afonly: true, key };
            state.port = Some(Port::take(environment, self.inner.space, wanted)?);
        }
        let port = state.port.as_ref().map_or(0, |port| port.address().port());
        state.local = Some(SocketAddr::new(ip, port));
        state.peer = Some(peer);
        state.set_device(&self.inner.id_queue, device);
        state.stage = Stage::AddrResolved;
        Ok(())
    }

    /// Finds the route to the peer. [`CmEventKind::RouteResolved`] follows. On Ethernet the address
    /// determines the route, so nothing is looked up.
    ///
    /// # Errors
    /// The address is not resolved yet.
    pub fn resolve_route(&self) -> Result<()> {
        let mut state = self.state();
        if state.stage != Stage::AddrResolved {
            return Err(invalid("resolve its address first"));
        }
        state.stage = Stage::RouteResolved;
        drop(state);
        self.post(CmEventKind::RouteResolved, 0, CmParam::None);
        Ok(())
    }

    /// Creates the queue pair of this identifier. Its state follows the connection, and receives
    /// may be posted immediately. A datagram queue pair is ready immediately.
    ///
    /// # Errors
    /// The identifier has no device or has a queue pair already, or the queue pair cannot be
    /// created.
    pub fn create_qp(&self, builder: QpBuilder) -> Result<Arc<QueuePair>> {
        let mut state = self.state();
        let device = state.device.clone().ok_or_else(|| invalid("it has no device yet"))?;
        if state.qp.is_some() {
            return Err(invalid("it has a queue pair already"));
        }
        let gid_index = state.local.map(|local| device.gid_index_of(local.ip()));
        let builder = match gid_index.flatten() {
            Some(index) => builder.gid_index(index),
            None => builder,
        };
        let builder = match self.inner.space {
            PortSpace::Udp | PortSpace::Ipoib => builder.service(QpType::Ud).qkey(super::UDP_QKEY),
            _ => builder,
        };
        let qp = Arc::new(builder.build()?);
        device.owns(qp.device(), "the protection domain")?;
        match qp.service() {
            QpType::Ud => qp.activate()?,
            _ => qp.to_init(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)?,
        }
        state.agreed.service = qp.service();
        state.qp = Some(Arc::clone(&qp));
        Ok(qp)
    }

    /// Sets the transport service of a program's own queue pair; RC by default.
    pub fn set_service(&self, service: QpType) {
        self.state().agreed.service = service;
    }

    /// Releases the queue pair, which is destroyed with its last handle.
    pub fn destroy_qp(&self) {
        self.state().qp = None;
    }

    /// Sets the IPv4 type of service or IPv6 traffic class of a later connection.
    pub fn set_tos(&self, tos: u8) {
        self.state().options.tos = tos;
    }

    /// Sets whether the identifier shares its port with others that allow it too. Can be allowed
    /// until the identifier listens, and forbidden until it is bound.
    ///
    /// # Errors
    /// The identifier listens, or is bound and `reuse` is false.
    pub fn set_reuseaddr(&self, reuse: bool) -> Result<()> {
        let mut state = self.state();
        if state.stage != Stage::Idle && (!reuse || state.stage == Stage::Listening) {
            return Err(invalid("it is bound already"));
        }
        state.options.reuseaddr = reuse;
        if let Some(port) = &state.port {
            port.set_reuse(reuse);
        }
        Ok(())
    }

    /// Sets whether an unspecified address covers only its own family. Then another identifier may
    /// listen on the same port of the other family. By default that is so for IPv4, and for IPv6 if
    /// the kernel is configured so (`net.ipv6.bindv6only`). Call it before listening.
    ///
    /// # Errors
    /// The identifier is past binding.
    pub fn set_afonly(&self, only: bool) -> Result<()> {
        let mut state = self.state();
        if !matches!(state.stage, Stage::Idle | Stage::Bound) {
            return Err(invalid("it is used already"));
        }
        state.options.afonly = Some(only);
        if let Some(port) = &state.port {
            port.set_afonly(only);
        }
        Ok(())
    }

    /// Sets how long the queue pair waits for acknowledgements.
    pub fn set_ack_timeout(&self, timeout: AckTimeout) {
        self.state().options.ack_timeout = Some(timeout);
    }

    /// Tells the peer, in any state, that the connection has ended. For programs that end without
    /// dropping their objects. No events follow. Returns `false` if a lock was not free within
    /// `timeout`: a program may end in the middle of a call.
    pub fn disconnect_at_exit(&self, timeout: Duration) -> bool {
        let Some(mut state) = self.inner.state.try_lock_for(timeout) else { return false };
        if let (Some(device), Some(id)) = (state.device.clone(), state.conn) {
            if device.shard().with_lock_within(timeout, |_| ()).is_none() {
                return false;
            }
            // If the device has failed, the peer cannot be told.
            let id_queue = &self.inner.id_queue;
            let _ = device.with_cm(|port, now| port.destroy(now, id, id_queue));
            state.conn = None;
        }
        state.stage = Stage::Over;
        true
    }

    /// Adds the program's own event, with a number, to the channel: [`CmEventKind::User`], or the
    /// result of resolving a name.
    ///
    /// # Errors
    /// Programs cannot create events of this kind.
    pub fn write_event(&self, kind: CmEventKind, status: i32, arg: u64) -> Result<()> {
        use CmEventKind::{AddrinfoError, AddrinfoResolved, User};
        if !matches!(kind, User | AddrinfoResolved | AddrinfoError) {
            return Err(invalid("programs make events of the kind RDMA_CM_EVENT_USER only"));
        }
        self.post(kind, status, CmParam::User(arg));
        Ok(())
    }

    /// Closes the identifier.
    ///
    /// # Errors
    /// Another handle exists; the identifier ends with the last handle.
    pub fn close(self) -> Result<()> {
        closed(UseCounts::NONE, Arc::strong_count(&self.inner) - 1, "the identifier")
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }

    /// Adds the event of a completed call to the channel.
    pub(super) fn post(&self, kind: CmEventKind, status: i32, param: CmParam) {
        // The state keeps the channel open, so this cannot fail.
        let _ = self.inner.id_queue.push(CmMessage::Local { kind, status, param });
    }

    pub(super) fn from_inner(inner: Arc<IdInner>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("CmId")
            .field("space", &self.inner.space)
            .field("stage", &state.stage)
            .field("local", &state.local)
            .field("peer", &state.peer)
            .finish_non_exhaustive()
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let id_queue = &self.id_queue;
        for (device, listener) in state.listening.drain(..) {
            device.unlisten(listener, id_queue);
        }
        // If a device has failed, the peer cannot be told.
        if let (Some(device), Some(id)) = (&state.device, state.conn) {
            let _ = device.with_cm(|port, now| port.destroy(now, id, id_queue));
        }
        if let Some(device) = &state.device {
            device.unbind(Arc::as_ptr(id_queue).addr());
        }
        if let Some(qp) = state.qp.take()
            && qp.service() != QpType::Ud
            && !matches!(state.stage, Stage::Idle | Stage::Bound | Stage::Over)
        {
            let _ = qp.to_error();
        }
        destroy_requests(id_queue.withdraw());
    }
}

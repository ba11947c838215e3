//! What a channel and an identifier are made of. Their calls are in the modules above.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::cm::service::PortSpace;
use rxe_core::cm::{ConnId, ListenerId};
use rxe_core::qp::QpType;
use rxe_core::types::{AckTimeout, Gid, Mtu, Psn, Qpn};

use super::devices::DeviceSource;
use super::event::{CmEventKind, CmParam};
use super::ports::Port;
use super::queue::{self, CmMessage, EventQueue};
use crate::device::{BoundToDevice, Device};
use crate::objects::QueuePair;
use crate::os::Environment;

/// Where the events of an identifier go.
pub(super) type IdQueue = queue::IdQueue<IdInner>;

/// An event that no program's thread has looked at.
pub(super) type PendingEvent = queue::PendingEvent<IdInner>;

/// An event channel.
pub(super) struct ChannelInner {
    pub(super) queue: Arc<EventQueue<IdInner>>,
    /// Held from the moment an event is taken until everybody can find what it has made. Before the
    /// locks of identifiers and shards.
    pub(super) turn: Mutex<()>,
    pub(super) devices: Arc<dyn DeviceSource>,
    /// Where its time comes from.
    pub(super) environment: Environment,
}

/// An identifier.
pub(super) struct IdInner {
    pub(super) space: PortSpace,
    pub(super) id_queue: Arc<IdQueue>,
    pub(super) state: Mutex<State>,
}

/// What an identifier knows; changed by calls and, when events are taken, by these.
pub(super) struct State {
    /// Keeps the channel open, and tells where devices come from.
    pub(super) channel: Arc<ChannelInner>,
    pub(super) stage: Stage,
    pub(super) port: Option<Port>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) device: Option<Device>,
    pub(super) conn: Option<ConnId>,
    pub(super) listening: Vec<(Device, ListenerId)>,
    pub(super) qp: Option<Arc<QueuePair>>,
    /// The program's own queue pair, where it manages that itself.
    pub(super) foreign_qpn: Option<Qpn>,
    /// Of the peer's first request.
    pub(super) psn: Psn,
    /// What the two ends have agreed on, as far as it is known.
    pub(super) agreed: AgreedParam,
    pub(super) options: Options,
    pub(super) groups: Vec<Gid>,
    /// The end has been told.
    pub(super) ended: bool,
}

/// How far an identifier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    Connecting,
    /// A request came, and is not answered.
    Requested,
    Accepted,
    /// The peer accepts; the program brings its queue pair up.
    Replied,
    Connected,
    Disconnecting,
    Over,
}

/// What the two ends of a connection have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgreedParam {
    pub(super) remote_qpn: Qpn,
    /// Of this side's first request: the peer chooses it.
    pub(super) remote_psn: Psn,
    pub(super) mtu: Mtu,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: AckTimeout,
    pub(super) flow_label: u32,
    /// Of this side's queue pair.
    pub(super) service: QpType,
}

/// What programs may choose before they connect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuseaddr: bool,
    /// What the system does, if the program does not say.
    pub(super) afonly: Option<bool>,
    pub(super) ack_timeout: Option<AckTimeout>,
}

impl State {
    /// The identifier is bound to this device from now on, and learns when its interface is removed.
    pub(super) fn set_device(&mut self, id_queue: &Arc<IdQueue>, device: Device) {
        device.bind(Arc::<IdQueue>::clone(id_queue));
        self.device = Some(device);
    }
}

impl BoundToDevice for IdQueue {
    fn device_removed(self: Arc<Self>) {
        let (kind, param) = (CmEventKind::DeviceRemoval, CmParam::None);
        // A channel that is closed tells nobody.
        let _ = self.push(CmMessage::Local { kind, status: 0, param });
    }
}

impl fmt::Debug for ChannelInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").finish_non_exhaustive()
    }
}

impl fmt::Debug for IdInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdInner").field("space", &self.space).finish_non_exhaustive()
    }
}

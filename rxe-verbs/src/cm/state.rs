//! The state of a channel and of an identifier. Their calls are in the other modules.

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

/// The queue that passes on an identifier's events.
pub(super) type IdQueue = queue::IdQueue<IdInner>;

/// An event that no thread of the program has processed yet.
pub(super) type PendingEvent = queue::PendingEvent<IdInner>;

/// An event channel.
pub(super) struct ChannelInner {
    pub(super) queue: Arc<EventQueue<IdInner>>,
    /// Held while an event is processed, until all its results can be found. Taken before the locks
    /// of identifiers and shards.
    pub(super) turn: Mutex<()>,
    pub(super) devices: Arc<dyn DeviceSource>,
    /// The source of time and randomness.
    pub(super) environment: Environment,
}

/// An identifier.
pub(super) struct IdInner {
    pub(super) space: PortSpace,
    pub(super) id_queue: Arc<IdQueue>,
    pub(super) state: Mutex<State>,
}

/// The state of an identifier; changed by its calls and when its events are taken.
pub(super) struct State {
    /// The channel, which stays open meanwhile. Provides the source of devices.
    pub(super) channel: Arc<ChannelInner>,
    pub(super) stage: Stage,
    pub(super) port: Option<Port>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) device: Option<Device>,
    pub(super) conn: Option<ConnId>,
    pub(super) listening: Vec<(Device, ListenerId)>,
    pub(super) qp: Option<Arc<QueuePair>>,
    /// The number of the program's own queue pair, if the program manages one itself.
    pub(super) foreign_qpn: Option<Qpn>,
    /// The PSN of the peer's first request.
    pub(super) psn: Psn,
    /// The parameters that the two ends have agreed on, as far as they are known.
    pub(super) agreed: AgreedParam,
    pub(super) options: Options,
    pub(super) groups: Vec<Gid>,
    /// The program has been told of the disconnect.
    pub(super) ended: bool,
}

/// The stage of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    Connecting,
    /// A request has arrived and is not answered yet.
    Requested,
    Accepted,
    /// The peer has accepted; the program brings its queue pair up.
    Replied,
    Connected,
    Disconnecting,
    Over,
}

/// The parameters that the two ends of a connection have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgreedParam {
    pub(super) remote_qpn: Qpn,
    /// The PSN of this side's first request, chosen by the peer.
    pub(super) remote_psn: Psn,
    pub(super) mtu: Mtu,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout: AckTimeout,
    pub(super) flow_label: u32,
    /// The transport service of this side's queue pair.
    pub(super) service: QpType,
}

/// The options that a program may set before it connects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuseaddr: bool,
    /// `None`: the kernel's default ([`super::ports::default_afonly`]).
    pub(super) afonly: Option<bool>,
    pub(super) ack_timeout: Option<AckTimeout>,
}

impl State {
    /// Binds the identifier to this device, whose removal it will be told of.
    pub(super) fn set_device(&mut self, id_queue: &Arc<IdQueue>, device: Device) {
        device.bind(Arc::<IdQueue>::clone(id_queue));
        self.device = Some(device);
    }
}

impl BoundToDevice for IdQueue {
    fn device_removed(self: Arc<Self>) {
        let (kind, param) = (CmEventKind::DeviceRemoval, CmParam::None);
        // A closed channel takes no events.
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

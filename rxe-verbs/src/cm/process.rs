//! Processes events of the connection manager in the program's thread: creates identifiers, brings
//! queue pairs up, and maps the event to that of librdmacm.

use std::net::SocketAddr;
use std::sync::Arc;

use rxe_core::cm::mad::{RejReason, Rep, Req, SidrRep, SidrReq, SidrStatus};
use rxe_core::cm::service::{IP_CM_LEN, IpCmHeader};
use rxe_core::cm::{self, ConnId, Route};
use rxe_core::qp::QpType;
use rxe_core::types::{Mtu, Qkey, Qpn};

use super::connect::{ack_timeout, bring_up};
use super::event::{CmEventKind, CmParam, ConnParam, UdParam};
use super::id::CmId;
use super::queue::CmMessage;
use super::state::{ChannelInner, IdQueue, PendingEvent, Stage, State};
use crate::device::Device;

/// An event of an identifier.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The identifier; for a [`CmEventKind::ConnectRequest`], the new one.
    pub id: CmId,
    /// The listening identifier, for a [`CmEventKind::ConnectRequest`].
    pub listener: Option<CmId>,
    /// The kind of the event.
    pub kind: CmEventKind,
    /// 0 or a negative errno. For [`CmEventKind::Rejected`], the peer's reason. For
    /// [`CmEventKind::Unreachable`] of a datagram service, the positive SIDR status.
    pub status: i32,
    /// The parameters of the event.
    pub param: CmParam,
}

/// Returns the event that the program sees; `None` if it sees none.
pub(super) fn process(channel: &Arc<ChannelInner>, pending: PendingEvent) -> Option<CmEvent> {
    let PendingEvent { to, message } = pending;
    match message {
        CmMessage::Local { kind, status, param } => {
            let id = CmId::from_inner(to.id()?);
            Some(CmEvent { id, listener: None, kind, status, param })
        }
        CmMessage::Manager { device, event, listener } => {
            let device = device.upgrade()?;
            match *event {
                cm::CmEvent::Request { id, route, req, .. } => {
                    let request = take_request(channel, &device, id, route, &to, listener)?;
                    request.connection(&req)
                }
                cm::CmEvent::Resolve { id, route, req, .. } => {
                    let request = take_request(channel, &device, id, route, &to, listener)?;
                    request.datagram(&req)
                }
                event => {
                    let id = CmId::from_inner(to.id()?);
                    let mut state = id.state();
                    let told = state.learn(&id, event);
                    drop(state);
                    let (kind, status, param) = told?;
                    Some(CmEvent { id, listener: None, kind, status, param })
                }
            }
        }
    }
}

/// A request that the program has taken.
struct IncomingRequest {
    id: CmId,
    listener: CmId,
    device: Device,
    conn: ConnId,
    route: Route,
}

/// Creates an identifier for a request, if its listener still exists.
fn take_request(
    channel: &Arc<ChannelInner>,
    device: &Device,
    conn: ConnId,
    route: Route,
    to: &Arc<IdQueue>,
    listener: Option<Arc<IdQueue>>,
) -> Option<IncomingRequest> {
    device.with_cm(|port, _| port.manager.taken(conn)).ok()?;
    let id = listener.and_then(|l| l.id()).and_then(|inner| {
        let listener = CmId::from_inner(inner);
        let id = CmId::with_id_queue(channel, listener.port_space(), Arc::clone(to)).ok()?;
        Some((id, listener))
    });
    let Some((id, listener)) = id else {
        let _ = device.with_cm(|port, now| port.destroy(now, conn, to));
        return None;
    };
    Some(IncomingRequest { id, listener, device: device.clone(), conn, route })
}

impl IncomingRequest {
    fn connection(self, req: &Req) -> Option<CmEvent> {
        let data = &req.private_data[IP_CM_LEN..];
        let param = ConnParam {
            private_data: data.to_vec(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qp_num: Some(req.local_qpn),
            qkey: None,
        };
        let mtu = Mtu::from_verbs(req.path_mtu).unwrap_or(Mtu::M256);
        let fill = |state: &mut State| {
            let agreed = &mut state.agreed;
            agreed.remote_qpn = req.local_qpn;
            agreed.remote_psn = req.starting_psn;
            agreed.mtu = mtu;
            agreed.responder_resources = req.initiator_depth;
            agreed.initiator_depth = req.responder_resources;
            agreed.retry_count = req.retry_count;
            agreed.rnr_retry_count = req.rnr_retry_count;
            agreed.ack_timeout = ack_timeout(req.primary.local_ack_timeout);
            agreed.flow_label = req.primary.flow_label;
            agreed.service = match req.transport_service_type {
                1 => QpType::Uc,
                3 => QpType::XrcRecv,
                _ => QpType::Rc,
            };
            state.options.tos = req.primary.traffic_class;
        };
        let header = IpCmHeader::parse(req.private_data.first_chunk()?);
        self.event(header, fill, |_| CmParam::Conn(param))
    }

    fn datagram(self, req: &SidrReq) -> Option<CmEvent> {
        let private_data = req.private_data[IP_CM_LEN..].to_vec();
        let header = IpCmHeader::parse(req.private_data.first_chunk()?);
        let param = |state: &State| match state.address_vector() {
            Ok(ah) => CmParam::Ud(UdParam {
                private_data,
                ah,
                qpn: Qpn::default(),
                qkey: Qkey::default(),
            }),
            Err(_) => CmParam::None,
        };
        self.event(header, |_| (), param)
    }

    fn event(
        self,
        header: Option<IpCmHeader>,
        fill: impl FnOnce(&mut State),
        param: impl FnOnce(&State) -> CmParam,
    ) -> Option<CmEvent> {
        let Self { id, listener, device, conn, route } = self;
        let (local_port, options) = {
            let state = listener.state();
            (state.local.map_or(0, |local| local.port()), state.options)
        };
        let mut state = id.state();
        state.options = options;
        state.local = Some(SocketAddr::new(route.local.to_ip(), local_port));
        let peer_port = header.map_or(0, |header| header.src.port());
        state.peer = Some(SocketAddr::new(route.remote.to_ip(), peer_port));
        state.set_device(&id.inner.id_queue, device);
        state.conn = Some(conn);
        state.stage = Stage::Requested;
        fill(&mut state);
        let param = param(&state);
        drop(state);
        let kind = CmEventKind::ConnectRequest;
        Some(CmEvent { id, listener: Some(listener), kind, status: 0, param })
    }
}

type EventParts = (CmEventKind, i32, CmParam);

impl State {
    /// Updates the identifier from an event, and returns what the program sees of it.
    fn learn(&mut self, id: &CmId, event: cm::CmEvent) -> Option<EventParts> {
        match event {
            cm::CmEvent::Reply { rep, .. } => Some(self.replied(id, &rep)),
            cm::CmEvent::Established { .. } => {
                self.stage = Stage::Connected;
                Some((CmEventKind::Established, 0, CmParam::None))
            }
            cm::CmEvent::Rejected { reason, private_data, .. } => {
                self.over();
                let param = ConnParam { private_data: private_data.to_vec(), ..quiet() };
                Some((CmEventKind::Rejected, i32::from(reason.0), CmParam::Conn(param)))
            }
            cm::CmEvent::Unreachable { .. } => {
                self.over();
                Some((CmEventKind::Unreachable, -libc::ETIMEDOUT, CmParam::None))
            }
            cm::CmEvent::DisconnectRequest { .. } => self.disconnected(0),
            cm::CmEvent::Disconnected { answered, .. } => {
                self.disconnected(if answered { 0 } else { -libc::ETIMEDOUT })
            }
            cm::CmEvent::TimewaitExit { .. } => {
                self.stage = Stage::Over;
                self.conn = None;
                Some((CmEventKind::TimewaitExit, 0, CmParam::None))
            }
            cm::CmEvent::Resolved { rep, .. } => Some(self.resolved(&rep)),
            cm::CmEvent::Request { .. } | cm::CmEvent::Resolve { .. } => None,
        }
    }

    /// Handles the peer's acceptance.
    fn replied(&mut self, id: &CmId, rep: &Rep) -> EventParts {
        let param = ConnParam {
            private_data: rep.private_data.to_vec(),
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.end_to_end_flow_control,
            retry_count: self.agreed.retry_count,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            qp_num: Some(rep.local_qpn),
            qkey: None,
        };
        self.agreed.remote_qpn = rep.local_qpn;
        self.agreed.remote_psn = rep.starting_psn;
        self.agreed.initiator_depth = self.agreed.initiator_depth.min(rep.responder_resources);
        self.agreed.responder_resources = self.agreed.responder_resources.min(rep.initiator_depth);
        self.agreed.rnr_retry_count = rep.rnr_retry_count;
        if let Some(device) = &self.device {
            self.agreed.mtu = device.active_mtu();
        }
        self.stage = Stage::Replied;
        let Some(qp) = self.qp.clone() else {
            return (CmEventKind::ConnectResponse, 0, CmParam::Conn(param));
        };
        let up = bring_up(self, &qp).and_then(|()| id.establish_in(self));
        match up {
            Ok(()) => (CmEventKind::Established, 0, CmParam::Conn(param)),
            Err(e) => {
                if let (Some(device), Some(conn)) = (&self.device, self.conn) {
                    let reason = RejReason::CONSUMER_DEFINED;
                    let _ = device.with_cm(|port, _| port.refuse(conn, reason));
                }
                self.over();
                (CmEventKind::ConnectError, -e.errno(), CmParam::None)
            }
        }
    }

    /// Handles the peer's answer to a query for its datagram service.
    fn resolved(&mut self, rep: &SidrRep) -> EventParts {
        self.conn = None;
        if SidrStatus(rep.status) != SidrStatus::SUCCESS {
            self.stage = Stage::Over;
            return (CmEventKind::Unreachable, i32::from(rep.status), CmParam::None);
        }
        self.stage = Stage::Connected;
        match self.address_vector() {
            Ok(ah) => {
                let private_data = rep.private_data.to_vec();
                let param = UdParam { private_data, ah, qpn: rep.qpn, qkey: rep.qkey };
                (CmEventKind::Established, 0, CmParam::Ud(param))
            }
            Err(e) => (CmEventKind::ConnectError, -e.errno(), CmParam::None),
        }
    }

    /// Reports a disconnect once, whichever end began it.
    fn disconnected(&mut self, status: i32) -> Option<EventParts> {
        let first = !std::mem::replace(&mut self.ended, true);
        first.then_some((CmEventKind::Disconnected, status, CmParam::None))
    }

    fn over(&mut self) {
        self.stage = Stage::Over;
        self.conn = None;
        if let Some(qp) = &self.qp
            && qp.service() != QpType::Ud
        {
            // If the device has failed, completions report it.
            let _ = qp.to_error();
        }
    }
}

/// Returns the parameters of a message that has no parameters of the connection.
fn quiet() -> ConnParam {
    ConnParam {
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ..ConnParam::default()
    }
}

//! Connecting, on both ends. `rdma_connect`, `rdma_listen`, `rdma_accept`, `rdma_reject`,
//! `rdma_disconnect`.

use std::sync::Arc;

use rxe_core::cm::Route;
use rxe_core::cm::mad::{self, RejReason, Rep, Req, SidrRep, SidrReq};
use rxe_core::cm::service::{IP_CM_LEN, IpCmHeader, PortSpace};
use rxe_core::mem::Access;
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rxe_core::types::{AckTimeout, Qpn, RnrTimer};

use super::cm_port::Listen;
use super::error::{invalid, os, refused};
use super::event::ConnParam;
use super::id::CmId;
use super::state::{Stage, State};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::objects::QueuePair;

impl CmId {
    /// Listens on the identifier's port. Each request is a [`super::CmEventKind::ConnectRequest`].
    /// `backlog` is the number of requests that may wait until the program takes them; 0 means the
    /// maximum. Requests that find no room are dropped; their senders repeat them.
    ///
    /// # Errors
    /// The identifier is connected, no device is found, or the port has a listener already.
    pub fn listen(&self, backlog: usize) -> Result<()> {
        let mut state = self.state();
        if state.stage == Stage::Idle {
            // Like the kernel, listens for IPv4 only.
            let any = std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
            self.bind(&mut state, any)?;
        }
        if state.stage != Stage::Bound {
            return Err(invalid("bind it first; one that is connected cannot listen"));
        }
        let local = state.local.ok_or_else(|| invalid("bind it first"))?;
        let devices = match &state.device {
            Some(device) => vec![device.clone()],
            // The identifier is bound to a loopback address that no device has.
            None if local.ip().is_loopback() => Vec::new(),
            None => state.channel.devices.all(),
        };
        if devices.is_empty() {
            return Err(os("find a device", libc::ENODEV));
        }
        let id_queue = &self.inner.id_queue;
        let wanted = Listen {
            service_id: self.inner.space.service_id(local.port()),
            address: local.ip(),
            afonly: state.options.afonly.unwrap_or(true),
            backlog,
        };
        let mut listening = Vec::new();
        let mut failed = None;
        for device in devices {
            match device.listen(wanted, id_queue) {
                Ok(listener) => listening.push((device, listener)),
                Err(e) => failed = Some(e),
            }
        }
        // Some devices may be broken, but a port that is taken on one device is taken.
        let taken = failed.as_ref().is_some_and(|e| e.errno() == libc::EADDRINUSE);
        if let Some(e) = failed
            && (listening.is_empty() || taken)
        {
            for (device, listener) in listening {
                device.unlisten(listener, id_queue);
            }
            return Err(e);
        }
        state.listening = listening;
        state.stage = Stage::Listening;
        Ok(())
    }

    /// Asks the peer for a connection, or for its datagram service. An event reports the answer.
    ///
    /// # Errors
    /// The route is not resolved, there is no queue pair, or a parameter is out of range.
    pub fn connect(&self, param: &ConnParam) -> Result<()> {
        let mut state = self.state();
        if state.stage != Stage::RouteResolved {
            return Err(invalid("resolve its address and route first"));
        }
        let (Some(local), Some(peer), Some(device)) =
            (state.local, state.peer, state.device.clone())
        else {
            return Err(invalid("resolve its address and route first"));
        };
        let service_id = self.inner.space.service_id(peer.port());
        let route = Route {
            local: local.ip().into(),
            remote: peer.ip().into(),
            traffic_class: state.options.tos,
        };
        let header = IpCmHeader { src: local, dst: peer.ip() }.emit();
        let id_queue = &self.inner.id_queue;
        let conn = if self.is_datagram() {
            let mut req = SidrReq { partition_key: 0xffff, service_id, ..SidrReq::default() };
            fill(&mut req.private_data, &header, &param.private_data)?;
            device.with_cm(|port, now| {
                let id = port.manager.resolve(now, route, req)?;
                port.register(id, id_queue);
                Ok(id)
            })?
        } else {
            let qpn = self.qpn_for(&mut state, param)?;
            state.take_param(param, &device);
            let agreed = &state.agreed;
            let primary = mad::Path {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: route.local,
                remote_gid: route.remote,
                flow_label: if peer.is_ipv6() { agreed.flow_label } else { 0 },
                traffic_class: route.traffic_class,
                hop_limit: 64,
                local_ack_timeout: agreed.ack_timeout.code(),
                ..mad::Path::default()
            };
            let (transport_service_type, extended_transport_type) = match agreed.service {
                QpType::Uc => (1, 0),
                QpType::XrcSend | QpType::XrcRecv => (3, 1),
                QpType::Rc | QpType::Ud => (0, 0),
            };
            let mut req = Req {
                service_id,
                local_qpn: qpn,
                responder_resources: agreed.responder_resources,
                initiator_depth: agreed.initiator_depth,
                transport_service_type,
                extended_transport_type,
                end_to_end_flow_control: param.flow_control,
                starting_psn: state.psn,
                retry_count: agreed.retry_count,
                partition_key: 0xffff,
                path_mtu: device.active_mtu().to_verbs(),
                rnr_retry_count: agreed.rnr_retry_count,
                srq: state.qp.as_ref().map_or(param.srq, |qp| qp.srq().is_some()),
                primary,
                ..Req::default()
            };
            fill(&mut req.private_data, &header, &param.private_data)?;
            device.with_cm(|port, now| {
                let id = port.manager.connect(now, route, req)?;
                port.register(id, id_queue);
                Ok(id)
            })?
        };
        state.conn = Some(conn.map_err(refused)?);
        state.stage = Stage::Connecting;
        Ok(())
    }

    /// Accepts a request: brings the queue pair up and tells the peer. For connections,
    /// [`super::CmEventKind::Established`] follows.
    ///
    /// # Errors
    /// There is no request, or no queue pair. If the queue pair cannot be brought up, the request
    /// is refused.
    pub fn accept(&self, param: &ConnParam) -> Result<()> {
        let mut state = self.state();
        let (Stage::Requested, Some(conn), Some(device)) =
            (state.stage, state.conn, state.device.clone())
        else {
            return Err(invalid("there is no request to accept"));
        };
        let qpn = self.qpn_for(&mut state, param)?;
        if self.is_datagram() {
            let qkey = param
                .qkey
                .unwrap_or_else(|| state.qp.as_ref().map_or(super::UDP_QKEY, |qp| qp.qkey()));
            let mut rep = SidrRep { qpn, qkey, ..SidrRep::default() };
            fill(&mut rep.private_data, &[], &param.private_data)?;
            device.with_cm(|port, now| port.answer_sidr(now, conn, rep))?.map_err(refused)?;
            state.conn = None;
            state.stage = Stage::Connected;
            return Ok(());
        }
        let retry_count = state.agreed.retry_count;
        state.take_param(param, &device);
        // The requesting end decides the retry count.
        state.agreed.retry_count = retry_count;
        let mut rep = Rep {
            local_qpn: qpn,
            starting_psn: state.psn,
            responder_resources: state.agreed.responder_resources,
            initiator_depth: state.agreed.initiator_depth,
            target_ack_delay: 15,
            // 1 means that no alternate path is supported.
            failover_accepted: 1,
            end_to_end_flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: state.qp.as_ref().map_or(param.srq, |qp| qp.srq().is_some()),
            ..Rep::default()
        };
        // Before the queue pair changes, so that the program may try again with less data.
        fill(&mut rep.private_data, &[], &param.private_data)?;
        if let Some(qp) = state.qp.clone()
            && let Err(e) = bring_up(&state, &qp)
        {
            let reason = RejReason::NO_RESOURCES;
            let _ = device.with_cm(|port, _| port.refuse(conn, reason));
            state.conn = None;
            state.stage = Stage::Over;
            return Err(e);
        }
        device.with_cm(|port, now| port.manager.accept(now, conn, rep))?.map_err(refused)?;
        state.stage = Stage::Accepted;
        Ok(())
    }

    /// Rejects a request, or the peer's acceptance. `private_data` has up to 148 bytes (136 for a
    /// datagram service).
    ///
    /// # Errors
    /// There is nothing to reject.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_with(RejReason::CONSUMER_DEFINED, private_data)
    }

    /// Rejects a request or an acceptance for the given reason.
    ///
    /// # Errors
    /// There is nothing to reject.
    pub fn reject_with(&self, reason: RejReason, private_data: &[u8]) -> Result<()> {
        let mut state = self.state();
        let (Stage::Requested | Stage::Replied, Some(conn), Some(device)) =
            (state.stage, state.conn, state.device.clone())
        else {
            return Err(invalid("there is nothing to reject"));
        };
        if self.is_datagram() {
            let mut rep = SidrRep { status: mad::SidrStatus::REJECT.0, ..SidrRep::default() };
            fill(&mut rep.private_data, &[], private_data)?;
            device.with_cm(|port, now| port.answer_sidr(now, conn, rep))?
        } else {
            if private_data.len() > 148 {
                return Err(too_long());
            }
            device.with_cm(|port, _| port.reject(conn, reason, private_data))?
        }
        .map_err(refused)?;
        state.conn = None;
        state.stage = Stage::Over;
        Ok(())
    }

    /// Tells the peer that this end is ready. Called after a
    /// [`super::CmEventKind::ConnectResponse`], when the program has brought its queue pair up.
    ///
    /// # Errors
    /// The peer has not accepted, or has abandoned the connection.
    pub fn establish(&self) -> Result<()> {
        let mut state = self.state();
        self.establish_in(&mut state)
    }

    pub(super) fn establish_in(&self, state: &mut State) -> Result<()> {
        let (Stage::Replied, Some(conn), Some(device)) =
            (state.stage, state.conn, state.device.clone())
        else {
            return Err(invalid("the peer has not accepted"));
        };
        device.with_cm(|port, _| port.manager.establish(conn, &[]))?.map_err(refused)?;
        state.stage = Stage::Connected;
        Ok(())
    }

    /// Reports that a packet has arrived on an accepted connection: the peer is ready, though its
    /// RTU has not arrived.
    ///
    /// The manager detects this by itself for queue pairs of the device's first shard. For others
    /// it repeats the REP, which a peer answers with another RTU.
    ///
    /// # Errors
    /// There is neither a connection nor a request for one, or the device has failed.
    pub fn notify_established(&self) -> Result<()> {
        let state = self.state();
        let (Some(conn), Some(device)) = (state.conn, state.device.clone()) else {
            return Err(invalid("there is no connection"));
        };
        drop(state);
        device.with_cm(|port, _| port.manager.communication_established(conn))
    }

    /// Ends the connection, or confirms that the peer has ended it. The queue pair enters the error
    /// state: posted requests complete as flushed.
    ///
    /// # Errors
    /// The identifier is not connected.
    pub fn disconnect(&self) -> Result<()> {
        let mut state = self.state();
        let (Some(conn), Some(device)) = (state.conn, state.device.clone()) else {
            return Err(invalid("it is not connected"));
        };
        if let Some(qp) = &state.qp
            && qp.service() != QpType::Ud
        {
            qp.to_error()?;
        }
        device.with_cm(|port, now| port.manager.disconnect(now, conn, &[]))?.map_err(refused)?;
        state.stage = Stage::Disconnecting;
        Ok(())
    }

    /// Returns whether either end has requested a connection, whatever its result.
    pub fn was_begun(&self) -> bool {
        use Stage::{AddrResolved, Bound, Idle, Listening, RouteResolved};
        !matches!(self.state().stage, Idle | Bound | AddrResolved | RouteResolved | Listening)
    }

    /// Returns attributes and mask that take the program's own queue pair into a state. The states
    /// are INIT, RTR once the peer is known, and RTS. `rdma_init_qp_attr`.
    ///
    /// # Errors
    /// The state is a different one, or the peer is not known yet.
    pub fn init_qp_attr(&self, to: QpState) -> Result<(QpAttr, AttrMask)> {
        let state = self.state();
        state.qp_attr(self.is_datagram(), to)
    }

    /// Returns the PSN that the peer's first request must have.
    pub fn psn(&self) -> rxe_core::types::Psn {
        self.state().psn
    }

    /// Sets the parameters with which a request will be accepted. For a program that brings its own
    /// queue pair up before it calls [`CmId::accept`]. Does nothing without a request.
    pub fn set_conn_param(&self, param: &ConnParam) {
        let mut state = self.state();
        if let (Stage::Requested, Some(device)) = (state.stage, state.device.clone()) {
            let retry_count = state.agreed.retry_count;
            state.take_param(param, &device);
            state.agreed.retry_count = retry_count;
        }
    }

    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.inner.space, PortSpace::Udp | PortSpace::Ipoib)
    }

    /// Returns the number of the identifier's queue pair, or of the program's own one.
    fn qpn_for(&self, state: &mut State, param: &ConnParam) -> Result<Qpn> {
        if let Some(qp) = &state.qp {
            return Ok(qp.qpn());
        }
        state.foreign_qpn = param.qp_num;
        param.qp_num.ok_or_else(|| invalid("it has no queue pair: make one, or name yours"))
    }
}

impl State {
    /// Takes the program's parameters, limited to what the peer and the device allow.
    fn take_param(&mut self, param: &ConnParam, device: &Device) {
        let limit = device.limits().max_rd_atomic;
        let (mut depth, mut resources) = (param.initiator_depth, param.responder_resources);
        if matches!(self.stage, Stage::Requested) {
            // The maximum means everything that the peer offers or wants.
            if depth == u8::MAX {
                depth = self.agreed.initiator_depth;
            }
            if resources == u8::MAX {
                resources = self.agreed.responder_resources;
            }
        }
        self.agreed.initiator_depth = depth.min(limit);
        self.agreed.responder_resources = resources.min(limit);
        self.agreed.retry_count = param.retry_count.min(7);
        if !matches!(self.stage, Stage::Requested) {
            self.agreed.rnr_retry_count = param.rnr_retry_count.min(7);
        }
        if let Some(timeout) = self.options.ack_timeout {
            self.agreed.ack_timeout = timeout;
        }
    }

    /// Returns attributes and mask for [`CmId::init_qp_attr`].
    pub(super) fn qp_attr(&self, datagram: bool, to: QpState) -> Result<(QpAttr, AttrMask)> {
        let attr = QpAttr { qp_state: to, ..QpAttr::default() };
        let service = self.agreed.service;
        let answers = matches!(service, QpType::Rc | QpType::XrcRecv);
        let asks = matches!(service, QpType::Rc | QpType::XrcSend);
        Ok(match to {
            QpState::Init if datagram => (
                QpAttr { qkey: super::UDP_QKEY, ..attr },
                AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
            ),
            QpState::Init => {
                let qp_access_flags =
                    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                (
                    QpAttr { qp_access_flags, ..attr },
                    AttrMask::STATE
                        | AttrMask::PKEY_INDEX
                        | AttrMask::PORT
                        | AttrMask::ACCESS_FLAGS,
                )
            }
            QpState::Rtr if datagram => (attr, AttrMask::STATE),
            QpState::Rts if datagram => {
                (QpAttr { sq_psn: self.psn, ..attr }, AttrMask::STATE | AttrMask::SQ_PSN)
            }
            QpState::Rtr => {
                let known = matches!(
                    self.stage,
                    Stage::Requested | Stage::Accepted | Stage::Replied | Stage::Connected
                );
                if !known {
                    return Err(invalid("the peer's queue pair is not known yet"));
                }
                let attr = QpAttr {
                    ah_attr: self.address_vector()?,
                    path_mtu: self.agreed.mtu,
                    dest_qp_num: self.agreed.remote_qpn,
                    rq_psn: self.psn,
                    max_dest_rd_atomic: self.agreed.responder_resources,
                    // 0.64 ms. Kernels use the longest value there is.
                    min_rnr_timer: RnrTimer::new(12).unwrap_or_default(),
                    ..attr
                };
                let mask = AttrMask::STATE
                    | AttrMask::AV
                    | AttrMask::PATH_MTU
                    | AttrMask::DEST_QPN
                    | AttrMask::RQ_PSN;
                let more = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
                (attr, if answers { mask | more } else { mask })
            }
            QpState::Rts => {
                let attr = QpAttr {
                    timeout: self.agreed.ack_timeout,
                    retry_cnt: self.agreed.retry_count,
                    rnr_retry: self.agreed.rnr_retry_count,
                    sq_psn: self.agreed.remote_psn,
                    max_rd_atomic: self.agreed.initiator_depth,
                    ..attr
                };
                let mask = AttrMask::STATE | AttrMask::SQ_PSN;
                let more = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
                let mask = if answers || asks { mask | AttrMask::TIMEOUT } else { mask };
                (attr, if asks { mask | more } else { mask })
            }
            _ => return Err(invalid("only INIT, RTR and RTS follow from a connection")),
        })
    }

    /// Returns the address vector that leads to the peer.
    pub(super) fn address_vector(&self) -> Result<AddressVector> {
        let (Some(local), Some(peer), Some(device)) = (self.local, self.peer, &self.device) else {
            return Err(invalid("the peer's address is not known yet"));
        };
        let index = device.gid_index_of(local.ip());
        Ok(AddressVector {
            sgid_index: index.ok_or_else(|| os("find the own address", libc::EADDRNOTAVAIL))?,
            dgid: peer.ip().into(),
            flow_label: self.agreed.flow_label,
            traffic_class: self.options.tos,
            hop_limit: 64,
        })
    }
}

/// Takes the identifier's queue pair from INIT to RTS.
pub(super) fn bring_up(state: &State, qp: &Arc<QueuePair>) -> Result<()> {
    for to in [QpState::Rtr, QpState::Rts] {
        let (attr, mask) = state.qp_attr(false, to)?;
        qp.modify(&attr, mask)?;
    }
    Ok(())
}

/// Writes the manager's header and the program's data into a message.
fn fill(room: &mut [u8], header: &[u8], data: &[u8]) -> Result<()> {
    debug_assert!(header.is_empty() || header.len() == IP_CM_LEN);
    let (head, rest) = room.split_at_mut(header.len());
    head.copy_from_slice(header);
    rest.get_mut(..data.len()).ok_or_else(too_long)?.copy_from_slice(data);
    Ok(())
}

fn too_long() -> Error {
    invalid("the message has no room for so much private data")
}

/// Converts the ACK timeout of a peer's message, limited to valid codes.
pub(super) fn ack_timeout(code: u8) -> AckTimeout {
    AckTimeout::new(code.clamp(1, 31)).unwrap_or_default()
}

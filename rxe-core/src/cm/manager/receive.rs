//! Handles received messages, each by the state of its connection. IBTA 12.9.5 and 12.9.6 (active
//! and passive side), 12.9.8 (duplicates).

use std::time::Duration;

use super::connection::{Connection, Retry, State, timeout};
use super::held::{Request, Waiting};
use super::sources::Cost;
use super::{CmEvent, ConnId, ListenerId, Manager, Outgoing, PeerKey, Route, rej};
use crate::cm::mad::{
    Drep, Dreq, Mad, Message, Mra, Rej, RejReason, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus,
    Subject,
};
use crate::types::{Gid, Mtu, Time};

impl Manager {
    /// Handles a datagram that queue pair 1 received from `route.remote`. Returns `false` if the
    /// datagram was dropped: it is not a communication management message, belongs to no
    /// connection, or is a request for which there is no room.
    pub fn handle_mad(&mut self, now: Time, route: Route, mad: &Mad<'_>) -> bool {
        let Some(message) = mad.message() else { return false };
        self.index.keepalive.at(now);
        self.heard_from(route.remote);
        self.handle(now, route, mad.header().tid, message).is_some()
    }

    fn handle(&mut self, now: Time, route: Route, tid: u64, message: Message) -> Option<()> {
        match message {
            Message::Req(req) => self.on_req(now, route, tid, req),
            Message::Mra(mra) => self.on_mra(now, route, &mra),
            Message::Rej(rej) => self.on_rej(now, route, &rej),
            Message::Rep(rep) => self.on_rep(route, tid, rep),
            Message::Rtu(rtu) => self.on_rtu(route, &rtu),
            Message::Dreq(dreq) => self.on_dreq(now, route, tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, route, tid, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, route, tid, req),
            Message::SidrRep(rep) => self.on_sidr_rep(route, rep),
            Message::Lap(_) | Message::Apr(_) => None,
        }
    }

    /// Handles the requests that were held for a listener on this service.
    pub(super) fn take_held(&mut self, now: Time, service_id: u64) {
        for Waiting { route, tid, request, .. } in self.held.opened(service_id) {
            self.handle(now, route, tid, request.into());
        }
    }

    /// Refuses a held request whose deadline has passed.
    pub(super) fn refuse_held(&mut self, waiting: &Waiting) {
        let message = match &waiting.request {
            Request::Req(req) => refusal(req, RejReason::INVALID_SERVICE_ID),
            Request::SidrReq(req) => no_service(req, SidrStatus::UNSUPPORTED),
        };
        self.answer(waiting.route, waiting.tid, &message);
    }

    fn on_req(&mut self, now: Time, route: Route, tid: u64, req: Req) -> Option<()> {
        let key: PeerKey = (route.remote, req.local_comm_id, false);
        if let Some(&id) = self.peers.get(&key) {
            return self.on_duplicate_req(id, tid, &req);
        }
        if self.withdrawn.contains(now, route.remote, req.local_comm_id) {
            return None;
        }
        let refuse = |manager: &mut Self, reason| {
            manager.answer(route, tid, &refusal(&req, reason));
            Some(())
        };
        let Some(&listener) = self.services.get(&req.service_id) else {
            let request = || Request::Req(Box::new(req.clone()));
            if self.held.hold(now, route, tid, request, req.service_id) {
                return Some(());
            }
            return refuse(self, RejReason::INVALID_SERVICE_ID);
        };
        let rc_or_uc = req.transport_service_type <= 1;
        let xrc = req.transport_service_type == 3 && req.extended_transport_type == 1;
        if !rc_or_uc && !xrc {
            return refuse(self, RejReason::INVALID_TRANSPORT_TYPE);
        }
        if Mtu::from_verbs(req.path_mtu).is_none() {
            return refuse(self, RejReason::INVALID_MTU);
        }
        let stale = self.index.established(route.remote, req.local_ca_guid, req.local_qpn);
        if let Some(stale) = stale {
            // The peer reuses the queue pair, so it has lost the old connection. IBTA 12.9.8.3.1.
            refuse(self, RejReason::STALE_CONNECTION);
            // The connection is established, so this does not fail.
            let _ = self.disconnect(now, stale, &[]);
            return Some(());
        }
        let has_room = self.index.sources.has_room(route.remote, Cost::HalfOpen);
        // Without room the request is dropped, as a kernel does: the peer repeats it, and there may
        // be room then.
        let id = self.draw_id().filter(|id| has_room && self.has_room(listener, *id))?;
        let connection = Connection {
            id,
            remote_id: req.local_comm_id,
            remote_guid: req.local_ca_guid,
            local_qpn: Default::default(),
            remote_qpn: req.local_qpn,
            route: Route { traffic_class: req.primary.traffic_class, ..route },
            tid,
            state: State::ReqRcvd { listener, waiting: true },
            retries: req.max_cm_retries,
            first_wait: Retry::first_wait(req.local_cm_response_timeout),
            packet_life: timeout(req.primary.local_ack_timeout).min(MAX_PACKET_LIFETIME),
            orphan: false,
            armed: None,
        };
        self.insert(connection);
        let old = self.peers.insert(key, id);
        debug_assert!(old.is_none(), "a duplicate was found before");
        self.events.push(CmEvent::Request { listener, id, route, req: Box::new(req) });
        Some(())
    }

    fn on_duplicate_req(&mut self, id: ConnId, tid: u64, req: &Req) -> Option<()> {
        let connection = self.connections.get_mut(&id.0)?;
        let route = connection.route;
        match &mut connection.state {
            State::ReqRcvd { .. } if connection.tid == tid => self.send_mra(id, Subject::Req),
            State::RepSent(retry) if connection.tid == tid => {
                let mad = retry.mad.clone();
                self.push(Outgoing { route, mad });
            }
            State::TimeWait { .. } => {
                let reason = RejReason::STALE_CONNECTION;
                let message = rej(0, req.local_comm_id, Subject::Req, reason, &[], &[]);
                self.answer(route, tid, &message);
            }
            _ => return None,
        }
        Some(())
    }

    /// Counts a request towards the listener's backlog, if there is room. This must be the last
    /// check that may drop the request: a counted request stays counted until it is taken or ends.
    fn has_room(&mut self, listener: ListenerId, id: ConnId) -> bool {
        let listener = self.listeners.get_mut(&listener.0);
        let room = listener.filter(|l| l.waiting.len() < l.backlog);
        room.is_some_and(|l| l.waiting.insert(id))
    }

    fn on_mra(&mut self, now: Time, route: Route, mra: &Mra) -> Option<()> {
        let (id, connection) = self.find(route, mra.remote_comm_id)?;
        let retry = match (&mut connection.state, mra.message) {
            (State::ReqSent(retry), 0) | (State::RepSent(retry), 1) => retry,
            _ => return None,
        };
        if !retry.postpone(now, mra.service_timeout) {
            return None;
        }
        self.arm(id);
        Some(())
    }

    fn on_rej(&mut self, now: Time, route: Route, rej: &Rej) -> Option<()> {
        let id = match rej.remote_comm_id {
            0 => self.withdraw(now, route.remote, rej.local_comm_id)?,
            id => ConnId(id),
        };
        let (id, connection) = self.find(route, id.0)?;
        let names_match = connection.remote_id == 0
            || rej.local_comm_id == 0
            || rej.local_comm_id == connection.remote_id;
        if !names_match {
            return None;
        }
        let event = CmEvent::Rejected {
            id,
            reason: RejReason(rej.reason),
            private_data: Box::new(rej.private_data),
        };
        match connection.state {
            State::ReqSent(_) | State::ReqRcvd { .. } | State::RepSent(_) | State::RepRcvd => {
                self.forget_with(id, event);
            }
            State::Established { .. } => {
                self.tell(id, event);
                self.enter_timewait(now, id, None);
            }
            State::DreqSent(_) => {
                self.tell(id, CmEvent::Disconnected { id, answered: true });
                self.enter_timewait(now, id, None);
            }
            _ => return None,
        }
        Some(())
    }

    /// Withdraws a peer's request. The peer does not know our communication ID. Returns the
    /// connection of the request, if it has one.
    fn withdraw(&mut self, now: Time, source: Gid, remote_id: u32) -> Option<ConnId> {
        self.withdrawn.add(now, source, remote_id);
        self.held.withdraw(source, remote_id);
        self.peers.get(&(source, remote_id, false)).copied()
    }

    fn on_rep(&mut self, route: Route, tid: u64, rep: Rep) -> Option<()> {
        let Some((id, connection)) = self.find(route, rep.remote_comm_id) else {
            let (to, reason) = (rep.local_comm_id, RejReason::INVALID_COMM_ID);
            let message = rej(0, to, Subject::Rep, reason, &[], &[]);
            self.answer(route, tid, &message);
            return Some(());
        };
        match &connection.state {
            State::ReqSent(_) if connection.tid == tid => {
                connection.remote_id = rep.local_comm_id;
                connection.remote_guid = rep.local_ca_guid;
                connection.remote_qpn = rep.local_qpn;
                self.set(id, State::RepRcvd);
                self.events.push(CmEvent::Reply { id, rep: Box::new(rep) });
            }
            State::RepRcvd if connection.remote_id == rep.local_comm_id => {
                self.send_mra(id, Subject::Rep);
            }
            State::Established { rtu: Some(rtu) } if connection.remote_id == rep.local_comm_id => {
                let (mad, route) = (rtu.clone(), connection.route);
                self.push(Outgoing { route, mad });
            }
            _ => return None,
        }
        Some(())
    }

    fn on_rtu(&mut self, route: Route, rtu: &Rtu) -> Option<()> {
        let (id, _) = self.find_both(route, rtu.remote_comm_id, rtu.local_comm_id)?;
        self.become_established(id)
    }

    /// Moves a connection to the established state, because the peer is ready to receive.
    pub(super) fn become_established(&mut self, id: ConnId) -> Option<()> {
        let connection = self.connections.get(&id.0)?;
        if !matches!(connection.state, State::RepSent(_)) {
            return None;
        }
        self.set(id, State::Established { rtu: None });
        self.tell(id, CmEvent::Established { id });
        Some(())
    }

    fn on_dreq(&mut self, now: Time, route: Route, tid: u64, dreq: &Dreq) -> Option<()> {
        let found = self.find_both(route, dreq.remote_comm_id, dreq.local_comm_id);
        let Some((id, connection)) = found else {
            // The connection is unknown: answer immediately, so that the peer does not have to
            // wait.
            let message = Message::Drep(Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..Drep::default()
            });
            self.answer(route, tid, &message);
            return Some(());
        };
        if dreq.remote_qpn != connection.local_qpn {
            return None;
        }
        match &connection.state {
            State::Established { .. } | State::RepSent(_) if connection.orphan => {
                self.end(now, id, tid);
            }
            State::Established { .. } | State::RepSent(_) => {
                self.set(id, State::DreqRcvd { tid });
                self.tell(id, CmEvent::DisconnectRequest { id });
            }
            State::DreqSent(_) => {
                self.tell(id, CmEvent::Disconnected { id, answered: true });
                self.end(now, id, tid);
            }
            State::TimeWait { drep: Some(drep), .. } => {
                let (mad, route) = (drep.clone(), connection.route);
                self.push(Outgoing { route, mad });
            }
            State::TimeWait { drep: None, .. } => self.end(now, id, tid),
            _ => return None,
        }
        Some(())
    }

    /// Answers a DREQ and enters the TIMEWAIT state.
    pub(super) fn end(&mut self, now: Time, id: ConnId, tid: u64) {
        let Some(connection) = self.connections.get(&id.0) else { return };
        let drep =
            Drep { local_comm_id: id.0, remote_comm_id: connection.remote_id, ..Drep::default() };
        let drep = self.send(id, tid, &Message::Drep(drep));
        self.enter_timewait(now, id, Some(drep));
    }

    fn on_drep(&mut self, now: Time, route: Route, tid: u64, drep: &Drep) -> Option<()> {
        let (id, connection) = self.find_both(route, drep.remote_comm_id, drep.local_comm_id)?;
        match connection.state {
            State::Established { .. } => return self.peer_forgot(id, tid),
            State::DreqSent(_) => {}
            _ => return None,
        }
        self.tell(id, CmEvent::Disconnected { id, answered: true });
        self.enter_timewait(now, id, None);
        Some(())
    }

    fn on_sidr_req(&mut self, now: Time, route: Route, tid: u64, req: SidrReq) -> Option<()> {
        let key: PeerKey = (route.remote, req.request_id, true);
        if let Some(&id) = self.peers.get(&key) {
            let connection = self.connections.get(&id.0)?;
            if let State::SidrRepSent { rep, .. } = &connection.state {
                let (mad, route) = (rep.clone(), connection.route);
                self.push(Outgoing { route, mad });
            }
            return Some(());
        }
        let Some(&listener) = self.services.get(&req.service_id) else {
            let request = || Request::SidrReq(Box::new(req.clone()));
            if self.held.hold(now, route, tid, request, req.service_id) {
                return Some(());
            }
            self.answer(route, tid, &no_service(&req, SidrStatus::UNSUPPORTED));
            return Some(());
        };
        let has_room = self.index.sources.has_room(route.remote, Cost::Query);
        let id = self.draw_id().filter(|id| has_room && self.has_room(listener, *id))?;
        let connection = Connection {
            id,
            remote_id: req.request_id,
            remote_guid: 0,
            local_qpn: Default::default(),
            remote_qpn: Default::default(),
            route,
            tid,
            state: State::SidrReqRcvd { listener, waiting: true, service_id: req.service_id },
            retries: 0,
            first_wait: Duration::ZERO,
            packet_life: Duration::ZERO,
            orphan: false,
            armed: None,
        };
        self.insert(connection);
        let old = self.peers.insert(key, id);
        debug_assert!(old.is_none(), "a duplicate was found before");
        self.events.push(CmEvent::Resolve { listener, id, route, req: Box::new(req) });
        Some(())
    }

    fn on_sidr_rep(&mut self, route: Route, rep: SidrRep) -> Option<()> {
        let (id, connection) = self.find(route, rep.request_id)?;
        if !matches!(connection.state, State::SidrReqSent(_)) {
            return None;
        }
        self.forget_with(id, CmEvent::Resolved { id, rep: Box::new(rep) });
        Some(())
    }

    /// Returns the connection with this local communication ID, if the datagram came from its peer.
    fn find(&mut self, route: Route, local: u32) -> Option<(ConnId, &mut Connection)> {
        let connection = self.connections.get_mut(&local)?;
        let from_peer = connection.route.remote == route.remote;
        from_peer.then_some((connection.id, connection))
    }

    /// Like `find`, but the peer's communication ID must match too.
    fn find_both(
        &mut self,
        route: Route,
        local: u32,
        remote: u32,
    ) -> Option<(ConnId, &mut Connection)> {
        self.find(route, local).filter(|(_, connection)| connection.remote_id == remote)
    }

    /// Answers a message that belongs to no connection.
    fn answer(&mut self, route: Route, tid: u64, message: &Message) {
        self.push(Outgoing { route, mad: Box::new(message.emit(tid)) });
    }
}

/// Returns a REJ of a REQ.
fn refusal(req: &Req, reason: RejReason) -> Message {
    rej(0, req.local_comm_id, Subject::Req, reason, &[], &[])
}

/// Returns the answer to a SIDR query without a queue pair.
fn no_service(req: &SidrReq, status: SidrStatus) -> Message {
    Message::SidrRep(SidrRep {
        request_id: req.request_id,
        service_id: req.service_id,
        status: status.0,
        ..SidrRep::default()
    })
}

/// The maximum time that an ended connection is kept for late packets, whatever the peer requests.
const MAX_PACKET_LIFETIME: Duration = Duration::from_secs(20);

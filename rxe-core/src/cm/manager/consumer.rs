//! The calls of the consumer. IBTA 12.9.1, 12.9.3.

use std::collections::BTreeSet;
use std::time::Duration;

use super::connection::{Connection, Retry, State, timeout};
use super::{CmError, ConnId, Listener, ListenerId, Manager, Outgoing, Route, fill};
use crate::cm::mad::{Dreq, Message, RejReason, Rep, Req, Rtu, SidrRep, SidrReq, Subject};
use crate::types::{Qpn, Time};

/// The maximum number of retries of a REQ, REP or SIDR_REQ. A REP has fewer if the REQ requests
/// fewer. The waits grow; together they take 110 s.
const RETRIES: u8 = 15;
/// The maximum number of retries of a DREQ, within 41 s; fewer if the REQ requests fewer.
const DREQ_RETRIES: u8 = 7;
/// How long a SIDR_REP is kept for retransmission.
const SIDR_KEPT: Duration = Duration::from_secs(20);
/// The code of the response timeout in our REQs: 4.3 s.
const RESPONSE_TIMEOUT: u8 = 20;

impl Manager {
    /// Listens on a service ID. Up to `backlog` requests may wait to be taken. Further requests are
    /// dropped; their senders repeat them. Requests that are held for a listener on the service are
    /// delivered immediately.
    ///
    /// # Errors
    /// [`CmError::InUse`] if the service ID has a listener.
    pub fn listen(
        &mut self,
        now: Time,
        service_id: u64,
        backlog: usize,
    ) -> Result<ListenerId, CmError> {
        if self.services.contains_key(&service_id) {
            return Err(CmError::InUse);
        }
        let id = loop {
            let id = u32::try_from(self.draw() >> 32).unwrap_or_default();
            if !self.listeners.contains_key(&id) {
                break ListenerId(id);
            }
        };
        self.listeners.insert(id.0, Listener { service_id, backlog, waiting: BTreeSet::new() });
        self.services.insert(service_id, id);
        debug_assert_eq!(self.services.len(), self.listeners.len(), "one service each");
        self.take_held(now, service_id);
        Ok(id)
    }

    /// Changes a listener's backlog. Requests that already wait stay. For a program that starts or
    /// stops listening on a service ID in use.
    pub fn set_backlog(&mut self, listener: ListenerId, backlog: usize) {
        if let Some(listener) = self.listeners.get_mut(&listener.0) {
            listener.backlog = backlog;
        }
    }

    /// Ends a listener. Waiting requests are refused, and their events removed. Requests that
    /// arrive within [`super::CLOSED_FOR`] are held for the next listener. Returns the refused
    /// requests, which the consumer need not destroy.
    pub fn unlisten(&mut self, now: Time, listener: ListenerId) -> BTreeSet<ConnId> {
        let Some(old) = self.listeners.remove(&listener.0) else { return BTreeSet::new() };
        let service = self.services.remove(&old.service_id);
        debug_assert_eq!(service, Some(listener), "a service has one listener");
        self.held.closed(now, old.service_id);
        debug_assert_eq!(self.services.len(), self.listeners.len(), "one service each");
        for &id in &old.waiting {
            self.destroy(now, id);
        }
        old.waiting
    }

    /// Records that the consumer has taken a request or query. It then no longer counts towards the
    /// backlog.
    pub fn taken(&mut self, id: ConnId) {
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        let waited = connection.state.waits_for();
        if let State::ReqRcvd { waiting, .. } | State::SidrReqRcvd { waiting, .. } =
            &mut connection.state
        {
            *waiting = false;
        }
        if let Some(listener) = waited {
            self.waits_no_more(listener, id);
        }
    }

    /// Requests a connection. Sets the IDs, timeouts and device GUID in `req`.
    ///
    /// # Errors
    /// [`CmError::NoResources`] if there are too many connections.
    pub fn connect(&mut self, now: Time, route: Route, req: Req) -> Result<ConnId, CmError> {
        let id = self.draw_id().ok_or(CmError::NoResources)?;
        let tid = self.draw_tid(id);
        let req = Req {
            local_comm_id: id.0,
            local_ca_guid: self.config.guid,
            remote_cm_response_timeout: RESPONSE_TIMEOUT,
            local_cm_response_timeout: RESPONSE_TIMEOUT,
            max_cm_retries: RETRIES,
            ..req
        };
        let life = timeout(req.primary.local_ack_timeout);
        self.begin(id, tid, route, life);
        if let Some(connection) = self.connections.get_mut(&id.0) {
            connection.local_qpn = req.local_qpn;
        }
        let mad = self.send(id, tid, &Message::Req(req));
        let first = self.draw_first_wait();
        self.set(id, State::ReqSent(Retry::waiting(now, mad, RETRIES, first)));
        Ok(id)
    }

    /// Accepts a request. Sets the IDs and device GUID in `rep`.
    ///
    /// # Errors
    /// The request does not exist, or it ended meanwhile.
    pub fn accept(&mut self, now: Time, id: ConnId, rep: Rep) -> Result<(), CmError> {
        let guid = self.config.guid;
        let connection = self.get(id)?;
        if !matches!(connection.state, State::ReqRcvd { .. }) {
            return Err(CmError::WrongState);
        }
        connection.local_qpn = rep.local_qpn;
        let rep = Rep {
            local_comm_id: id.0,
            remote_comm_id: connection.remote_id,
            local_ca_guid: guid,
            ..rep
        };
        let (tid, first) = (connection.tid, connection.first_wait);
        debug_assert!(first > Duration::ZERO, "a REP is sent again after a while");
        let retries = connection.retries.min(RETRIES);
        let mad = self.send(id, tid, &Message::Rep(rep));
        self.set(id, State::RepSent(Retry::waiting(now, mad, retries, first)));
        Ok(())
    }

    /// Refuses a request or a reply. The connection is removed.
    ///
    /// # Errors
    /// The connection has no request or reply to refuse.
    pub fn reject(
        &mut self,
        id: ConnId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let subject = match self.get(id)?.state {
            State::ReqRcvd { .. } => Subject::Req,
            State::RepRcvd => Subject::Rep,
            _ => return Err(CmError::WrongState),
        };
        self.send_rej(id, subject, reason, ari, private_data);
        self.forget(id);
        Ok(())
    }

    /// Sends the RTU: this side has received the reply and is ready.
    ///
    /// # Errors
    /// The connection has no reply, or it ended meanwhile.
    pub fn establish(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let connection = self.get(id)?;
        if !matches!(connection.state, State::RepRcvd) {
            return Err(CmError::WrongState);
        }
        let mut rtu =
            Rtu { local_comm_id: id.0, remote_comm_id: connection.remote_id, ..Rtu::default() };
        fill(&mut rtu.private_data, private_data);
        let tid = connection.tid;
        let mad = self.send(id, tid, &Message::Rtu(rtu));
        self.set(id, State::Established { rtu: Some(mad) });
        Ok(())
    }

    /// Records that a packet arrived on a queue pair whose REP is not answered. Therefore the peer
    /// is ready; its RTU was lost or is late.
    pub fn communication_established(&mut self, id: ConnId) {
        self.become_established(id);
    }

    /// Like [`Manager::communication_established`], for the connection of a queue pair.
    pub fn established_by(&mut self, qpn: Qpn) {
        let Some(id) = self.index.unanswered(qpn) else { return };
        if self.connections.get(&id.0).is_some_and(|connection| !connection.orphan) {
            self.become_established(id);
        }
    }

    /// Ends a connection, or answers the peer's DREQ.
    ///
    /// # Errors
    /// The connection is not connected.
    pub fn disconnect(
        &mut self,
        now: Time,
        id: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.get(id)?;
        match connection.state {
            State::Established { .. } | State::RepSent(_) => {
                let mut dreq = Dreq {
                    local_comm_id: id.0,
                    remote_comm_id: connection.remote_id,
                    remote_qpn: connection.remote_qpn,
                    ..Dreq::default()
                };
                fill(&mut dreq.private_data, private_data);
                let first = connection.first_wait;
                let retries = connection.retries.min(DREQ_RETRIES);
                let tid = self.draw_tid(id);
                let mad = self.send(id, tid, &Message::Dreq(dreq));
                self.set(id, State::DreqSent(Retry::waiting(now, mad, retries, first)));
            }
            State::DreqRcvd { tid } => {
                self.end(now, id, tid);
            }
            _ => return Err(CmError::WrongState),
        }
        Ok(())
    }

    /// Destroys a connection or query in any state. The peer is notified, and no more events
    /// follow.
    pub fn destroy(&mut self, now: Time, id: ConnId) {
        self.events.remove(id);
        let Ok(connection) = self.get(id) else { return };
        connection.orphan = true;
        match connection.state {
            State::ReqSent(_) => {
                self.send_rej(id, Subject::Req, RejReason::TIMEOUT, &[], &[]);
                self.forget(id);
            }
            State::ReqRcvd { .. } => {
                self.send_rej(id, Subject::Req, RejReason::CONSUMER_DEFINED, &[], &[]);
                self.forget(id);
            }
            State::RepSent(_) | State::RepRcvd => {
                self.send_rej(id, Subject::Rep, RejReason::CONSUMER_DEFINED, &[], &[]);
                self.forget(id);
            }
            State::Established { .. } | State::DreqRcvd { .. } => {
                // The manager finishes the disconnect without the consumer.
                let _ = self.disconnect(now, id, &[]);
            }
            State::SidrReqRcvd { .. } => {
                let rep =
                    SidrRep { status: crate::cm::mad::SidrStatus::REJECT.0, ..SidrRep::default() };
                let _ = self.answer_sidr(now, id, rep);
            }
            State::SidrReqSent(_) => {
                self.forget(id);
            }
            State::DreqSent(_) | State::TimeWait { .. } | State::SidrRepSent { .. } => {}
        }
    }

    /// Requests the queue pair of a datagram service (SIDR).
    ///
    /// # Errors
    /// [`CmError::NoResources`] if there are too many connections and queries.
    pub fn resolve(&mut self, now: Time, route: Route, req: SidrReq) -> Result<ConnId, CmError> {
        let id = self.draw_id().ok_or(CmError::NoResources)?;
        let tid = self.draw_tid(id);
        self.begin(id, tid, route, Duration::ZERO);
        let req = SidrReq { request_id: id.0, ..req };
        let mad = self.send(id, tid, &Message::SidrReq(req));
        let first = self.draw_first_wait();
        self.set(id, State::SidrReqSent(Retry::waiting(now, mad, RETRIES, first)));
        Ok(id)
    }

    /// Answers a SIDR query. Sets the request ID and service ID in `rep`. The consumer need not
    /// destroy the query.
    ///
    /// # Errors
    /// The query does not exist, or it is already answered.
    pub fn answer_sidr(&mut self, now: Time, id: ConnId, rep: SidrRep) -> Result<(), CmError> {
        let connection = self.get(id)?;
        let State::SidrReqRcvd { service_id, .. } = connection.state else {
            return Err(CmError::WrongState);
        };
        connection.orphan = true;
        let rep = SidrRep { request_id: connection.remote_id, service_id, ..rep };
        let tid = connection.tid;
        let source = connection.route.remote;
        let rep = self.send(id, tid, &Message::SidrRep(rep));
        if self.index.sources.may_keep(source) {
            self.set(id, State::SidrRepSent { until: now + SIDR_KEPT, rep });
        } else {
            // If the answer is lost, the peer repeats its query, and the consumer answers again.
            self.forget(id);
        }
        Ok(())
    }

    /// Destroys all connections, queries and listeners, before the device is closed.
    pub fn close(&mut self, now: Time) {
        // Sorted, so that a simulation depends only on its seed.
        let mut ids: Vec<_> = self.connections.keys().copied().map(ConnId).collect();
        ids.sort_unstable();
        for id in ids {
            self.destroy(now, id);
        }
        self.listeners.clear();
        self.services.clear();
        self.held.clear();
        self.questions.clear();
    }

    /// Sends the last messages before the process ends. Does what [`Manager::close`] does, and
    /// sends each recent DREP once more: if one was lost, the peer repeats its DREQ, but this
    /// process will no longer exist to answer it.
    pub fn close_at_exit(&mut self, now: Time) {
        let answers = self.connections.values().filter_map(|c| match &c.state {
            State::TimeWait { drep: Some(drep), .. } => {
                Some(Outgoing { route: c.route, mad: drep.clone() })
            }
            _ => None,
        });
        let answers: Vec<_> = answers.collect();
        self.close(now);
        for answer in answers {
            self.push(answer);
        }
    }

    fn get(&mut self, id: ConnId) -> Result<&mut Connection, CmError> {
        self.connections.get_mut(&id.0).ok_or(CmError::Unknown)
    }

    /// Creates a connection or query of this side. Sending its first message sets its state.
    fn begin(&mut self, id: ConnId, tid: u64, route: Route, packet_life: Duration) {
        let connection = Connection {
            id,
            remote_id: 0,
            remote_guid: 0,
            local_qpn: Default::default(),
            remote_qpn: Default::default(),
            route,
            tid,
            state: State::RepRcvd,
            retries: RETRIES,
            first_wait: Retry::FIRST,
            packet_life,
            orphan: false,
            armed: None,
        };
        self.insert(connection);
    }

    /// Returns a random first wait for a request, which determines all later waits. Random waits
    /// make clients that find a full backlog at one moment repeat their requests one after the
    /// other.
    fn draw_first_wait(&mut self) -> Duration {
        let least = Retry::FIRST / 2;
        let more = self.draw() % u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        least + Duration::from_nanos(more)
    }

    pub(super) fn draw_tid(&mut self, id: ConnId) -> u64 {
        self.draw() << 32 | u64::from(id.0)
    }
}

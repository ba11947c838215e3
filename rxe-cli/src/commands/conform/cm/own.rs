//! Local messages: requests, and replies to the peer's requests.

use std::net::SocketAddr;

use rxe_core::cm::mad::{
    Drep, Dreq, Message, Mra, Path, Rej, RejReason, Rep, Req, Rtu, SidrReq, Subject,
};
use rxe_core::cm::service::{IP_CM_LEN, IpCmHeader, PortSpace};
use rxe_core::types::Psn;

use super::super::packet::Target;
use super::{ASKS, Cm, DEPTH, RESOURCES};
use crate::common::peer::RC;

/// The encoded CM timeout of 4.3 s, longer than a case needs.
const LONG: u8 = 20;

impl Cm<'_, '_> {
    /// Returns the starting PSN of local requests if this end accepts.
    fn psn(&self) -> Psn {
        Psn::new(RC.rq_psn)
    }

    /// Returns a REQ for the service that the peer's program listens to.
    pub(in super::super) fn req(&self) -> Req {
        let net = self.b.end.net();
        let mut private_data = [0; 92];
        let header = IpCmHeader { src: SocketAddr::new(net.src, self.own_port), dst: net.dst };
        private_data[..IP_CM_LEN].copy_from_slice(&header.emit());
        private_data[IP_CM_LEN..][..ASKS.len()].copy_from_slice(ASKS);
        Req {
            local_comm_id: self.id(),
            service_id: PortSpace::Tcp.service_id(self.port),
            local_ca_guid: self.guid(),
            local_qpn: self.b.target.own_qpn,
            responder_resources: RESOURCES,
            initiator_depth: DEPTH,
            remote_cm_response_timeout: LONG,
            local_cm_response_timeout: LONG,
            starting_psn: Psn::new(RC.sq_psn),
            retry_count: 7,
            partition_key: 0xffff,
            // The code 1 is 256 B.
            path_mtu: 1,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            primary: Path {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: net.src.into(),
                remote_gid: net.dst.into(),
                hop_limit: 64,
                local_ack_timeout: LONG,
                ..Path::default()
            },
            private_data,
            ..Req::default()
        }
    }

    /// Returns a SIDR_REQ for the datagram service that the peer's program listens to.
    pub(in super::super) fn sidr_req(&self) -> SidrReq {
        let mut req = SidrReq {
            request_id: self.id(),
            partition_key: 0xffff,
            service_id: PortSpace::Udp.service_id(self.port),
            ..SidrReq::default()
        };
        let data = self.req().private_data;
        let len = data.len();
        req.private_data[..len].copy_from_slice(&data);
        req
    }

    pub(in super::super) fn rtu(&self) -> Message {
        let (local_comm_id, remote_comm_id) = (self.id(), self.remote_id);
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() })
    }

    /// Returns the RTU that the peer must send.
    pub(in super::super) fn rtu_of_peer(&self) -> Message {
        let (local_comm_id, remote_comm_id) = (self.remote_id, self.id());
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() })
    }

    pub(in super::super) fn dreq(&self) -> Dreq {
        let (local_comm_id, remote_comm_id) = (self.id(), self.remote_id);
        Dreq { local_comm_id, remote_comm_id, remote_qpn: self.remote_qpn, ..Dreq::default() }
    }

    pub(in super::super) fn drep_message(&self) -> Message {
        let (local_comm_id, remote_comm_id) = (self.id(), self.remote_id);
        Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() })
    }

    /// Returns an MRA that asks the peer to wait 4.3 s for the reply to its message.
    pub(in super::super) fn mra(&self, subject: Subject) -> Message {
        Message::Mra(Mra {
            local_comm_id: self.id(),
            remote_comm_id: self.remote_id,
            message: subject as u8,
            service_timeout: LONG,
            ..Mra::default()
        })
    }

    /// Returns a consumer REJ of the peer's message.
    pub(in super::super) fn rejection(&self, subject: Subject) -> Message {
        let mut rej = Rej {
            local_comm_id: self.id(),
            remote_comm_id: self.remote_id,
            message: subject as u8,
            reason: RejReason::CONSUMER_DEFINED.0,
            ..Rej::default()
        };
        rej.private_data[..ASKS.len()].copy_from_slice(ASKS);
        Message::Rej(rej)
    }

    /// Returns the REP to the peer's request, and records the peer's ID and queue pair.
    pub(in super::super) fn acceptance(&mut self, req: &Req) -> Rep {
        self.remote_id = req.local_comm_id;
        self.remote_qpn = req.local_qpn;
        self.b.target = Target {
            qpn: req.local_qpn,
            rq_psn: req.starting_psn,
            sq_psn: self.psn(),
            ..self.b.target
        };
        let mut private_data = [0; 196];
        private_data[..ASKS.len()].copy_from_slice(ASKS);
        Rep {
            local_comm_id: self.id(),
            remote_comm_id: self.remote_id,
            local_qpn: self.b.target.own_qpn,
            starting_psn: self.psn(),
            responder_resources: RESOURCES.min(req.initiator_depth),
            initiator_depth: RESOURCES.min(req.responder_resources),
            target_ack_delay: 15,
            failover_accepted: 1,
            rnr_retry_count: 7,
            local_ca_guid: self.guid(),
            private_data,
            ..Rep::default()
        }
    }
}

//! The communication manager: the peer's program requests connections of this end.

use std::time::Duration;

use rxe_core::cm::mad::{Message, Req, Subject};
use rxe_core::cm::service::{IP_CM_LEN, IpCmHeader};
use rxe_core::types::{Gid, Mtu};

use super::super::bench::{deviates, done};
use super::super::case::Case;
use super::super::cm::{A_WHILE, ANSWERS, ASKS, Cm};
use super::super::packet::ack;
use super::super::verdict::Outcome;
use crate::common::peer::{CM, Event};
use rxe_lab::answer::Said;

/// Returns the time of an encoded CM timeout.
fn time(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

/// Requires the addresses in the REQ and in its private data to be those of both ends.
fn names_both_ends(cm: &Cm<'_, '_>, req: &Req) -> Outcome {
    let net = cm.b.end.net();
    let [own, peer] = [net.src, net.dst].map(Gid::from);
    if (req.primary.local_gid, req.primary.remote_gid) != (peer, own) {
        return deviates("the GIDs of its REQ are not those of both ends".to_owned());
    }
    let header = req.private_data.first_chunk::<IP_CM_LEN>().and_then(IpCmHeader::parse);
    if header.map(|h| (h.src.ip(), h.dst)) != Some((net.dst, net.src)) {
        return deviates(format!("the addresses in its private data are wrong: {header:?}"));
    }
    if !req.private_data[IP_CM_LEN..].starts_with(ANSWERS) {
        return deviates("the REQ has other private data than its program".to_owned());
    }
    Ok(())
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "cm_req",
        rule: "12.6.5, 12.7, A11",
        sends: "the program asks for a connection",
        allows: "REQ for RC with the program's queue pair, our service, both addresses, a path MTU that \
                 exists and the default partition",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (qpn, _, req) = cm.dial()?;
            names_both_ends(cm, &req)?;
            if req.local_qpn != qpn {
                let is = req.local_qpn.value();
                return deviates(format!("the REQ has QPN 0x{is:x}, not 0x{:x}", qpn.value()));
            }
            let Req { local_comm_id, transport_service_type, partition_key, path_mtu, .. } = req;
            if local_comm_id == 0 || transport_service_type != 0 || partition_key & 0x7fff != 0x7fff
            {
                return deviates(format!(
                    "the REQ has ID 0x{local_comm_id:x}, service type {transport_service_type}, P_Key \
                     0x{partition_key:x}"
                ));
            }
            if Mtu::from_verbs(path_mtu).is_none() {
                return deviates(format!("the REQ has the path MTU {path_mtu}"));
            }
            Ok(())
        },
    },
    Case {
        name: "cm_accepted",
        rule: "12.9.7.1, 12.7 (starting PSN)",
        sends: "REP to its REQ; the program sends",
        allows: "RTU with both IDs; the program is connected; its SEND has the REP's starting PSN",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (_, _, req) = cm.dial()?;
            let rep = cm.acceptance(&req);
            cm.send(&Message::Rep(rep))?;
            // librdmacm sends the RTU when the program waits for events.
            let event = cm.event(Event::ESTABLISHED)?;
            let came = cm.expect("RTU")?;
            if came.message != cm.rtu_of_peer() {
                return deviates("the RTU names other IDs, or has private data".to_owned());
            }
            if !event.private_data.starts_with(ASKS) {
                return deviates("its program sees other private data than the REP has".to_owned());
            }
            cm.b.post_send(1, 8)?;
            cm.b.expect(Said::send_only(0))?;
            cm.b.send(ack(0))?;
            cm.b.completes([done(1)])
        },
    },
    Case {
        name: "cm_req_again",
        rule: "12.9.7.1 (REQ sent, timeout)",
        sends: "no answer to its REQ for as long as it says that we may take, and as long again",
        allows: "the same REQ again",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (_, first, req) = cm.dial()?;
            if req.max_cm_retries == 0 {
                return Ok(());
            }
            let wait = time(req.remote_cm_response_timeout) * 2 + cm.b.wait;
            cm.again_within(&first, wait.min(Duration::from_secs(20)))?;
            Ok(())
        },
    },
    Case {
        name: "cm_duplicate_rep",
        rule: "12.9.7.1 (established)",
        sends: "REP twice",
        allows: "RTU twice; the program sees one connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (_, _, req) = cm.dial()?;
            let rep = Message::Rep(cm.acceptance(&req));
            cm.send(&rep)?;
            cm.event(Event::ESTABLISHED)?;
            let rtu = cm.expect("RTU")?;
            cm.send(&rep)?;
            cm.again(&rtu)?;
            cm.no_event(Duration::ZERO)
        },
    },
    Case {
        name: "cm_rejected",
        rule: "12.9.7.1 (REQ sent, REJ)",
        sends: "REJ (consumer, with private data) in answer to its REQ",
        allows: "the program sees the reason and the data; the REQ does not come again",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (_, _, req) = cm.dial()?;
            cm.remote_id = req.local_comm_id;
            cm.refuse(Subject::Req)?;
            cm.quiet(A_WHILE)
        },
    },
    Case {
        name: "cm_mra_then_rep",
        rule: "12.6.6, 12.9.7.1 (MRA of REQ)",
        sends: "MRA for its REQ, and the REP after 0.7 s",
        allows: "the REQ does not come again meanwhile; RTU",
        given: CM,
        run: |b| {
            let cm = &mut Cm::new(b)?;
            let (_, _, req) = cm.dial()?;
            let rep = cm.acceptance(&req);
            cm.send(&cm.mra(Subject::Req))?;
            cm.quiet(Duration::from_millis(700))?;
            cm.send(&Message::Rep(rep))?;
            cm.event(Event::ESTABLISHED)?;
            cm.expect("RTU").map(drop)
        },
    },
];

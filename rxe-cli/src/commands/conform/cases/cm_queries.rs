//! The communication manager: service ID resolution for datagrams (SIDR).

use std::time::Duration;

use rxe_core::cm::mad::{Message, SidrReq, SidrStatus};

use super::super::bench::{deviates, got};
use super::super::case::Case;
use super::super::cm::{A_WHILE, ANSWERS, ASKS, Cm};
use super::super::packet::{Target, datagram};
use crate::common::peer::{CM, Event};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "cm_sidr",
        rule: "12.11.1, 12.11.2",
        sends: "SIDR_REQ with private data, and a datagram to the queue pair in the answer",
        allows: "SIDR_REP: success, with the program's queue pair and private data; the datagram arrives \
                 under the Q_Key in it",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening_to_datagrams(b)?;
            cm.send(&Message::SidrReq(cm.sidr_req()))?;
            let asked = cm.event(Event::REQUEST)?;
            if !asked.private_data.starts_with(ASKS) {
                return deviates("its program sees other private data".to_owned());
            }
            let qpn = cm.accept()?;
            let (_, rep) = cm.sidr_rep()?;
            if rep.status != SidrStatus::SUCCESS.0 || rep.qpn != qpn {
                let (status, is) = (rep.status, rep.qpn.value());
                let should = qpn.value();
                return deviates(format!(
                    "status {status} and QPN 0x{is:x}, not 0 and 0x{should:x}"
                ));
            }
            if !rep.private_data.starts_with(ANSWERS) {
                return deviates("the SIDR_REP has other private data than its program".to_owned());
            }
            cm.b.target = Target { qpn, ..cm.b.target };
            cm.b.receive(1, 100)?;
            cm.b.send(datagram(8, rep.qkey.0))?;
            cm.b.completes([got(1, 48)])
        },
    },
    Case {
        name: "cm_sidr_no_listener",
        rule: "12.11.2.1 (status 1)",
        sends: "SIDR_REQ for a service that nobody listens to",
        allows: "SIDR_REP: the service ID is not supported",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening_to_datagrams(b)?;
            let service_id = cm.sidr_req().service_id ^ 0x3ff0;
            cm.send(&Message::SidrReq(SidrReq { service_id, ..cm.sidr_req() }))?;
            let (_, rep) = cm.sidr_rep()?;
            if rep.status != SidrStatus::UNSUPPORTED.0 {
                return deviates(format!("the status is {}, not 1", rep.status));
            }
            cm.no_event(Duration::ZERO)
        },
    },
    Case {
        name: "cm_sidr_rejected",
        rule: "12.11.2.1 (status 2)",
        sends: "SIDR_REQ that the program rejects",
        allows: "SIDR_REP: rejected by the consumer",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening_to_datagrams(b)?;
            cm.send(&Message::SidrReq(cm.sidr_req()))?;
            cm.event(Event::REQUEST)?;
            cm.reject()?;
            let (_, rep) = cm.sidr_rep()?;
            if rep.status != SidrStatus::REJECT.0 {
                return deviates(format!("the status is {}, not 2", rep.status));
            }
            Ok(())
        },
    },
    Case {
        name: "cm_sidr_twice",
        rule: "12.11",
        sends: "SIDR_REQ twice, before the program answers",
        allows: "the program sees one request; SIDR_REP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening_to_datagrams(b)?;
            cm.send(&Message::SidrReq(cm.sidr_req()))?;
            cm.event(Event::REQUEST)?;
            cm.send(&Message::SidrReq(cm.sidr_req()))?;
            cm.no_event(A_WHILE)?;
            cm.accept()?;
            cm.sidr_rep().map(drop)
        },
    },
];

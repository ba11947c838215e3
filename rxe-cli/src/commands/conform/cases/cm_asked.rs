//! The communication manager: this end requests connections of the peer's program.

use std::time::Duration;

use rxe_core::cm::mad::{Message, RejReason, Req, Subject};
use rxe_core::types::Qpn;

use super::super::bench::{deviates, got};
use super::super::case::Case;
use super::super::cm::{A_WHILE, ANSWERS, ASKS, Came, Cm, DEPTH, RESOURCES, SHORT, unallowed};
use super::super::packet::send;
use super::super::verdict::Outcome;
use crate::common::peer::{CM, Event};
use rxe_lab::answer::Said;

/// Requires that nothing but the same REP or an MRA for the REQ arrives.
fn repeats_or_delays(cm: &mut Cm<'_, '_>, rep: &Came) -> Outcome {
    for came in cm.listen_for(A_WHILE)? {
        let delays =
            matches!(&came.message, Message::Mra(mra) if mra.message == Subject::Req as u8);
        if came.bytes != rep.bytes && !delays {
            let said = rxe_lab::words::cm(&came.message);
            return deviates(format!("{said} came, which is neither the same REP nor an MRA"));
        }
    }
    Ok(())
}

/// Sends a request that must be rejected, for any reason, and not be reported.
fn refused(cm: &mut Cm<'_, '_>, req: Req) -> Outcome {
    cm.send(&Message::Req(req))?;
    let came = cm.expect("REJ");
    cm.no_event(Duration::ZERO)?;
    came.map(drop)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "cm_connect",
        rule: "12.9.7.2",
        sends: "REQ, RTU after the REP, a SEND over the connection, DREQ",
        allows: "REP with our communication ID and the program's queue pair, an ACK, DREP; the program \
                 sees a request, a connection and its end",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.request(cm.req())?;
            let qpn = cm.accept()?;
            let (_, rep) = cm.rep()?;
            if rep.local_qpn != qpn {
                let is = rep.local_qpn.value();
                return deviates(format!("the REP has QPN 0x{is:x}, not 0x{:x}", qpn.value()));
            }
            cm.ready()?;
            cm.carries(0)?;
            cm.end().map(drop)
        },
    },
    Case {
        name: "cm_rep_within_offer",
        rule: "12.7 (responder resources, initiator depth)",
        sends: "REQ that offers to take 1 READ or atomic at a time, and wants 3; the program accepts with \
                as many as possible",
        allows: "REP that has at most 1 outstanding, and takes at most 3",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let (_, rep) = cm.ask(cm.req())?;
            let [takes, sends] = [rep.responder_resources, rep.initiator_depth];
            if takes > DEPTH || sends > RESOURCES {
                return deviates(format!(
                    "the REP takes {takes} and will have {sends} outstanding"
                ));
            }
            Ok(())
        },
    },
    Case {
        name: "cm_private_data",
        rule: "12.6.5, 12.6.8, A11",
        sends: "REQ with private data behind the addresses; the program accepts with private data",
        allows: "both arrive, and zeros behind those of the REP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let asked = cm.request(cm.req())?;
            if !asked.private_data.starts_with(ASKS) {
                return deviates("its program sees other private data than the REQ has".to_owned());
            }
            cm.accept()?;
            let (_, rep) = cm.rep()?;
            let (data, rest) = rep.private_data.split_at(ANSWERS.len());
            if data != ANSWERS || rest.iter().any(|byte| *byte != 0) {
                return deviates("the REP has other private data than its program".to_owned());
            }
            Ok(())
        },
    },
    Case {
        name: "cm_data_before_rtu",
        rule: "12.9.7.2 (REP sent)",
        sends: "a SEND after the REP, before the RTU; then the RTU, and another SEND",
        allows: "both are acknowledged; the program sees one connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.ask(cm.req())?;
            cm.b.receive(1, 100)?;
            cm.b.receive(2, 100)?;
            cm.b.send(send(0, 8).ask())?;
            cm.b.expect(Said::Ack(0))?;
            cm.ready()?;
            cm.b.send(send(1, 8).ask())?;
            cm.b.expect(Said::Ack(1))?;
            cm.b.completes([got(1, 8), got(2, 8)])?;
            cm.no_event(Duration::ZERO)
        },
    },
    Case {
        name: "cm_duplicate_req_while_it_waits",
        rule: "12.9.7.2 (REQ received)",
        sends: "REQ twice, before the program answers",
        allows: "one request; no answer, or an MRA; then one REP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.request(cm.req())?;
            cm.send(&Message::Req(cm.req()))?;
            cm.no_event(A_WHILE)?;
            for came in cm.listen_for(Duration::ZERO)? {
                if came.message.name() != "MRA" {
                    let said = rxe_lab::words::cm(&came.message);
                    return deviates(format!("{said} came, before the program has answered"));
                }
            }
            cm.accept()?;
            cm.rep().map(drop)
        },
    },
    Case {
        name: "cm_duplicate_req_after_rep",
        rule: "12.9.7.2 (REP sent)",
        sends: "REQ, and again after the REP; then RTU and a SEND",
        allows: "the same REP again, an MRA, or nothing; the program sees one request and one connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let (rep, _) = cm.ask(cm.req())?;
            cm.send(&Message::Req(cm.req()))?;
            repeats_or_delays(cm, &rep)?;
            cm.ready()?;
            cm.carries(0)
        },
    },
    Case {
        name: "cm_duplicate_req_after_rtu",
        rule: "12.9.7.2 (established)",
        sends: "REQ, RTU, and the REQ again; then a SEND",
        allows: "the connection stays; the program sees nothing new",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let (rep, _) = cm.ask(cm.req())?;
            cm.ready()?;
            cm.send(&Message::Req(cm.req()))?;
            repeats_or_delays(cm, &rep)?;
            cm.no_event(Duration::ZERO)?;
            cm.carries(0)
        },
    },
    Case {
        name: "cm_rep_again",
        rule: "12.9.7.2 (REP sent, timeout)",
        sends: "REQ with a CM response timeout of 134 ms; the RTU only when the REP has come twice",
        allows: "the same REP again; then a connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let req = Req { local_cm_response_timeout: SHORT, ..cm.req() };
            let (rep, _) = cm.ask(req)?;
            cm.again(&rep)?;
            cm.ready()
        },
    },
    Case {
        name: "cm_rep_within_retries",
        rule: "12.7 (max CM retries)",
        sends: "REQ with a CM response timeout of 134 ms that allows one retry; no RTU",
        allows: "the REP twice; then nothing, or a REJ (timeout)",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let req = Req { local_cm_response_timeout: SHORT, max_cm_retries: 1, ..cm.req() };
            let (rep, _) = cm.ask(req)?;
            let first = cm.again(&rep)?;
            // The bound is three times the first interval, in case the peer's intervals grow.
            let first = first.saturating_duration_since(rep.at).max(Duration::from_millis(134));
            let all = cm.listen_for((first * 3).min(Duration::from_secs(4)))?;
            let timeout = RejReason::TIMEOUT.0;
            match all.iter().find(|c| !matches!(&c.message, Message::Rej(r) if r.reason == timeout))
            {
                None => Ok(()),
                Some(came) if came.bytes == rep.bytes => {
                    deviates("the REP came a third time, with one retry allowed".to_owned())
                }
                Some(came) => unallowed(&came.message),
            }
        },
    },
    Case {
        name: "cm_mra_delays_rep",
        rule: "12.6.6, 12.9.7.2 (MRA of REP)",
        sends: "REQ with a CM response timeout of 134 ms, and MRA (4.3 s) for the REP; RTU after 0.4 s",
        allows: "the REP does not come again meanwhile; a connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let req = Req { local_cm_response_timeout: SHORT, ..cm.req() };
            cm.ask(req)?;
            cm.send(&cm.mra(Subject::Rep))?;
            cm.quiet(Duration::from_millis(400))?;
            cm.ready()
        },
    },
    Case {
        name: "cm_duplicate_rtu",
        rule: "12.9.7.2 (established)",
        sends: "RTU twice, then a SEND",
        allows: "the second is ignored",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            cm.send(&cm.rtu())?;
            cm.quiet(A_WHILE)?;
            cm.no_event(Duration::ZERO)?;
            cm.carries(0)
        },
    },
    Case {
        name: "cm_no_listener",
        rule: "12.6.7.2 (reason 8)",
        sends: "REQ for a service that nobody listens to",
        allows: "REJ of the REQ: invalid service ID",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let service_id = cm.req().service_id ^ 0x3ff0;
            cm.send(&Message::Req(Req { service_id, ..cm.req() }))?;
            cm.rej(Subject::Req, RejReason::INVALID_SERVICE_ID)?;
            cm.no_event(Duration::ZERO)
        },
    },
    Case {
        name: "cm_program_rejects",
        rule: "12.6.7.2 (reason 28)",
        sends: "REQ, which the program rejects with private data",
        allows: "REJ of the REQ: consumer reject, with these data",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.request(cm.req())?;
            cm.reject()?;
            let rej = cm.rej(Subject::Req, RejReason::CONSUMER_DEFINED)?;
            if !rej.private_data.starts_with(ANSWERS) {
                return deviates("the REJ has other private data than its program".to_owned());
            }
            cm.quiet(Duration::ZERO)
        },
    },
    Case {
        name: "cm_rej_of_rep",
        rule: "12.9.7.2 (REP sent, REJ)",
        sends: "REJ (consumer, with private data) in answer to the REP",
        allows: "the program sees it and the data; the REP does not come again",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let req = Req { local_cm_response_timeout: SHORT, ..cm.req() };
            cm.ask(req)?;
            cm.refuse(Subject::Rep)?;
            cm.quiet(Duration::from_millis(400))
        },
    },
    Case {
        name: "cm_stale_connection",
        rule: "12.4.1, 12.9.8.3.1",
        sends: "over a connection, a REQ with another communication ID and the same queue pair and CA",
        allows: "REJ: stale connection; DREQ for the old connection, whose queue pair it names",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            let old = cm.id();
            cm.renew();
            cm.send(&Message::Req(cm.req()))?;
            // The REJ and the DREQ may come in either order.
            let mut names = Vec::new();
            for _ in 0..2 {
                let Some(came) = cm.next(cm.b.wait)? else { break };
                match &came.message {
                    Message::Rej(rej) if rej.remote_comm_id == cm.id() => {
                        if rej.reason != RejReason::STALE_CONNECTION.0 {
                            let reason = RejReason(rej.reason);
                            return deviates(format!("the reason of the REJ is {reason:?}"));
                        }
                        names.push("REJ");
                    }
                    Message::Dreq(dreq) if dreq.remote_comm_id == old => {
                        if dreq.remote_qpn != cm.b.target.own_qpn {
                            let is = dreq.remote_qpn.value();
                            return deviates(format!("the DREQ names QPN 0x{is:x}"));
                        }
                        names.push("DREQ");
                    }
                    other => return unallowed(other),
                }
            }
            match names[..] {
                ["REJ", "DREQ"] | ["DREQ", "REJ"] => Ok(()),
                [] => deviates("neither REJ nor DREQ came".to_owned()),
                [one, ..] => deviates(format!("only {one} came of REJ and DREQ")),
            }
        },
    },
    Case {
        name: "cm_service_type_rd",
        rule: "12.6.7.2 (reason 9)",
        sends: "REQ for a connection of RD, which RoCE does not have",
        allows: "REJ; the program sees no request",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            refused(cm, Req { transport_service_type: 2, ..cm.req() })
        },
    },
    Case {
        name: "cm_reserved_mtu",
        rule: "12.6.7.2 (reason 26)",
        sends: "REQ with the reserved path MTU 7",
        allows: "REJ, immediately or when the program accepts it",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.send(&Message::Req(Req { path_mtu: 7, ..cm.req() }))?;
            if cm.b.peer.event(Duration::from_millis(200))?.is_some() {
                // A program that cannot accept rejects.
                let _ = cm.accept();
            }
            cm.expect("REJ").map(drop)
        },
    },
    Case {
        name: "cm_ip_version",
        rule: "A11",
        sends: "REQ whose private data begin with an address header of IP version 5",
        allows: "REJ; the program sees no request",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let mut req = cm.req();
            req.private_data[1] = 0x50;
            refused(cm, req)
        },
    },
    Case {
        name: "cm_rtu_of_another",
        rule: "12.9.7.2 (REP sent)",
        sends: "RTU with unknown communication IDs, then the right one",
        allows: "the first is dropped; the second establishes the connection",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.ask(cm.req())?;
            let right = cm.rtu();
            for wrong in [(cm.nobody(), cm.remote_id), (cm.id(), cm.remote_id ^ 0x5a_5a00)] {
                let mut rtu = rxe_core::cm::mad::Rtu::default();
                (rtu.local_comm_id, rtu.remote_comm_id) = wrong;
                cm.send(&Message::Rtu(rtu))?;
            }
            cm.no_event(A_WHILE)?;
            cm.send(&right)?;
            cm.event(Event::ESTABLISHED).map(drop)
        },
    },
    Case {
        name: "cm_after_rejection",
        rule: "12.7 (communication ID)",
        sends: "REQ, and, when the program has rejected it, one with another ID and queue pair",
        allows: "REJ of the first; the program sees the second",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.request(cm.req())?;
            cm.reject()?;
            cm.rej(Subject::Req, RejReason::CONSUMER_DEFINED)?;
            cm.renew();
            let local_qpn = Qpn::from_wire(cm.b.target.own_qpn.value() ^ 1);
            cm.request(Req { local_qpn, ..cm.req() }).map(drop)
        },
    },
];

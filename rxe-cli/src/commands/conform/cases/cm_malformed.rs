//! The communication manager: bad datagrams to queue pair 1.
//! They must be dropped, or change nothing.

use std::time::Duration;

use rxe_core::cm::mad::{Drep, Dreq, LEN, Message, Mra, Rej, RejReason, Rep, Rtu, Subject};

use super::super::bench::deviates;
use super::super::case::Case;
use super::super::cm::{A_WHILE, ASKS, Cm, Letter, unallowed};
use super::super::verdict::Outcome;
use crate::common::peer::CM;

const DROPPED: &str =
    "the first is dropped: the program sees the second, and its REP is the first answer";

/// Sends a changed REQ, which must be dropped, then a good one with another ID.
fn dropped(cm: &mut Cm<'_, '_>, change: fn(Letter) -> Letter) -> Outcome {
    bad_req(cm, change)?;
    cm.renew();
    good_req(cm)
}

fn bad_req(cm: &mut Cm<'_, '_>, change: fn(Letter) -> Letter) -> Outcome {
    let mut bad = cm.req();
    bad.private_data[36..][..3].copy_from_slice(b"bad");
    let bad = change(cm.letter(&Message::Req(bad)));
    cm.post(bad)
}

/// Sends a good REQ, which must be the first that the program sees and that is answered.
fn good_req(cm: &mut Cm<'_, '_>) -> Outcome {
    let asked = cm.request(cm.req())?;
    if !asked.private_data.starts_with(ASKS) {
        return deviates("its program sees the request that should be dropped".to_owned());
    }
    cm.accept()?;
    cm.rep().map(drop)
}

/// Requires that nothing arrives, or a REJ for this reason.
fn nothing_or(cm: &mut Cm<'_, '_>, reason: RejReason) -> Outcome {
    match cm.rej_within(A_WHILE)? {
        Some(other) if other != reason => deviates(format!("the reason of the REJ is {other:?}")),
        _ => Ok(()),
    }
}

/// Connects, and requires that these messages change nothing.
/// A SEND must still arrive, and the program must see no event.
fn changes_nothing(cm: &mut Cm<'_, '_>, all: &[Message]) -> Outcome {
    cm.connect()?;
    for message in all {
        cm.send(message)?;
    }
    cm.quiet(A_WHILE)?;
    cm.no_event(Duration::ZERO)?;
    cm.carries(0)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "cm_wrong_qkey",
        rule: "9.6.1 (Q_Key), 10.2.5",
        sends: "REQ with another Q_Key than that of queue pair 1, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.qkey(0x1111_1111)),
    },
    Case {
        name: "cm_base_version",
        rule: "13.4.3",
        sends: "REQ with the base version 3, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.byte(0, 3, "base version 3")),
    },
    Case {
        name: "cm_class_version",
        rule: "12.6.7.2 (reason 31), 13.4.3",
        sends: "REQ with the class version 9, then a good one",
        allows: "the first is dropped or rejected (class version); the program sees the second, which gets \
                 a REP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            bad_req(cm, |req| req.byte(2, 9, "class version 9"))?;
            nothing_or(cm, RejReason::INVALID_CLASS_VERSION)?;
            cm.renew();
            good_req(cm)
        },
    },
    Case {
        name: "cm_method",
        rule: "12.6, 13.4.5",
        sends: "REQ with the method GetResp, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.byte(3, 0x81, "GetResp")),
    },
    Case {
        name: "cm_unknown_attribute",
        rule: "12.6, 13.4.5",
        sends: "REQ with the attribute ID 0x0030, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.byte(17, 0x30, "attribute 0x30")),
    },
    Case {
        name: "cm_short",
        rule: "13.4.2 (256 B)",
        sends: "the first 200 B of a REQ, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.len(200)),
    },
    Case {
        name: "cm_header_only",
        rule: "13.4.2 (256 B)",
        sends: "the first 12 B of a REQ, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.len(12)),
    },
    Case {
        name: "cm_messages_of_nobody",
        rule: "12.9.7",
        sends: "over a connection, RTU, MRA, REJ and DREP with unknown communication IDs, then a SEND",
        allows: "they are dropped; the connection stays",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let ids = (cm.nobody(), cm.nobody() ^ 0xff00);
            let (local_comm_id, remote_comm_id) = ids;
            changes_nothing(
                cm,
                &[
                    Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
                    Message::Mra(Mra { local_comm_id, remote_comm_id, ..Mra::default() }),
                    Message::Rej(Rej {
                        local_comm_id,
                        remote_comm_id,
                        message: Subject::Other as u8,
                        reason: RejReason::INVALID_COMM_ID.0,
                        ..Rej::default()
                    }),
                    Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
                ],
            )
        },
    },
    Case {
        name: "cm_rep_of_nobody",
        rule: "12.6.7.2 (reason 6), 12.9.7",
        sends: "REP to an unknown communication ID",
        allows: "nothing, or REJ: invalid communication ID",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let rep = Rep { local_comm_id: cm.id(), remote_comm_id: cm.nobody(), ..Rep::default() };
            cm.send(&Message::Rep(rep))?;
            nothing_or(cm, RejReason::INVALID_COMM_ID)?;
            cm.renew();
            cm.ask(cm.req()).map(drop)
        },
    },
    Case {
        name: "cm_dreq_of_nobody",
        rule: "12.9.7 (release)",
        sends: "DREQ for an unknown communication ID, then a good REQ",
        allows: "nothing, or DREP with both IDs; then a REP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            let nobody = cm.nobody();
            let dreq = Dreq { local_comm_id: cm.id(), remote_comm_id: nobody, ..Dreq::default() };
            cm.send(&Message::Dreq(dreq))?;
            for came in cm.listen_for(A_WHILE)? {
                match &came.message {
                    Message::Drep(drep) if drep.local_comm_id == nobody => {}
                    Message::Drep(drep) => {
                        let is = drep.local_comm_id;
                        return deviates(format!("the DREP names ID 0x{is:x}, not 0x{nobody:x}"));
                    }
                    other => return unallowed(other),
                }
            }
            cm.renew();
            cm.ask(cm.req()).map(drop)
        },
    },
    // This case is the last of all. After it, Linux 5.10 and 6.1 have no queue pair 1 until the
    // device is added again.
    Case {
        name: "cm_long",
        rule: "13.4.2 (256 B)",
        sends: "REQ and 4 B behind it, then a good one",
        allows: DROPPED,
        given: CM,
        run: |b| dropped(&mut Cm::listening(b)?, |req| req.len(LEN + 4)),
    },
];

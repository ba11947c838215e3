//! The communication manager: the end of connections.

use std::time::Duration;

use rxe_core::cm::mad::{Dreq, Message, Req};
use rxe_core::types::Qpn;

use super::super::case::Case;
use super::super::cm::{A_WHILE, Cm, SHORT};
use crate::common::peer::{CM, Event};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "cm_dreq",
        rule: "12.9.7 (release)",
        sends: "DREQ; the program agrees",
        allows: "DREP; the queue pair goes into ERR",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            cm.end()?;
            cm.b.in_error()
        },
    },
    Case {
        name: "cm_duplicate_dreq",
        rule: "12.9.7 (TimeWait)",
        sends: "DREQ, and again after the DREP",
        allows: "DREP again; the program sees one end",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            let drep = cm.end()?;
            cm.send(&Message::Dreq(cm.dreq()))?;
            cm.again(&drep)?;
            cm.no_event(Duration::ZERO)
        },
    },
    Case {
        name: "cm_dreq_twice_before_drep",
        rule: "12.9.7 (DREQ received)",
        sends: "DREQ twice, before the program agrees",
        allows: "the program sees one end; one DREP",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            cm.send(&Message::Dreq(cm.dreq()))?;
            cm.event(Event::DISCONNECTED)?;
            cm.send(&Message::Dreq(cm.dreq()))?;
            cm.no_event(A_WHILE)?;
            cm.disconnect()?;
            cm.drep().map(drop)
        },
    },
    Case {
        name: "cm_dreq_of_another_qp",
        rule: "12.6.10, 12.9.7 (release)",
        sends: "DREQ that names another queue pair of the peer, a SEND, then the right DREQ",
        allows: "the first is dropped and the connection stays; DREP to the second",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            let remote_qpn = Qpn::from_wire(cm.remote_qpn.value() ^ 0x55);
            cm.send(&Message::Dreq(Dreq { remote_qpn, ..cm.dreq() }))?;
            cm.no_event(A_WHILE)?;
            cm.quiet(Duration::ZERO)?;
            cm.carries(0)?;
            cm.end().map(drop)
        },
    },
    Case {
        name: "cm_program_disconnects",
        rule: "12.9.7 (release)",
        sends: "the program ends the connection; DREP in answer to its DREQ",
        allows: "DREQ that names both IDs and our queue pair; the program sees the end",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            cm.peer_ends()?;
            cm.send(&cm.drep_message())?;
            cm.event(Event::DISCONNECTED)?;
            cm.quiet(Duration::ZERO)
        },
    },
    Case {
        name: "cm_dreq_again",
        rule: "12.9.7 (DREQ sent, timeout)",
        sends: "the program ends a connection whose CM response timeout is 134 ms; the DREP only when the \
                DREQ has come twice",
        allows: "the same DREQ again; the program sees the end",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.ask(Req { local_cm_response_timeout: SHORT, ..cm.req() })?;
            cm.ready()?;
            let dreq = cm.peer_ends()?;
            cm.again(&dreq)?;
            cm.send(&cm.drep_message())?;
            cm.event(Event::DISCONNECTED).map(drop)
        },
    },
    Case {
        name: "cm_both_disconnect",
        rule: "12.9.7 (DREQ sent)",
        sends: "the program ends the connection, and our DREQ crosses its DREQ",
        allows: "the program sees the end; DREP to ours once it agrees",
        given: CM,
        run: |b| {
            let cm = &mut Cm::listening(b)?;
            cm.connect()?;
            cm.peer_ends()?;
            cm.send(&Message::Dreq(cm.dreq()))?;
            cm.event(Event::DISCONNECTED)?;
            // If the peer's manager has already answered, there is nothing left to confirm.
            let _ = cm.disconnect();
            cm.drep().map(drop)
        },
    },
];

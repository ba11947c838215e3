//! The requester's timer, as far as timeouts show it.

use rxe_core::cm::mad::{Path, Rep, Req};

use super::*;

const US: Duration = Duration::from_micros(1);

/// Requests, each sent again after these times and then acknowledged.
fn waits(waits: &[&[Duration]]) -> OneAddress {
    let mut all = OneAddress::default();
    for (psn, waits) in (0..).zip(waits) {
        all.ask(US * 10, Opcode::RC_SEND_ONLY, psn, &[7; 64]);
        for wait in *waits {
            all.ask(*wait, Opcode::RC_SEND_ONLY, psn, &[7; 64]);
        }
        all.answer(0x12, psn, psn + 1, Syndrome::ACK);
    }
    all
}

fn timer(all: OneAddress) -> Timer {
    all.checker.finish().directions[0].stats.timer
}

#[test]
fn the_timer_is_known_where_the_waits_agree() {
    let one = timer(waits(&[&[US * 4200]]));
    assert_eq!((one.count, one.time()), (1, Some(US * 4200)));
    // 4.2 ms are one to four times the time of the code, 4.096 us * 2^n.
    assert_eq!(one.codes(), Some((8, 10)));
    let many = timer(waits(&[&[US * 4200, US * 4300], &[], &[US * 4100]]));
    assert_eq!((many.count, many.time()), (3, Some(US * 4100)));
    // A card that doubles its timer.
    let adaptive = timer(waits(&[&[US * 1000, US * 2000, US * 4000]]));
    assert_eq!((adaptive.count, adaptive.time(), adaptive.codes()), (3, None, None));
    assert_eq!(timer(waits(&[&[]])), Timer::default());
}

/// Such packets were not sent again by a timer, whatever else the reason is.
#[test]
fn no_timer_expires_within_a_round_trip_or_eight_microseconds() {
    let soon = waits(&[&[], &[], &[US * 50]]);
    assert_eq!(soon.finish().0, []);
    let mut soon = OneAddress::default();
    for payload in [[7; 64], [8; 64]] {
        soon.ask(US * 8, Opcode::RC_SEND_ONLY, 0, &payload);
    }
    assert_eq!(soon.finish().0, []);
}

#[test]
fn other_reasons_to_send_again_show_no_timer() {
    // A gap: the responder may have sent a NAK behind the capture point.
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.send(0x11, 2);
    all.pause = Some(US * 5000);
    all.send(0x11, 2);
    assert_eq!(timer(all), Timer::default());
    // An answer that was lost behind the capture point.
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    all.pause = Some(US * 5000);
    all.send(0x11, 0);
    assert_eq!(timer(all), Timer::default());
}

#[test]
fn the_timer_of_the_req_stands_beside_it() {
    let primary = Path { local_ack_timeout: 14, ..Path::default() };
    let req = Req { local_comm_id: 1, local_qpn: Qpn::from_wire(0x12), primary, ..Req::default() };
    let rep = Rep { remote_comm_id: 1, local_qpn: Qpn::from_wire(0x11), ..Rep::default() };
    let mut all = OneAddress::default();
    all.checker.managed((LOOPBACK, LOOPBACK), &Message::Req(req));
    all.checker.managed((LOOPBACK, LOOPBACK), &Message::Rep(rep));
    all.ask(US, Opcode::RC_SEND_ONLY, 0, &[7; 64]);
    all.ask(US * 70_000, Opcode::RC_SEND_ONLY, 0, &[7; 64]);
    let timer = timer(all);
    assert_eq!((timer.of_req, timer.codes()), (Some(14), Some((12, 14))));
}

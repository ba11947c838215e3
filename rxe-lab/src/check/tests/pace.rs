//! Congestion notifications and ECN marks.

use super::*;

impl OneAddress {
    /// Adds a CNP to a queue pair.
    fn notify(&mut self, qp: u32) {
        let ext = Ext { cnp: Some([0; 16]), ..Ext::default() };
        self.packet(qp, Opcode::CNP, 0, ext, &[]);
    }

    /// Returns the statistics of the direction to this queue pair.
    pub(super) fn stats_of(self, qp: u32) -> Stats {
        let mut directions = self.checker.finish().directions.into_iter();
        directions.find(|direction| direction.dest_qp == qp).unwrap().stats
    }
}

#[test]
fn a_notification_counts_although_nobody_knew_yet_whom_it_is_for() {
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.notify(0x12);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    assert_eq!(all.stats_of(0x11).cnps, 1);
}

#[test]
fn a_responder_that_sends_no_requests_gets_its_notifications_too() {
    let mut all = OneAddress::default();
    all.read(0x11, 0, 8);
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    all.packet(0x12, Opcode::RC_READ_RESPONSE_ONLY, 0, Ext { aeth, ..Ext::default() }, &[7; 8]);
    all.notify(0x11);
    let stats = all.stats_of(0x11);
    assert_eq!((stats.cnps, stats.cnps_to_responder), (0, 1));
}

/// Sends 64 B every `step` us for `micros` us. Returns the next PSN.
fn stream(all: &mut OneAddress, psn: u32, micros: u64, step: u64) -> u32 {
    let times = (0..micros).step_by(usize::try_from(step).unwrap());
    times.fold(psn, |psn, _| {
        all.pause = Some(Duration::from_micros(step));
        all.send(0x11, psn);
        psn + 1
    })
}

#[test]
fn the_rate_after_a_notification_is_compared_with_that_before() {
    for (step, percent) in [(2, 100), (4, 50)] {
        let mut all = OneAddress::default();
        all.send(0x11, 0);
        all.answer(0x12, 0, 1, Syndrome::ACK);
        let psn = stream(&mut all, 1, 1000, 2);
        all.pause = Some(Duration::ZERO);
        all.notify(0x12);
        stream(&mut all, psn, 1000, step);
        let slowdown = all.stats_of(0x11).slowdown;
        assert_eq!(slowdown.count, 1);
        let got = slowdown.percent().unwrap();
        assert!(got.abs_diff(percent) <= 5, "{got} %, not {percent} %");
    }
    // A second notification within the window of the first, and one shortly before the capture ends.
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    let psn = stream(&mut all, 1, 300, 10);
    all.notify(0x12);
    all.pause = Some(Duration::ZERO);
    all.notify(0x12);
    let psn = stream(&mut all, psn, 300, 10);
    all.notify(0x12);
    stream(&mut all, psn, 50, 10);
    let stats = all.stats_of(0x11);
    assert_eq!((stats.cnps, stats.slowdown.count), (3, 1));
}

//! UC: its operations. A lost packet loses its whole message, without an error.

mod common;

use common::*;
use rxe_verbs::*;

fn pair_on(a: Device, b: Device) -> (Side, Side) {
    let (mut a, mut b) = (Side::new(a), Side::new(b));
    for side in [&mut a, &mut b] {
        side.qp = side.pd.qp(&side.cq).service(QpType::Uc).build().unwrap();
    }
    connect(&a.qp, &b.qp);
    (a, b)
}

#[test]
fn messages_and_writes_of_all_sizes_arrive() {
    let (a, b) = pair_on(open(address()), open(address()));
    for len in [0, 1, 1023, 1024, 1025, 4096, 4097, 100_000] {
        let (from, to) = (a.region(len.max(1)), b.region(len.max(1)));
        let data = pattern(len, 1);
        from.write_at(0, &data).unwrap();
        b.qp.recv(1, &[to.slice(..len)]).unwrap();
        a.qp.send(2, &[from.slice(..len)]).imm(5).post().unwrap();
        assert_eq!(a.ok().op, CompletionOp::Send);
        let done = b.ok();
        assert_eq!((done.byte_len as usize, done.imm), (len, Some(Immediate::Data(5))));
        assert_eq!(to.to_vec(..len).unwrap(), data);

        let data = pattern(len, 2);
        from.write_at(0, &data).unwrap();
        b.qp.recv(3, &[]).unwrap();
        a.qp.write(4, &[from.slice(..len)], to.remote(0)).imm(6).post().unwrap();
        assert_eq!(a.ok().op, CompletionOp::RdmaWrite);
        let done = b.ok();
        assert_eq!((done.op, done.byte_len as usize), (CompletionOp::RecvRdmaWithImm, len));
        assert_eq!(to.to_vec(..len).unwrap(), data);
    }
}

#[test]
fn read_is_refused() {
    let (a, b) = pair_on(open(address()), open(address()));
    let (into, from) = (a.region(8), b.region(8));
    let error = a.qp.read(1, &[into.slice(..)], from.remote(0)).post().unwrap_err();
    assert!(error.to_string().contains("use RC"), "{error}");
}

#[test]
fn lost_packets_lose_their_messages_wholly_and_silently() {
    const MESSAGES: usize = 100;
    let faults = "drop 10%".parse().unwrap();
    let lossy = Device::options("lo").address(address()).faults(7, faults).open().unwrap();
    let (a, b) = pair_on(lossy, open(address()));
    let len = 5 * a.device.active_mtu().bytes();
    let (from, to) = (a.region(len), b.region(len * MESSAGES));
    let text = |number: u32| pattern(len, number.to_le_bytes()[0]);
    for start in (0..MESSAGES).map(|place| place * len) {
        b.qp.recv(start as u64, &[to.slice(start..start + len)]).unwrap();
    }
    for number in 0..u32::try_from(MESSAGES).unwrap() {
        from.write_at(0, &text(number)).unwrap();
        a.qp.send(1, &[from.slice(..)]).imm(number).post().unwrap();
        a.ok();
        // Paced, because a receiver that falls behind would lose packets by itself.
        wait_until("all that was not lost arrives", || {
            let (_, [_, out]) = a.device.faults().unwrap().report().tallies().next().unwrap();
            b.device.net_counters().rx_packets >= out.seen - out.hit
        });
    }
    // Messages that arrived are complete, in order, and in the order of the receives.
    let arrived: Vec<_> = std::iter::from_fn(|| b.cq.poll_one().unwrap()).collect();
    let mut expected = (0..).step_by(len);
    let mut last = None;
    for done in &arrived {
        assert_eq!((done.status, Some(done.id)), (Status::Success, expected.next()));
        let Some(Immediate::Data(number)) = done.imm else { panic!("{done:?}") };
        assert!(last < Some(number));
        last = Some(number);
        let start = usize::try_from(done.id).unwrap();
        assert_eq!(to.to_vec(start..start + len).unwrap(), text(number), "message {number}");
    }
    assert!(!arrived.is_empty() && arrived.len() < MESSAGES, "{} arrived", arrived.len());
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
}

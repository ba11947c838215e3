//! Programs that poll memory for messages, and make no call while they wait.

mod common;

use std::hint::spin_loop;
use std::thread;
use std::time::Instant;

use common::*;
use rxe_verbs::*;

/// One end of the ping-pong, which WRITEs its memory's first byte into the other end's second byte.
struct End {
    side: Side,
    memory: MemoryRegion,
    to: Remote,
}

impl End {
    fn post(&self, round: u64) {
        self.memory.write_at(0, &[mark(round)]).unwrap();
        let bytes = [self.memory.slice(..1)];
        self.side.qp.write(round, &bytes, self.to).post().unwrap();
    }

    fn has_come(&self, round: u64) -> bool {
        self.memory.to_vec(1..2).unwrap() == [mark(round)]
    }

    /// Polls memory until the message of this round is there.
    fn look(&self, round: u64) {
        let end = Instant::now() + TIMEOUT;
        for looks in 0u32.. {
            if self.has_come(round) {
                return;
            }
            // Yields rarely, but often enough for the peer to run on a machine with fewer CPUs than
            // threads.
            if looks.is_multiple_of(1 << 16) {
                assert!(Instant::now() < end, "message {round} has not come");
                thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Takes the completion of the round's WRITE, so that the queue does not fill.
    fn complete(&self, round: u64) {
        let done = self.side.cq.spin_one(TIMEOUT).unwrap();
        assert_eq!((done.id, done.status), (round, Status::Success));
    }
}

/// Returns the byte of a round, which differs from that of the round before.
fn mark(round: u64) -> u8 {
    (round % 251) as u8 + 1
}

fn ends(a: Device, b: Device) -> (End, End) {
    let [a, b] = [a, b].map(|device| {
        let side = Side::new(device);
        let memory = side.region(2);
        (side, memory)
    });
    connect(&a.0.qp, &b.0.qp);
    let (at_a, at_b) = (a.1.remote(1), b.1.remote(1));
    (End { side: a.0, memory: a.1, to: at_b }, End { side: b.0, memory: b.1, to: at_a })
}

/// Plays the rounds of the ping-pong on both ends.
fn play(a: &End, b: &End, rounds: u64) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                b.look(round);
                b.post(round);
                b.complete(round);
            }
        });
        for round in 0..rounds {
            a.post(round);
            a.look(round);
            a.complete(round);
        }
    });
}

#[test]
fn each_message_of_a_ping_pong_in_memory_arrives() {
    let (a, b) = ends(open(address()), open(address()));
    play(&a, &b, 2_000);
}

#[test]
fn many_threads_ping_pong_through_one_device_on_each_end() {
    for pairs in [2, 4] {
        let (a, b) = (open(address()), open(address()));
        thread::scope(|scope| {
            for _ in 0..pairs {
                let (a, b) = ends(a.clone(), b.clone());
                scope.spawn(move || play(&a, &b, 300));
            }
        });
    }
}

//! The peer's program: its requests, its completions and its memory.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rxe_core::queue::Status;
use rxe_lab::answer::Said;

use super::super::judge::completions_differ;
use super::super::verdict::{Outcome, Stop};
use super::{Bench, deviates};
use crate::common::peer::{Done, RC};

/// The byte that the peer fills a new region with.
const FILL: u8 = 0x11;

/// The offset in the region of the data of the peer's requests.
const SOURCE: u64 = 0xc000;
/// The offset in the region of the results of the peer's READs and atomics.
pub(in super::super) const SINK: u64 = 0xa000;

/// The remote memory that the peer's requests name. This end answers them without memory.
pub(in super::super) const REMOTE_VA: u64 = 0x7000_0000_1000;
pub(in super::super) const REMOTE_RKEY: u32 = 0x1234_5678;
/// The shared receive queue that the peer's requests name over XRC.
pub(in super::super) const REMOTE_SRQN: u32 = 0x345;

/// The Q_Key of the peer's UD queue pair.
pub(in super::super) const QKEY: u32 = RC.qkey;

/// Returns the offset in the region of the 2 KiB for the receive with this ID.
pub(in super::super) fn recv_at(id: u64) -> u64 {
    0x8000 + id * 0x800
}

/// Returns the successful completion of request `id`.
pub(in super::super) fn done(id: u64) -> Done {
    Done { id, status: 0, len: None, invalidated: None }
}

/// Returns the completion of receive `id` by a message of `len` bytes.
pub(in super::super) fn got(id: u64, len: u32) -> Done {
    Done { len: Some(len), ..done(id) }
}

/// Returns the completion of request `id` with this status.
pub(in super::super) fn failed(id: u64, status: Status) -> Done {
    Done { status: status.code(), ..done(id) }
}

/// Returns the completion of the flushed request `id`.
pub(in super::super) fn flushed(id: u64) -> Done {
    failed(id, Status::WorkRequestFlushed)
}

impl Bench<'_> {
    /// Requires the peer's queue pair to be in this state.
    pub(in super::super) fn in_state(&mut self, wanted: &str) -> Outcome {
        let state = self.state()?;
        if state == wanted {
            return Ok(());
        }
        deviates(format!("the queue pair is in {state}, not in {wanted}"))
    }

    pub(super) fn state(&mut self) -> Outcome<String> {
        Ok(self.ask("state")?.into_iter().next().unwrap_or_default())
    }

    /// Lets the peer post a receive of `len` bytes.
    pub(in super::super) fn receive(&mut self, id: u64, len: u32) -> Outcome {
        self.receive_under(id, len, 0)
    }

    /// Like [`Bench::receive`], with an lkey that differs from the region's by `xor`.
    pub(in super::super) fn receive_under(&mut self, id: u64, len: u32, xor: u32) -> Outcome {
        self.log.push(format!("peer posts receive {id} of {len} B"));
        self.ask(&format!("recv {id} {} {len} {xor}", recv_at(id))).map(drop)
    }

    fn post(&mut self, op: &str, id: u64, offset: u64, len: u32, operands: [u64; 2]) -> Outcome {
        self.log.push(format!("peer posts {op} {id} of {len} B"));
        let [operand, compare] = operands;
        let request = format!(
            "post {op} {id} {offset} {len} {REMOTE_VA} {REMOTE_RKEY} {operand} {compare} {REMOTE_SRQN}"
        );
        self.ask(&request).map(drop)
    }

    /// Lets the peer post an ATOMIC WRITE of 8 bytes, all 0x11.
    pub(in super::super) fn post_atomic_write(&mut self, id: u64) -> Outcome {
        self.post("atomic_write", id, SOURCE, 8, [0; 2])
    }

    /// Lets the peer post a FLUSH of a range to global visibility.
    pub(in super::super) fn post_flush(&mut self, id: u64, len: u32) -> Outcome {
        const GLOBAL: u64 = 1;
        const RANGE: u64 = 0;
        self.post("flush", id, SOURCE, len, [GLOBAL, RANGE])
    }

    /// Lets the peer post a SEND that invalidates this rkey at the other end.
    pub(in super::super) fn post_send_invalidate(&mut self, id: u64, rkey: u32) -> Outcome {
        self.log.push(format!("peer posts SEND {id} of 8 B, invalidates 0x{rkey:x}"));
        self.ask(&format!("post send_inv {id} {SOURCE} 8 0 {rkey} 0 0")).map(drop)
    }

    /// Lets the peer post three SENDs of one packet, and requires their packets.
    pub(in super::super) fn three_sends(&mut self) -> Outcome {
        for id in 1..=3 {
            self.post_send(id, 8)?;
        }
        self.expect_all([0, 1, 2].map(Said::send_only)).map(drop)
    }

    /// Lets the peer post a SEND.
    pub(in super::super) fn post_send(&mut self, id: u64, len: u32) -> Outcome {
        self.post("send", id, SOURCE, len, [0; 2])
    }

    /// Lets the peer post a WRITE.
    pub(in super::super) fn post_write(&mut self, id: u64, len: u32) -> Outcome {
        self.post("write", id, SOURCE, len, [0; 2])
    }

    /// Lets the peer post a READ whose data go to [`SINK`].
    pub(in super::super) fn post_read(&mut self, id: u64, len: u32) -> Outcome {
        self.post("read", id, SINK, len, [0; 2])
    }

    /// Lets the peer post a FETCH ADD whose result goes to [`SINK`].
    pub(in super::super) fn post_add(&mut self, id: u64, add: u64) -> Outcome {
        self.post("add", id, SINK, 8, [add, 0])
    }

    /// Lets the peer post a COMPARE SWAP whose result goes to [`SINK`].
    pub(in super::super) fn post_swap(&mut self, id: u64, compare: u64, swap: u64) -> Outcome {
        self.post("swap", id, SINK, 8, [swap, compare])
    }

    /// Requires the peer to poll exactly these completions.
    pub(in super::super) fn completes<const N: usize>(&mut self, wanted: [Done; N]) -> Outcome {
        let wait = if N == 0 { Duration::ZERO } else { self.wait };
        self.completes_within(wait, &wanted)
    }

    /// Like [`Bench::completes`], with a time limit.
    pub(in super::super) fn completes_within(
        &mut self,
        time: Duration,
        wanted: &[Done],
    ) -> Outcome {
        self.find(time, wanted).map(drop)
    }

    /// Like [`Bench::completes_within`]. Returns the completions.
    pub(super) fn find(&mut self, time: Duration, wanted: &[Done]) -> Outcome<Vec<Done>> {
        let mut found = self.poll(wanted.len().max(1), time)?;
        if found.len() == wanted.len() {
            found.extend(self.poll(1, Duration::ZERO)?);
        }
        match completions_differ(wanted, &found) {
            None => Ok(found),
            Some(why) => deviates(why),
        }
    }

    /// Requires the peer to poll no completion within `time`.
    pub(in super::super) fn completes_nothing(&mut self, time: Duration) -> Outcome {
        self.completes_within(time, &[])
    }

    fn poll(&mut self, count: usize, wait: Duration) -> Outcome<Vec<Done>> {
        self.peer.begin_poll(count, wait)?;
        // Receive packets while the peer polls, so that each gets its true arrival time.
        let until = Instant::now() + wait;
        self.end.take_until(self.peer.as_fd(), until).map_err(Stop::Broken)?;
        let all = self.peer.end_poll(count, wait)?;
        self.log.extend(all.iter().map(|done| format!("peer completes {done}")));
        Ok(all)
    }

    /// Fills bytes of the peer's region.
    pub(in super::super) fn fill(&mut self, offset: u64, len: u64, byte: u8) -> Outcome {
        self.ask(&format!("fill {offset} {len} {byte}")).map(drop)
    }

    /// Requires the bytes at `offset` of the peer's region to be `wanted`.
    pub(in super::super) fn memory_is(&mut self, offset: u64, wanted: &[u8]) -> Outcome {
        let bytes = self.peer.read(offset, wanted.len())?;
        let differs = |(a, b): (&u8, &u8)| a != b;
        let Some(at) = bytes.iter().zip(wanted).position(differs) else { return Ok(()) };
        let (len, is, should) = (wanted.len(), bytes[at], wanted[at]);
        deviates(format!(
            "byte {at} of {len} at +0x{offset:x} of its memory is 0x{is:02x}, not 0x{should:02x}"
        ))
    }

    /// Requires the bytes at `offset` of the peer's region to become `wanted` in time.
    pub(in super::super) fn memory_becomes(&mut self, offset: u64, wanted: &[u8]) -> Outcome {
        let until = Instant::now() + self.wait;
        loop {
            match self.memory_is(offset, wanted) {
                Err(Stop::Deviates(_)) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                done => return done,
            }
        }
    }

    /// Requires the bytes at `offset` of the peer's region to be unwritten.
    pub(in super::super) fn untouched(&mut self, offset: u64, len: usize) -> Outcome {
        self.memory_is(offset, &vec![FILL; len])
    }
}

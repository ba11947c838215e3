//! A case of the catalogue: the initial state, a script, and the expected result.
//!
//! Expectations are exact: anything that is not listed must not happen. In a case without
//! expectations, the QP sends no answer, completes nothing, drops nothing, retries nothing, stays
//! in its state and does not change memory.

use std::time::Duration;

use rxe_core::mem::Access;
use rxe_core::qp::{QpState, QpType};
use rxe_core::queue::{CompletionOp, Remote, SendOp, Status};
use rxe_core::types::{Key, Mtu, RnrTimer};
use rxe_core::wire::{DropReason, NakCode, Opcode, Position};

use super::packet::{Pkt, pattern};
use super::world::{self, BASE};
use rxe_core::engine::RetryCause;

/// One case of the catalogue.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The number of the rule in the specification, or its section.
    pub(crate) rule: &'static str,
    pub(crate) given: Given,
    pub(crate) script: Vec<Step>,
    pub(crate) expect: Expect,
    /// How kernel `rdma_rxe` deviates, according to its source code.
    pub(crate) kernel: Option<&'static str>,
    /// Why this outcome was chosen, if the specification allows several.
    pub(crate) note: Option<&'static str>,
}

/// The queue pair under test.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) service: QpType,
    pub(crate) state: QpState,
    pub(crate) access: Access,
    pub(crate) mtu: Mtu,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: RnrTimer,
    /// The receives that are posted at the start, by ID and length.
    pub(crate) receives: Vec<(u64, u32)>,
    pub(crate) srq: Option<Srq>,
    pub(crate) v6: bool,
    pub(crate) qkey: u32,
    /// The multicast group that the QP is attached to.
    pub(crate) group: Option<&'static str>,
    pub(crate) cq_depth: u32,
}

/// A shared receive queue that the QP uses.
#[derive(Clone, Copy)]
pub(crate) struct Srq {
    pub(crate) limit: u32,
    /// Whether the queue belongs to another protection domain than the QP.
    pub(crate) other_pd: bool,
}

/// A step of a script.
pub(crate) enum Step {
    /// The packet arrives and the QP answers.
    Packet(Pkt),
    /// All packets arrive before the QP may answer.
    Burst(Vec<Pkt>),
    /// The same packet arrives this many times before the QP may answer.
    Flood(usize, Pkt),
    /// The program posts a send request and the QP sends what it may.
    Post { id: u64, op: SendOp, list: Vec<Piece>, what: &'static str },
    /// The program posts a receive.
    Receive { id: u64, len: u32 },
    /// The program posts a receive whose buffer it may not use.
    ReceiveInto { id: u64, len: u32, key: Key, what: &'static str },
    /// The program posts a receive of several pieces.
    Scatter { id: u64, list: Vec<Piece> },
    /// Time passes; timers fire.
    Wait(Duration),
    /// The program deregisters a region.
    Deregister(Key, &'static str),
    /// The program modifies the QP's state.
    Modify(QpState),
    /// The program destroys the QP.
    Destroy,
}

/// An element of a scatter/gather list.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) key: Key,
}

/// Returns the `len` bytes at `offset`, with a key that permits the program to use them.
pub(crate) fn piece(offset: u64, len: u32) -> Piece {
    Piece { offset, len, key: world::ALL }
}

impl Piece {
    /// Replaces the key.
    pub(crate) fn key(self, key: Key) -> Self {
        Self { key, ..self }
    }
}

/// A response that the QP sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Ack(i32),
    Nak(NakCode, i32),
    Rnr(i32),
    Read(Position, i32, usize),
    Atomic(i32, u64),
    /// A congestion notification.
    Cnp,
    Other(Opcode, i32),
}

/// A completion.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) status: Status,
    /// The length; not checked if `None`.
    pub(crate) len: Option<u32>,
    pub(crate) op: Option<CompletionOp>,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Async {
    Established,
    SrqLimit,
    LastWqe,
    CqOverflow,
}

/// The expected result.
#[derive(Clone, Default)]
pub(crate) struct Expect {
    pub(crate) answers: Vec<Answer>,
    pub(crate) completions: Vec<Done>,
    pub(crate) drops: Vec<(DropReason, u64)>,
    /// The final state; the initial one if `None`.
    pub(crate) state: Option<QpState>,
    pub(crate) wrote: Vec<(u64, Vec<u8>)>,
    /// Bytes of memory that are not checked.
    pub(crate) ignored: Vec<(u64, usize)>,
    pub(crate) retries: Vec<RetryCause>,
    pub(crate) events: Vec<Async>,
    /// The requests that the QP sends; not checked if `None`.
    pub(crate) requests: Option<Vec<(Opcode, i32)>>,
    /// The next expected PSN, relative to the first one.
    pub(crate) next: i32,
    /// Whether the probe is left out, a further request at the end that the QP must execute.
    pub(crate) no_probe: bool,
}

/// Creates a case with an RC QP in RTS.
pub(crate) fn case(name: &'static str, rule: &'static str) -> Case {
    Case {
        name,
        rule,
        given: rc(),
        script: Vec::new(),
        expect: Expect::default(),
        kernel: None,
        note: None,
    }
}

/// Returns an RC QP in RTS that permits all operations and has no receive.
pub(crate) fn rc() -> Given {
    Given {
        service: QpType::Rc,
        state: QpState::Rts,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        mtu: Mtu::M1024,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        retry_cnt: 7,
        rnr_retry: 7,
        rnr_timer: RnrTimer::from_wire(12),
        receives: Vec::new(),
        srq: None,
        v6: false,
        qkey: world::QKEY.value(),
        group: None,
        cq_depth: 1024,
    }
}

/// Returns the same as [`rc`], for UC.
pub(crate) fn uc() -> Given {
    Given { service: QpType::Uc, ..rc() }
}

/// Returns the same as [`rc`], for an XRC target whose domain has the shared receive queues 7 and 8.
pub(crate) fn xrc() -> Given {
    Given { service: QpType::XrcRecv, ..rc() }
}

/// Returns the same as [`rc`], for an XRC initiator whose requests name the shared receive queue 7.
pub(crate) fn initiator() -> Given {
    Given { service: QpType::XrcSend, ..rc() }
}

/// Returns the same as [`rc`], for UD.
pub(crate) fn ud() -> Given {
    Given { service: QpType::Ud, ..rc() }
}

impl Given {
    pub(crate) fn state(self, state: QpState) -> Self {
        Self { state, ..self }
    }

    pub(crate) fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    pub(crate) fn mtu(self, mtu: Mtu) -> Self {
        Self { mtu, ..self }
    }

    pub(crate) fn max_dest_rd_atomic(self, max_dest_rd_atomic: u8) -> Self {
        Self { max_dest_rd_atomic, ..self }
    }

    pub(crate) fn retry_cnt(self, retry_cnt: u8) -> Self {
        Self { retry_cnt, ..self }
    }

    pub(crate) fn rnr_retry(self, rnr_retry: u8) -> Self {
        Self { rnr_retry, ..self }
    }

    pub(crate) fn cq_depth(self, cq_depth: u32) -> Self {
        Self { cq_depth, ..self }
    }

    pub(crate) fn qkey(self, qkey: u32) -> Self {
        Self { qkey, ..self }
    }

    pub(crate) fn group(self, group: &'static str) -> Self {
        Self { group: Some(group), ..self }
    }

    pub(crate) fn v6(self) -> Self {
        Self { v6: true, ..self }
    }

    /// Posts a receive of `len` bytes at the start.
    pub(crate) fn receive(mut self, id: u64, len: u32) -> Self {
        self.receives.push((id, len));
        self
    }

    /// Lets the QP take receives from a shared receive queue.
    pub(crate) fn srq(self, limit: u32) -> Self {
        Self { srq: Some(Srq { limit, other_pd: false }), ..self }
    }

    /// Lets the QP take receives from a shared receive queue in another protection domain.
    pub(crate) fn srq_of_other_pd(self) -> Self {
        Self { srq: Some(Srq { limit: 0, other_pd: true }), ..self }
    }
}

/// Expects that the request completes successfully.
pub(crate) fn done(id: u64) -> Done {
    Done { id, status: Status::Success, len: None, op: None }
}

/// Expects that a receive completes with `len` bytes.
pub(crate) fn got(id: u64, len: u32) -> Done {
    Done { len: Some(len), op: Some(CompletionOp::Recv), ..done(id) }
}

/// Expects that a receive completes because of a WRITE with immediate data of `len` bytes.
pub(crate) fn got_write(id: u64, len: u32) -> Done {
    Done { len: Some(len), op: Some(CompletionOp::RecvRdmaWithImm), ..done(id) }
}

/// Expects that the request completes with this status.
pub(crate) fn failed(id: u64, status: Status) -> Done {
    Done { status, ..done(id) }
}

/// Expects that the request is flushed.
pub(crate) fn flushed(id: u64) -> Done {
    failed(id, Status::WorkRequestFlushed)
}

impl Case {
    /// Returns every packet that the script delivers to the QP.
    pub(crate) fn all_packets(&self) -> impl Iterator<Item = &Pkt> {
        self.script.iter().flat_map(|step| match step {
            Step::Packet(packet) | Step::Flood(_, packet) => std::slice::from_ref(packet),
            Step::Burst(packets) => packets,
            _ => &[],
        })
    }

    pub(crate) fn given(mut self, given: Given) -> Self {
        self.given = given;
        self
    }

    /// Delivers packets one after the other. The QP may answer after each.
    pub(crate) fn packets<const N: usize>(mut self, packets: [Pkt; N]) -> Self {
        self.script.extend(packets.into_iter().map(Step::Packet));
        self
    }

    /// Delivers packets before the QP may answer.
    pub(crate) fn burst(mut self, packets: impl IntoIterator<Item = Pkt>) -> Self {
        self.script.push(Step::Burst(packets.into_iter().collect()));
        self
    }

    pub(crate) fn flood(mut self, times: usize, packet: Pkt) -> Self {
        self.script.push(Step::Flood(times, packet));
        self
    }

    pub(crate) fn receive(mut self, id: u64, len: u32) -> Self {
        self.script.push(Step::Receive { id, len });
        self
    }

    pub(crate) fn receive_into(mut self, id: u64, len: u32, key: Key, what: &'static str) -> Self {
        self.script.push(Step::ReceiveInto { id, len, key, what });
        self
    }

    pub(crate) fn deregister(mut self, key: Key, what: &'static str) -> Self {
        self.script.push(Step::Deregister(key, what));
        self
    }

    pub(crate) fn modify(mut self, state: QpState) -> Self {
        self.script.push(Step::Modify(state));
        self
    }

    pub(crate) fn destroy(mut self) -> Self {
        self.script.push(Step::Destroy);
        self.expect.no_probe = true;
        self
    }

    pub(crate) fn wait(mut self, time: Duration) -> Self {
        self.script.push(Step::Wait(time));
        self
    }

    fn post(self, id: u64, op: SendOp, len: u32, what: &'static str) -> Self {
        let offset = if op.fetches() { world::LOCAL } else { world::SOURCE };
        self.post_list(id, op, vec![piece(offset, len)], what)
    }

    fn post_list(mut self, id: u64, op: SendOp, list: Vec<Piece>, what: &'static str) -> Self {
        self.script.push(Step::Post { id, op, list, what });
        self
    }

    /// Lets the program post a receive of several pieces.
    pub(crate) fn scatter<const N: usize>(mut self, id: u64, list: [Piece; N]) -> Self {
        self.script.push(Step::Scatter { id, list: list.into() });
        self
    }

    /// Lets the program post a READ into several pieces.
    pub(crate) fn post_read_into<const N: usize>(self, id: u64, list: [Piece; N]) -> Self {
        self.post_list(id, SendOp::Read { remote: REMOTE }, list.into(), "READ")
    }

    /// Lets the program post a SEND.
    pub(crate) fn post_send(self, id: u64, len: u32) -> Self {
        self.post(id, SendOp::Send { imm: None }, len, "SEND")
    }

    /// Lets the program post a WRITE.
    pub(crate) fn post_write(self, id: u64, len: u32) -> Self {
        self.post(id, SendOp::Write { remote: REMOTE, imm: None }, len, "WRITE")
    }

    /// Lets the program post a READ.
    pub(crate) fn post_read(self, id: u64, len: u32) -> Self {
        self.post(id, SendOp::Read { remote: REMOTE }, len, "READ")
    }

    /// Lets the program post an ATOMIC WRITE.
    pub(crate) fn post_atomic_write(self, id: u64) -> Self {
        self.post(id, SendOp::AtomicWrite { remote: REMOTE }, 8, "ATOMIC WRITE")
    }

    /// Lets the program post a FETCH AND ADD.
    pub(crate) fn post_fetch_add(self, id: u64) -> Self {
        self.post(id, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8, "FETCH ADD")
    }

    pub(crate) fn answers<const N: usize>(mut self, answers: [Answer; N]) -> Self {
        self.expect.answers.extend(answers);
        self
    }

    pub(crate) fn acks(self, psn: i32) -> Self {
        self.answers([Answer::Ack(psn)])
    }

    pub(crate) fn naks(self, code: NakCode, psn: i32) -> Self {
        self.answers([Answer::Nak(code, psn)])
    }

    /// Expects that the QP sends a NAK and goes into the error state.
    pub(crate) fn dies(self, code: NakCode, psn: i32) -> Self {
        self.naks(code, psn).state(QpState::Err)
    }

    pub(crate) fn completes<const N: usize>(mut self, done: [Done; N]) -> Self {
        self.expect.completions.extend(done);
        self
    }

    pub(crate) fn drops(self, reason: DropReason) -> Self {
        self.drops_n(reason, 1)
    }

    pub(crate) fn drops_n(mut self, reason: DropReason, times: u64) -> Self {
        self.expect.drops.push((reason, times));
        self
    }

    pub(crate) fn state(mut self, state: QpState) -> Self {
        self.expect.state = Some(state);
        self
    }

    /// Expects that memory at `offset` holds `len` bytes of the peer's pattern.
    pub(crate) fn wrote(mut self, offset: u64, len: usize) -> Self {
        self.expect.wrote.push((offset, pattern(len)));
        self
    }

    /// Expects that memory at `offset` holds bytes `from..to` of the peer's pattern.
    pub(crate) fn wrote_part(mut self, offset: u64, from: usize, to: usize) -> Self {
        self.expect.wrote.push((offset, pattern(to).split_off(from)));
        self
    }

    /// Expects that memory at `offset` holds this 8-byte word, in host byte order.
    pub(crate) fn word(mut self, offset: u64, value: u64) -> Self {
        self.expect.wrote.push((offset, value.to_ne_bytes().to_vec()));
        self
    }

    /// Expects that receive `id` holds a GRH and then `len` bytes.
    pub(crate) fn datagram_in(mut self, id: u64, len: usize) -> Self {
        self.expect.ignored.push((world::recv_at(id), 40));
        self.wrote(world::recv_at(id) + 40, len)
    }

    /// Excludes bytes of memory from the check.
    pub(crate) fn ignored(mut self, offset: u64, len: usize) -> Self {
        self.expect.ignored.push((offset, len));
        self
    }

    pub(crate) fn retries<const N: usize>(mut self, causes: [RetryCause; N]) -> Self {
        self.expect.retries.extend(causes);
        self
    }

    pub(crate) fn events<const N: usize>(mut self, events: [Async; N]) -> Self {
        self.expect.events.extend(events);
        self
    }

    /// Expects exactly these requests from the QP. PSNs are relative to its first one.
    pub(crate) fn requests<const N: usize>(mut self, requests: [(Opcode, i32); N]) -> Self {
        self.expect.requests = Some(requests.into());
        self
    }

    /// Expects this next PSN of the responder, relative to the first one.
    pub(crate) fn next(mut self, next: i32) -> Self {
        self.expect.next = next;
        self
    }

    pub(crate) fn kernel(mut self, kernel: &'static str) -> Self {
        self.kernel = Some(kernel);
        self
    }

    pub(crate) fn note(mut self, note: &'static str) -> Self {
        self.note = Some(note);
        self
    }
}

/// The remote memory that the program's requests name.
const REMOTE: Remote = Remote { addr: BASE, rkey: world::ALL };

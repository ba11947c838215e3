//! The leading process. For each step, it lets the peer prepare, executes the operation, and lets
//! the peer verify the result.

use std::net::IpAddr;
use std::path::Path;
use std::process;
use std::time::{Duration, Instant};

use rxe_core::queue::{CompletionOp, Remote, Sge, Status};
use rxe_core::types::Key;
use rxe_verbs::Endpoint;

use super::PathOptions;
use super::end::{End, TIMEOUT};
use super::messages::{Answer, Ask, Peer, unexpected};
use super::mistake;
use super::place::Place;
use super::report::{Done, L2, Process, Shown};
use super::steps::{Op, START, Step, background};
use crate::common::Error;

/// Runs the demo. Returns the results, and the reason if the capture is incomplete.
pub(super) fn run(
    places: [Place; 2],
    mtu: usize,
    path: PathOptions,
    pcap: Option<&Path>,
) -> Result<(Shown, Option<String>), Error> {
    let start = Instant::now();
    let [here, there] = &places;
    let end = End::open(here, mtu, path, pcap)?;
    let mut peer = Peer::start()?;
    let opened = peer.ask(&Ask::Open { place: there.clone(), mtu, path })?;
    let Answer::Opened { pid, endpoint, addr, rkey } = opened else {
        return Err(unexpected(&opened));
    };
    let theirs: Endpoint = endpoint.parse()?;
    let ours = end.qp.endpoint();
    end.connect(&theirs)?;
    peer.order(&Ask::Connect { endpoint: ours.to_string() })?;

    let region = Remote { addr, rkey: Key::new(rkey) };
    let mut lead = Lead { end, peer, region, theirs: theirs.gid.to_ip() };
    let steps = Step::all(lead.end.mtu().bytes());
    let done = steps.into_iter().map(|step| lead.step(step)).collect::<Result<Vec<_>, _>>()?;

    lead.peer.order(&Ask::PrepareMistake)?;
    let here = mistake::make(&lead.end, region)?;
    let there = match lead.peer.ask(&Ask::Aftermath)? {
        Answer::Aftermath(seen) => seen,
        other => return Err(unexpected(&other)),
    };
    let Lead { end, peer, .. } = lead;
    let counters = end.device.net_counters();
    let backend = end.device.backend_name();
    let shown = Shown {
        this: Process::of(&ours, &places[0], process::id()),
        peer: Process::of(&theirs, &places[1], pid),
        backend: backend.into(),
        shared_memory: !path.no_shm && backend != L2,
        mtu: end.mtu().bytes(),
        operations: done,
        mistake: (here, there).into(),
        packets: counters.tx_packets + counters.rx_packets,
        pcap: None,
        seconds: 0.0,
    };
    // Dropping the peer ends the second process, which completes the capture.
    drop(peer);
    let missing = end.device.capture().and_then(|capture| capture.finish().stopped);
    drop(end);
    Ok((Shown { seconds: start.elapsed().as_secs_f64(), ..shown }, missing))
}

const UNREACHABLE: &str = "packets to UDP port 4791 must reach it: see whether `ping` does, and whether a \
                           firewall is in the way (`rxe doctor`)";

struct Lead {
    end: End,
    peer: Peer,
    /// The address and rkey of the peer's region.
    region: Remote,
    /// The peer's IP address.
    theirs: IpAddr,
}

impl Lead {
    fn step(&mut self, step: Step) -> Result<Done, Error> {
        let op = step.op;
        self.peer.order(&Ask::Prepare(step))?;
        self.end.set(&if op.fetches() { background() } else { step.filled() })?;
        let before = self.end.device.counters();
        let (time, mut wrong) = self.carry_out(step)?;
        let after = self.end.device.counters();
        if wrong.is_none() && op.fetches() {
            let want =
                if op.is_atomic() { Step::with_word(op.word().before) } else { step.filled() };
            wrong = self.end.difference(&want)?;
        }
        match self.peer.ask(&Ask::Verify(step))? {
            Answer::Verified { wrong: theirs } => wrong = wrong.or(theirs),
            other => return Err(unexpected(&other)),
        }
        Ok(Done {
            operation: op.name(),
            size: step.size,
            packets_sent: after.sent_pkts - before.sent_pkts,
            packets_received: after.rcvd_pkts - before.rcvd_pkts,
            seconds: time.as_secs_f64(),
            verified: wrong.is_none(),
            verified_by: match op {
                _ if op.is_atomic() => "both ends",
                _ if op.fetches() => "this process",
                _ => "the peer",
            },
            wrong,
        })
    }

    /// Posts the request and waits for its completion. Returns the time this took, and the error in
    /// the completion, if any.
    fn carry_out(&self, step: Step) -> Result<(Duration, Option<String>), Error> {
        let Self { end, region, .. } = self;
        let id = u64::from(step.seed);
        let local = [end.mr.slice(START..START + step.size)];
        let list: &[Sge] = if step.size > 0 { &local } else { &[] };
        let to = Remote { addr: region.addr + START as u64, rkey: region.rkey };
        let word = step.op.word();
        let (request, op, fetched) = match step.op {
            Op::Send | Op::SendImm => (end.qp.send(id, list), CompletionOp::Send, None),
            Op::Write | Op::WriteImm => (end.qp.write(id, list, to), CompletionOp::RdmaWrite, None),
            Op::Read => (end.qp.read(id, list, to), CompletionOp::RdmaRead, Some(step.size)),
            Op::CompareSwap | Op::CompareOnly => (
                end.qp.compare_swap(id, local[0], to, word.operand, word.swap),
                CompletionOp::CompareSwap,
                Some(8),
            ),
            Op::FetchAdd => {
                (end.qp.fetch_add(id, local[0], to, word.operand), CompletionOp::FetchAdd, Some(8))
            }
        };
        let request = match step.imm() {
            Some(imm) => request.imm(imm),
            None => request,
        };
        let start = Instant::now();
        request.post()?;
        let done = end.cq.spin_one(TIMEOUT)?;
        let time = start.elapsed();
        if done.status == Status::RetryExceeded {
            let what = format!("the other process, at {}, does not answer", self.theirs);
            return Err(Error::new(what, UNREACHABLE));
        }
        let wrong = if done.status != Status::Success {
            Some(format!("it ended with {}", done.status))
        } else if (done.id, done.op) != (id, op) {
            Some(format!("the completion belongs to {:?} {}", done.op, done.id))
        } else if fetched.is_some_and(|n| n != done.byte_len as usize) {
            Some(format!("the completion speaks of {} bytes", done.byte_len))
        } else {
            None
        };
        Ok((time, wrong))
    }
}

//! Sends the planned packets, and compares the answers.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::{Duration, Instant};

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::Opcode;
use rxe_lab::answer::{FirstPsns, Said, Seen};
use rxe_lab::replay::{Comparison, Difference, Outgoing, Plan, Receive, Step, Target};

use super::report::Report;
use crate::common::peer::{Endpoint, MAX_READ, Peer, PeerQp};
use crate::common::{Error, print};

/// The time limit of a run.
const LONGEST: Duration = Duration::from_secs(600);

/// The most receives that the peer may have outstanding.
const RECEIVES: usize = 32;

/// The time to listen at the end for packets that should not arrive.
const SILENCE: Duration = Duration::from_millis(50);

/// The number of differences after which the run ends.
const MAX_DIFFERENCES: usize = 10;

/// The number of successive missing answers after which the run ends.
const MAX_MISSING: u32 = 2;

/// A run with a peer.
pub(super) struct Play<'a> {
    peer: &'a mut Peer,
    end: &'a mut Endpoint,
    plan: &'a Plan,
    comparison: Comparison,
    target: Target,
    wait: Duration,
    /// The receives that are due and not posted yet.
    receives: VecDeque<Receive>,
    posted: u64,
    completed: u64,
    /// The receives that completed with success.
    received: u64,
    /// The number of successive answers that did not arrive.
    missing: u32,
    is_verbose: bool,
}

impl<'a> Play<'a> {
    pub(super) fn new(
        peer: &'a mut Peer,
        end: &'a mut Endpoint,
        plan: &'a Plan,
        qp: &PeerQp,
        own_qpn: Qpn,
        first_psn: u32,
        wait: Duration,
    ) -> Self {
        let first_psn = Psn::new(first_psn);
        let target = Target { qpn: qp.qpn, own_qpn, first_psn, addr: qp.addr, rkey: qp.rkey };
        Self {
            peer,
            end,
            plan,
            comparison: Comparison::new(plan),
            target,
            wait,
            receives: VecDeque::new(),
            posted: 0,
            completed: 0,
            received: 0,
            missing: 0,
            is_verbose: false,
        }
    }

    /// Plays all steps, or stops early after too many differences.
    pub(super) fn run(
        mut self,
        recorded_pace: bool,
        is_verbose: bool,
        report: &mut Report,
    ) -> Result<(), Error> {
        self.is_verbose = is_verbose;
        let plan = self.plan;
        for (offset, bytes) in &plan.before {
            self.peer.write(*offset, bytes)?;
        }
        let started = Instant::now();
        let mut first = None;
        for step in &plan.steps {
            match step {
                Step::Receive(receive) => {
                    self.receives.push_back(*receive);
                    self.post_receives()?;
                }
                Step::Send(packet) => {
                    let first = *first.get_or_insert(packet.at);
                    let due = if recorded_pace {
                        packet.at.saturating_sub(first)
                    } else {
                        Duration::ZERO
                    };
                    self.listen(started + due.min(LONGEST))?;
                    self.send(packet)?;
                    report.sent += 1;
                }
                Step::Answer(expected) => {
                    self.comparison.expect(expected);
                    self.wait_for_answer()?;
                }
            }
            if let Some(why) = self.stop(report, started) {
                report.stopped = Some(why);
                break;
            }
        }
        if report.stopped.is_none() {
            self.wait_for_answer()?;
            self.listen(Instant::now() + SILENCE)?;
            self.comparison.finish();
        }
        let _ = self.stop(report, started);
        report.same = self.comparison.same;
        report.unrecorded = self.comparison.unrecorded;
        self.receives_and_memory(report)
    }

    /// Moves new differences into the report. Returns the reason if the run must stop.
    fn stop(&mut self, report: &mut Report, started: Instant) -> Option<String> {
        let mut is_fatal = false;
        while let Some(difference) = self.comparison.difference() {
            is_fatal |= difference.is_fatal;
            if report.differences.len() < MAX_DIFFERENCES {
                report.differences.push(difference);
            }
        }
        if is_fatal {
            Some("the peer's queue pair is in the error state, and the recorded one was not".into())
        } else if self.missing >= MAX_MISSING {
            Some(format!("{} answers in a row are missing", self.missing))
        } else if report.differences.len() == MAX_DIFFERENCES {
            Some(format!("there are {MAX_DIFFERENCES} differences"))
        } else if started.elapsed() >= LONGEST {
            Some(format!("it takes longer than {} s", LONGEST.as_secs()))
        } else {
            None
        }
    }

    fn send(&mut self, packet: &Outgoing) -> Result<(), Error> {
        if self.is_verbose {
            print(&format!("sent  {}, frame {}\n", packet.words, packet.frame))?;
        }
        let bytes = packet.render(self.end.net(), &self.target);
        self.end.send(&bytes)?;
        self.comparison.sent(packet);
        Ok(())
    }

    fn wait_for_answer(&mut self) -> Result<(), Error> {
        while self.comparison.is_waiting() {
            if self.take(Instant::now() + self.wait)? {
                continue;
            }
            self.comparison.give_up();
            self.missing += 1;
            if self.missing >= MAX_MISSING {
                return Ok(());
            }
        }
        Ok(())
    }

    fn listen(&mut self, until: Instant) -> Result<(), Error> {
        while self.take(until)? {}
        Ok(())
    }

    /// Handles the next packet, if one arrives before `until`. Congestion notification packets are
    /// not compared, because a switch causes them.
    fn take(&mut self, until: Instant) -> Result<bool, Error> {
        let Some(arrived) = self.end.receive(self.target.own_qpn, until)? else { return Ok(false) };
        self.missing = 0;
        let psns = FirstPsns { requests: Psn::ZERO, answers: self.target.first_psn };
        match Seen::read(&arrived.net, &arrived.bytes, &psns) {
            Ok(seen) => {
                if self.is_verbose {
                    print(&format!("came  {}\n", seen.said))?;
                }
                if !matches!(seen.said, Said::Other(Opcode::CNP, _)) {
                    self.comparison.came(seen);
                }
            }
            Err(why) => self.comparison.malformed(why),
        }
        Ok(true)
    }

    /// Posts due receives, as many as the peer may have outstanding.
    fn post_receives(&mut self) -> Result<(), Error> {
        while let Some(receive) = self.receives.front().copied() {
            if self.posted - self.completed >= RECEIVES as u64 {
                self.poll(1, Duration::ZERO)?;
            }
            if self.posted - self.completed >= RECEIVES as u64 {
                return Ok(());
            }
            self.receives.pop_front();
            let (id, offset) = (self.posted, self.plan.receives_at);
            let wrong = u8::from(!receive.is_usable);
            self.peer.ask(&format!("recv {id} {offset} {} {wrong}", receive.len))?;
            self.posted += 1;
        }
        Ok(())
    }

    fn poll(&mut self, count: usize, wait: Duration) -> Result<usize, Error> {
        let done = self.peer.poll(count, wait)?;
        self.completed += done.len() as u64;
        self.received += done.iter().filter(|done| done.status == 0).count() as u64;
        Ok(done.len())
    }

    /// Compares the messages that the peer's program received, and the peer's memory.
    fn receives_and_memory(&mut self, report: &mut Report) -> Result<(), Error> {
        if report.stopped.is_some() {
            return Ok(());
        }
        let until = Instant::now() + self.wait;
        let wanted = self.plan.received;
        while self.received < wanted && self.completed < self.posted {
            let left = until.saturating_duration_since(Instant::now());
            if self.poll(1, left)? == 0 {
                break;
            }
        }
        report.received = self.received;
        if self.received < wanted {
            let what = "messages that its program receives".into();
            report.differences.push(of_program(what, &wanted, &self.received));
        }
        for (offset, bytes) in &self.plan.after {
            for (chunk, offset) in bytes.chunks(MAX_READ).zip((*offset..).step_by(MAX_READ)) {
                let found = self.peer.read(offset, chunk.len())?;
                let differs = |(a, b): (&u8, &u8)| a != b;
                let Some(at) = chunk.iter().zip(&found).position(differs) else { continue };
                let what = format!("byte +0x{:x} of its memory", offset + at as u64);
                let [should, is] = [chunk[at], found[at]].map(|byte| format!("0x{byte:02x}"));
                report.differences.push(of_program(what, &should, &is));
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns a difference in the messages or the memory of the peer's program.
fn of_program(what: String, should: &dyn Display, is: &dyn Display) -> Difference {
    Difference {
        request: Some((0, what)),
        recorded: Some((0, should.to_string())),
        came: Some(is.to_string()),
        is_fatal: false,
    }
}

//! The test bench of one case: the peer's queue pair, the local end, and their state.

mod program;
mod shared;
mod windows;

use std::time::{Duration, Instant};

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{self, NakCode, Opcode, Position};
use rxe_lab::answer::{Said, Seen, difference};

pub(super) use self::program::{
    QKEY, REMOTE_RKEY, REMOTE_SRQN, REMOTE_VA, SINK, done, failed, flushed, got, recv_at,
};
pub(super) use self::windows::{WINDOW_AT, WINDOW_LEN};
use super::packet::{Pkt, Target, datagram, write};
use super::verdict::{Outcome, Stop};
use crate::common::peer::{Endpoint, Given, Peer, RC, Service};

/// The path MTU of all cases in bytes; every link carries it.
pub(super) const MTU: usize = RC.path_mtu;

/// The length of the peer's region in bytes.
pub(super) const REGION: u64 = 65536;

/// The offset in the region that [`Bench::alive_with`] writes to.
const ALIVE: u64 = 0x7f00;

/// The time limit of a case.
const LONGEST: Duration = Duration::from_secs(30);

/// The state of a case that is being played.
pub(super) struct Bench<'a> {
    pub(super) peer: &'a mut Peer,
    pub(super) end: Endpoint,
    pub(super) target: Target,
    pub(super) wait: Duration,
    given: Given,
    deadline: Instant,
    /// The newest PSN that the peer acknowledged, counted from the first request; -1 if none.
    acknowledged: i32,
    /// The events of the case, one per line.
    pub(super) log: Vec<String>,
}

pub(super) fn deviates<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Deviates(why.into()))
}

impl<'a> Bench<'a> {
    /// Lets the peer create a queue pair, and connects it with `end`.
    /// The communication manager connects those of its cases later.
    pub(super) fn new(
        peer: &'a mut Peer,
        end: Endpoint,
        given: &Given,
        low_qpn: u16,
        wait: Duration,
    ) -> Outcome<Self> {
        let qp = peer.open(given)?;
        if qp.len < REGION {
            return Err(Stop::NotTestable(format!("its region has {} B, not {REGION}", qp.len)));
        }
        let own_qpn = end.qpn(low_qpn);
        let target = Target {
            qpn: qp.qpn,
            own_qpn,
            rq_psn: Psn::new(given.rq_psn),
            sq_psn: Psn::new(given.sq_psn),
            addr: qp.addr,
            rkey: qp.rkey,
            xrc_srq: (given.service.of_packets() == wire::Service::Xrc).then_some(qp.srqn),
        };
        if given.service != Service::Cm {
            peer.join(given, end.net().src, own_qpn)?;
        }
        Ok(Self {
            peer,
            target,
            wait,
            given: *given,
            deadline: Instant::now() + LONGEST,
            acknowledged: -1,
            log: Vec::new(),
            end,
        })
    }

    fn ask(&mut self, request: &str) -> Outcome<Vec<String>> {
        Ok(self.peer.ask(request)?)
    }

    /// Ends the case as not testable if the peer's device has no atomics.
    pub(super) fn needs_atomics(&self) -> Outcome {
        if self.peer.atomics {
            return Ok(());
        }
        Err(Stop::NotTestable("the device has no atomics".into()))
    }

    /// Sends a packet to the peer.
    pub(super) fn send(&mut self, pkt: Pkt) -> Outcome {
        let pkt = pkt.for_target(&self.target);
        let words = pkt.to_string();
        self.transmit(&pkt, self.target, &words)
    }

    /// Sends a datagram from queue pair 1 to queue pair 1. `words` describe it in the log.
    pub(super) fn send_mad(&mut self, payload: Vec<u8>, qkey: u32, words: &str) -> Outcome {
        let target = Target { qpn: Qpn::GSI, own_qpn: Qpn::GSI, ..self.target };
        self.transmit(&datagram(0, qkey).with(payload), target, words)
    }

    fn transmit(&mut self, pkt: &Pkt, target: Target, words: &str) -> Outcome {
        if Instant::now() > self.deadline {
            let why = format!("it takes longer than {} s", LONGEST.as_secs());
            return Err(Stop::NotTestable(why));
        }
        self.log.push(format!("sent: {words}"));
        let bytes = pkt.render(self.end.net(), &target);
        self.end.send(&bytes).map_err(Stop::Broken)
    }

    /// Sends packets in this order.
    pub(super) fn send_all<const N: usize>(&mut self, all: [Pkt; N]) -> Outcome {
        all.into_iter().try_for_each(|pkt| self.send(pkt))
    }

    /// Returns the peer's next packet, if one arrives before `until`. Congestion notification
    /// packets are skipped, because a switch causes them and no case does.
    fn next(&mut self, until: Instant) -> Outcome<Option<(Instant, Seen)>> {
        loop {
            let next = self.next_to(self.target.own_qpn, until)?;
            let Some((_, seen)) = &next else { return Ok(None) };
            if matches!(seen.said, Said::Other(Opcode::CNP, _)) {
                continue;
            }
            self.log.push(format!("came: {}", seen.said));
            let service = seen.opcode.info().map(|info| info.service);
            if service != Some(self.given.service.of_packets()) {
                return deviates(format!("{} came, which belongs to another service", seen.opcode));
            }
            return Ok(next);
        }
    }

    /// Returns the peer's next packet to this queue pair.
    pub(super) fn next_to(&mut self, qpn: Qpn, until: Instant) -> Outcome<Option<(Instant, Seen)>> {
        let until = until.min(self.deadline);
        let arrived = self.end.receive(qpn, until).map_err(Stop::Broken)?;
        let Some(arrived) = arrived else { return Ok(None) };
        match Seen::read(&arrived.net, &arrived.bytes, &self.target.psns()) {
            Ok(seen) => Ok(Some((arrived.at, seen))),
            Err(why) => deviates(why),
        }
    }

    pub(super) fn waited(&self) -> String {
        format!("{} s", self.wait.as_secs_f64())
    }

    /// Returns the next packet, skipping acknowledgements of PSNs before `wanted`.
    /// A responder may acknowledge each packet once, even without AckReq.
    fn next_for(&mut self, wanted: &Said, until: Instant) -> Outcome<Option<(Instant, Seen)>> {
        loop {
            let next = self.next(until)?;
            let acknowledges = match next.as_ref().map(|(_, seen)| &seen.said) {
                Some(Said::Ack(psn)) => Some(*psn),
                _ => None,
            };
            let Some(psn) = acknowledges.filter(|psn| *psn > self.acknowledged) else {
                return Ok(next);
            };
            self.acknowledged = psn;
            if wanted.answered().is_none_or(|answered| psn >= answered) {
                return Ok(next);
            }
        }
    }

    /// Requires the next packet to be `wanted`. Returns its arrival time and the packet.
    pub(super) fn expect_at(&mut self, wanted: &Said) -> Outcome<(Instant, Seen)> {
        let next = self.next_for(wanted, Instant::now() + self.wait)?;
        let said = next.as_ref().map(|(_, seen)| &seen.said);
        if let Some(why) = difference(wanted, said, &self.waited()) {
            return deviates(why);
        }
        next.ok_or_else(|| Stop::Deviates("nothing came".into()))
    }

    /// Requires the next packet to be `wanted`, and returns the packet.
    pub(super) fn expect(&mut self, wanted: Said) -> Outcome<Seen> {
        self.expect_at(&wanted).map(|(_, seen)| seen)
    }

    /// Requires the next packet to be one of `wanted`, and returns which.
    pub(super) fn expect_any(&mut self, wanted: &[Said]) -> Outcome<Said> {
        let next = self.next(Instant::now() + self.wait)?.map(|(_, seen)| seen.said);
        let Some(first) = wanted.first() else { return deviates("nothing is allowed") };
        match next {
            Some(said) if wanted.contains(&said) => Ok(said),
            said => deviates(difference(first, said.as_ref(), &self.waited()).unwrap_or_default()),
        }
    }

    /// Requires the next packets to be `wanted`, in this order.
    pub(super) fn expect_all<const N: usize>(&mut self, wanted: [Said; N]) -> Outcome<Vec<Seen>> {
        wanted.into_iter().map(|said| self.expect(said)).collect()
    }

    /// Requires READ data of `len` bytes from `psn` on, cut at the path MTU. Returns the data.
    pub(super) fn expect_read(&mut self, psn: i32, len: usize) -> Outcome<Vec<u8>> {
        let packets = u32::try_from(len.div_ceil(MTU).max(1)).unwrap_or(u32::MAX);
        let mut data = Vec::new();
        for (i, psn) in (0..packets).zip(psn..) {
            let left = len - data.len();
            let seen = self.expect(Said::Read(Position::of(i, packets), psn, MTU.min(left)))?;
            data.extend(seen.payload);
        }
        Ok(data)
    }

    /// Requires that the peer still executes requests, and sent nothing but `allowed` before.
    /// Sends a WRITE at `psn`, which must be acknowledged. A responder answers in order, so a
    /// packet that did not arrive by then was not sent.
    pub(super) fn alive_with(&mut self, psn: i32, allowed: &[Said]) -> Outcome {
        self.send(write(psn, ALIVE, 4).ask())?;
        let until = Instant::now() + self.wait;
        loop {
            match self.next_for(&Said::Ack(psn), until)? {
                Some((_, seen)) if seen.said == Said::Ack(psn) => return Ok(()),
                Some((_, seen)) if allowed.contains(&seen.said) => {}
                Some((_, seen)) => {
                    return deviates(format!(
                        "{} came, which nothing allows; a good WRITE followed, whose ACK {psn:+} was expected",
                        seen.said
                    ));
                }
                None => {
                    let waited = self.waited();
                    return deviates(format!(
                        "a good WRITE that followed was not acknowledged within {waited}: ACK {psn:+} was expected"
                    ));
                }
            }
        }
    }

    /// Like [`Bench::alive_with`], with no other packets allowed.
    pub(super) fn alive(&mut self, psn: i32) -> Outcome {
        self.alive_with(psn, &[])
    }

    /// Requires this NAK at `psn`, then the error state, and no further packet.
    pub(super) fn dies(&mut self, code: NakCode, psn: i32) -> Outcome {
        self.expect(Said::Nak(code, psn))?;
        self.in_error()
    }

    /// Requires that the queue pair goes into the error state and no further packet arrives.
    pub(super) fn in_error(&mut self) -> Outcome {
        let until = Instant::now() + self.wait;
        while self.state()? != "ERR" {
            if Instant::now() > until {
                let state = self.state()?;
                return deviates(format!("the queue pair is in {state} after that, not in ERR"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.quiet(Duration::ZERO)
    }

    /// Requires that no packet arrives within `time`.
    pub(super) fn quiet(&mut self, time: Duration) -> Outcome {
        match self.next(Instant::now() + time)? {
            None => Ok(()),
            Some((_, seen)) => deviates(format!("{} came, which nothing allows", seen.said)),
        }
    }

    /// Returns the packets that the peer sends within `time`.
    pub(super) fn listen(&mut self, time: Duration) -> Outcome<Vec<Said>> {
        let until = Instant::now() + time;
        let mut all = Vec::new();
        while let Some((_, seen)) = self.next(until)? {
            all.push(seen.said);
        }
        Ok(all)
    }
}

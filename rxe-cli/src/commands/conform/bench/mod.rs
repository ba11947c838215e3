//! One case while it is played: the peer's queue pair, the own end, and what both have done so far.

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

/// The path MTU of all cases: every link carries it.
pub(super) const MTU: usize = RC.path_mtu;

/// Bytes of the peer's region.
pub(super) const REGION: u64 = 65536;

/// Where [`Bench::alive`] writes.
const ALIVE: u64 = 0x7f00;

/// The longest that a case may take.
const LONGEST: Duration = Duration::from_secs(30);

/// A case that is being played.
pub(super) struct Bench<'a> {
    pub(super) peer: &'a mut Peer,
    pub(super) end: Endpoint,
    pub(super) target: Target,
    pub(super) wait: Duration,
    given: Given,
    deadline: Instant,
    /// The newest PSN that the peer has acknowledged.
    acknowledged: i32,
    /// What happened, line by line.
    pub(super) log: Vec<String>,
}

pub(super) fn deviates<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Stop::Deviates(why.into()))
}

impl<'a> Bench<'a> {
    /// Gives the peer a queue pair and connects it with `end`, unless the communication manager does.
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

    /// Whether the peer's device has atomics; without them the case cannot be played.
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

    /// Sends a datagram from queue pair 1 to queue pair 1, which `words` describe.
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

    /// Sends packets one after the other.
    pub(super) fn send_all<const N: usize>(&mut self, all: [Pkt; N]) -> Outcome {
        all.into_iter().try_for_each(|pkt| self.send(pkt))
    }

    /// The next packet of the peer, if one comes before `until`. Congestion notifications are left out:
    /// a switch causes them, no case does.
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
                return deviates(format!("{} came, which is of another service", seen.opcode));
            }
            return Ok(next);
        }
    }

    /// The next packet of the peer to this queue pair.
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

    /// The next packet, without acknowledgements of what comes before `wanted` in the order of PSNs: a
    /// responder may acknowledge each packet once, also without being asked.
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

    /// The next packet, which must be `wanted`. Returns when it came as well.
    pub(super) fn expect_at(&mut self, wanted: &Said) -> Outcome<(Instant, Seen)> {
        let next = self.next_for(wanted, Instant::now() + self.wait)?;
        let said = next.as_ref().map(|(_, seen)| &seen.said);
        if let Some(why) = difference(wanted, said, &self.waited()) {
            return deviates(why);
        }
        next.ok_or_else(|| Stop::Deviates("nothing came".into()))
    }

    /// The next packet, which must be `wanted`.
    pub(super) fn expect(&mut self, wanted: Said) -> Outcome<Seen> {
        self.expect_at(&wanted).map(|(_, seen)| seen)
    }

    /// The next packet, which must be one of these.
    pub(super) fn expect_any(&mut self, wanted: &[Said]) -> Outcome<Said> {
        let next = self.next(Instant::now() + self.wait)?.map(|(_, seen)| seen.said);
        let Some(first) = wanted.first() else { return deviates("nothing is allowed") };
        match next {
            Some(said) if wanted.contains(&said) => Ok(said),
            said => deviates(difference(first, said.as_ref(), &self.waited()).unwrap_or_default()),
        }
    }

    /// The next packets, in this order.
    pub(super) fn expect_all<const N: usize>(&mut self, wanted: [Said; N]) -> Outcome<Vec<Seen>> {
        wanted.into_iter().map(|said| self.expect(said)).collect()
    }

    /// READ data for `len` bytes whose first packet has this PSN, cut at the path MTU. Returns the data.
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

    /// The peer still carries out requests: a WRITE at `psn` is acknowledged, and nothing was sent before
    /// that but what `allowed` names. Packets are answered in order, so what has not come by then was
    /// not sent.
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

    /// As [`Bench::alive_with`], with nothing else allowed.
    pub(super) fn alive(&mut self, psn: i32) -> Outcome {
        self.alive_with(psn, &[])
    }

    /// The packet is answered with this NAK, the queue pair goes into the error state, and nothing else
    /// is sent.
    pub(super) fn dies(&mut self, code: NakCode, psn: i32) -> Outcome {
        self.expect(Said::Nak(code, psn))?;
        self.in_error()
    }

    /// The queue pair goes into the error state, and nothing more comes.
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

    /// Nothing comes for so long.
    pub(super) fn quiet(&mut self, time: Duration) -> Outcome {
        match self.next(Instant::now() + time)? {
            None => Ok(()),
            Some((_, seen)) => deviates(format!("{} came, which nothing allows", seen.said)),
        }
    }

    /// What the peer sends for so long.
    pub(super) fn listen(&mut self, time: Duration) -> Outcome<Vec<Said>> {
        let until = Instant::now() + time;
        let mut all = Vec::new();
        while let Some((_, seen)) = self.next(until)? {
            all.push(seen.said);
        }
        Ok(all)
    }
}

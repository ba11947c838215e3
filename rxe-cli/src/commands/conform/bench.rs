//! One case while it is played: the peer's queue pair, the own end, and what both have done so far.

use std::time::{Duration, Instant};

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{NakCode, Opcode, Position};
use rxe_lab::answer::{Said, Seen, difference};

use super::judge::completions_differ;
use super::packet::{Pkt, Target, datagram, write};
use super::verdict::{Outcome, Stop};
use crate::common::peer::{Done, Endpoint, Given, Peer, RC, Service};

/// The path MTU of all cases: every link carries it.
pub(super) const MTU: usize = RC.path_mtu;

/// Bytes of the peer's region.
pub(super) const REGION: u64 = 65536;

/// The byte that the peer's memory is filled with.
const FILL: u8 = 0x11;

/// Where [`Bench::alive`] writes.
const ALIVE: u64 = 0x7f00;
/// Where the peer's own requests take data from, and READs put it.
pub(super) const SOURCE: u64 = 0xc000;
pub(super) const SINK: u64 = 0xa000;

/// The memory that the peer's requests name. They are answered by us, so none needs to exist.
pub(super) const REMOTE_VA: u64 = 0x7000_0000_1000;
pub(super) const REMOTE_RKEY: u32 = 0x1234_5678;

/// The longest that a case may take.
const LONGEST: Duration = Duration::from_secs(30);

/// A case that is being played.
pub(super) struct Bench<'a> {
    pub(super) peer: &'a mut Peer,
    pub(super) end: Endpoint,
    pub(super) target: Target,
    pub(super) wait: Duration,
    deadline: Instant,
    /// The newest PSN that the peer has acknowledged.
    acknowledged: i32,
    /// What happened, line by line.
    pub(super) log: Vec<String>,
}

/// The place in the region of the receive with this ID, for 2 KiB.
pub(super) fn recv_at(id: u64) -> u64 {
    0x8000 + id * 0x800
}

/// A request of the peer's program completes with success.
pub(super) fn done(id: u64) -> Done {
    Done { id, status: 0, len: None }
}

/// A message of `len` bytes arrives.
pub(super) fn got(id: u64, len: u32) -> Done {
    Done { id, status: 0, len: Some(len) }
}

/// A request completes with this status.
pub(super) fn failed(id: u64, status: rxe_core::queue::Status) -> Done {
    Done { id, status: status.code(), len: None }
}

/// A request is flushed.
pub(super) fn flushed(id: u64) -> Done {
    failed(id, rxe_core::queue::Status::WorkRequestFlushed)
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
        };
        if given.service != Service::Cm {
            peer.join(given, end.net().src, own_qpn)?;
        }
        Ok(Self {
            peer,
            target,
            wait,
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

    /// The peer's queue pair has this state.
    pub(super) fn in_state(&mut self, wanted: &str) -> Outcome {
        let state = self.state()?;
        if state == wanted {
            return Ok(());
        }
        deviates(format!("the queue pair is in {state}, not in {wanted}"))
    }

    fn state(&mut self) -> Outcome<String> {
        Ok(self.ask("state")?.into_iter().next().unwrap_or_default())
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

    /// The peer's program posts a receive of `len` bytes.
    pub(super) fn receive(&mut self, id: u64, len: u32) -> Outcome {
        self.receive_under(id, len, 0)
    }

    /// The same under an lkey that differs from the region's by `xor`.
    pub(super) fn receive_under(&mut self, id: u64, len: u32, xor: u32) -> Outcome {
        self.log.push(format!("peer posts receive {id} of {len} B"));
        self.ask(&format!("recv {id} {} {len} {xor}", recv_at(id))).map(drop)
    }

    fn post(&mut self, op: &str, id: u64, offset: u64, len: u32, operands: [u64; 2]) -> Outcome {
        self.log.push(format!("peer posts {op} {id} of {len} B"));
        let [operand, compare] = operands;
        let request =
            format!("post {op} {id} {offset} {len} {REMOTE_VA} {REMOTE_RKEY} {operand} {compare}");
        self.ask(&request).map(drop)
    }

    /// The peer's program posts three SENDs of one packet, which come.
    pub(super) fn three_sends(&mut self) -> Outcome {
        for id in 1..=3 {
            self.post_send(id, 8)?;
        }
        self.expect_all([0, 1, 2].map(Said::send_only)).map(drop)
    }

    /// The peer's program posts a SEND.
    pub(super) fn post_send(&mut self, id: u64, len: u32) -> Outcome {
        self.post("send", id, SOURCE, len, [0; 2])
    }

    /// It posts a WRITE.
    pub(super) fn post_write(&mut self, id: u64, len: u32) -> Outcome {
        self.post("write", id, SOURCE, len, [0; 2])
    }

    /// It posts a READ into memory at [`SINK`].
    pub(super) fn post_read(&mut self, id: u64, len: u32) -> Outcome {
        self.post("read", id, SINK, len, [0; 2])
    }

    /// It posts a FETCH ADD into memory at [`SINK`].
    pub(super) fn post_add(&mut self, id: u64, add: u64) -> Outcome {
        self.post("add", id, SINK, 8, [add, 0])
    }

    /// It posts a COMPARE SWAP into memory at [`SINK`].
    pub(super) fn post_swap(&mut self, id: u64, compare: u64, swap: u64) -> Outcome {
        self.post("swap", id, SINK, 8, [swap, compare])
    }

    /// The peer's program finds exactly these completions.
    pub(super) fn completes<const N: usize>(&mut self, wanted: [Done; N]) -> Outcome {
        let wait = if N == 0 { Duration::ZERO } else { self.wait };
        self.completes_within(wait, &wanted)
    }

    /// The same within this time.
    pub(super) fn completes_within(&mut self, time: Duration, wanted: &[Done]) -> Outcome {
        let mut found = self.poll(wanted.len().max(1), time)?;
        if found.len() == wanted.len() {
            found.extend(self.poll(1, Duration::ZERO)?);
        }
        match completions_differ(wanted, &found) {
            None => Ok(()),
            Some(why) => deviates(why),
        }
    }

    /// It finds none for so long.
    pub(super) fn completes_nothing(&mut self, time: Duration) -> Outcome {
        self.completes_within(time, &[])
    }

    fn poll(&mut self, count: usize, wait: Duration) -> Outcome<Vec<Done>> {
        let all = self.peer.poll(count, wait)?;
        self.log.extend(all.iter().map(|done| format!("peer completes {done}")));
        Ok(all)
    }

    /// Fills memory of the peer.
    pub(super) fn fill(&mut self, offset: u64, len: u64, byte: u8) -> Outcome {
        self.ask(&format!("fill {offset} {len} {byte}")).map(drop)
    }

    /// The peer's memory has these bytes there.
    pub(super) fn memory_is(&mut self, offset: u64, wanted: &[u8]) -> Outcome {
        let bytes = self.peer.read(offset, wanted.len())?;
        let differs = |(a, b): (&u8, &u8)| a != b;
        let Some(at) = bytes.iter().zip(wanted).position(differs) else { return Ok(()) };
        let (len, is, should) = (wanted.len(), bytes[at], wanted[at]);
        deviates(format!(
            "byte {at} of {len} at +0x{offset:x} of its memory is 0x{is:02x}, not 0x{should:02x}"
        ))
    }

    /// The peer's memory has these bytes there, at some time.
    pub(super) fn memory_becomes(&mut self, offset: u64, wanted: &[u8]) -> Outcome {
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

    /// Nothing was written there.
    pub(super) fn untouched(&mut self, offset: u64, len: usize) -> Outcome {
        self.memory_is(offset, &vec![FILL; len])
    }

    /// Writes the rest of the capture.
    pub(super) fn finish(&self) {
        self.end.flush();
    }
}

/// The Q_Key of the peer's queue pair of UD.
pub(super) const QKEY: u32 = RC.qkey;

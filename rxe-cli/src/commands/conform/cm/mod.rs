//! The local communication manager (IBTA chapter 12 and annex A11).
//! It sends single messages to the peer's queue pair 1, and checks the reaction of the peer's
//! manager and program.

mod message;
mod own;

use std::time::{Duration, Instant};

use rxe_core::cm::mad::{
    self, Mad, Message, Recipient, Rej, RejReason, Rep, Req, SidrRep, Subject,
};
use rxe_core::cm::service::PortSpace;
use rxe_core::types::{Psn, Qkey, Qpn};
use rxe_core::wire::Opcode;
use rxe_lab::answer::Said;
use rxe_lab::words;

pub(super) use self::message::{Came, Letter};
use super::bench::{Bench, deviates, got};
use super::packet::{Target, send};
use super::verdict::{Outcome, Stop};
use crate::common::peer::{Event, RC, Space};

/// The Q_Key of queue pair 1.
pub(super) const GSI_QKEY: u32 = 0x8001_0000;

/// The private data of local requests, behind the addresses, and of the program's replies.
pub(super) const ASKS: &[u8] = b"rxe conform asks";
pub(super) const ANSWERS: &[u8] = b"the peer answers";

/// The encoded CM timeout of 134 ms.
pub(super) const SHORT: u8 = 15;

/// Time enough for the arrival of a message that should not come.
pub(super) const A_WHILE: Duration = Duration::from_millis(100);

/// The responder resources and the initiator depth of local requests.
pub(super) const RESOURCES: u8 = 1;
pub(super) const DEPTH: u8 = 3;

/// A conversation with the peer's communication manager.
pub(super) struct Cm<'b, 'a> {
    pub(super) b: &'b mut Bench<'a>,
    /// The local communication IDs, the current one last.
    ids: Vec<u32>,
    /// The transaction ID of the peer's request; 0 if there is none.
    asked: u64,
    /// The ports that the peer's program and this end listen on.
    pub(super) port: u16,
    pub(super) own_port: u16,
    /// The peer's communication ID and queue pair, once they are known.
    pub(super) remote_id: u32,
    pub(super) remote_qpn: Qpn,
    /// The messages that have arrived, to recognize repeated ones.
    seen: Vec<Vec<u8>>,
}

impl<'b, 'a> Cm<'b, 'a> {
    /// Starts a conversation.
    pub(super) fn new(b: &'b mut Bench<'a>) -> Outcome<Self> {
        b.end.open_gsi().map_err(Stop::Broken)?;
        // The ID and the port are random for each case, so that neither a late message nor the
        // peer's memory of the last connection matches this case.
        let low = b.target.own_qpn.value() & 0xffff;
        let id = u32::from(b.end.block()) << 24 | low << 8 | 1;
        let port = 0x4000 | u16::try_from(low & 0x3ffe).unwrap_or(0);
        let seen = Vec::new();
        let (remote_id, remote_qpn) = (0, Qpn::default());
        Ok(Self {
            b,
            ids: vec![id],
            asked: 0,
            port,
            own_port: port | 1,
            remote_id,
            remote_qpn,
            seen,
        })
    }

    /// Starts a conversation, and lets the peer's program listen for connections.
    pub(super) fn listening(b: &'b mut Bench<'a>) -> Outcome<Self> {
        Self::new(b)?.listen(Space::Tcp)
    }

    /// Starts a conversation, and lets the peer's program listen for datagrams.
    pub(super) fn listening_to_datagrams(b: &'b mut Bench<'a>) -> Outcome<Self> {
        Self::new(b)?.listen(Space::Udp)
    }

    fn listen(self, space: Space) -> Outcome<Self> {
        self.b.log.push(format!("peer listens on {space} port {}", self.port));
        self.b.peer.listen(space, self.port)?;
        Ok(self)
    }

    /// Returns the local communication ID.
    pub(super) fn id(&self) -> u32 {
        self.ids.last().copied().unwrap_or_default()
    }

    /// Takes another communication ID. Messages for the previous ones are still received.
    pub(super) fn renew(&mut self) {
        let id = self.id() + 1;
        self.ids.push(id);
    }

    /// Returns a communication ID that nothing uses.
    pub(super) fn nobody(&self) -> u32 {
        self.id() ^ 0x5a_5a00
    }

    fn guid(&self) -> u64 {
        0x0200_0000_0000_0000 | u64::from(self.ids.first().copied().unwrap_or_default())
    }

    /// Encodes a message.
    pub(super) fn letter(&self, message: &Message) -> Letter {
        let tid = if self.asked == 0 { u64::from(self.id()) << 8 } else { self.asked };
        let bytes = message.emit(tid).to_vec();
        Letter { bytes, qkey: GSI_QKEY, words: words::cm(message) }
    }

    /// Sends a datagram.
    pub(super) fn post(&mut self, letter: Letter) -> Outcome {
        self.b.send_mad(letter.bytes, letter.qkey, &letter.words)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message) -> Outcome {
        self.post(self.letter(message))
    }

    /// Returns the next message for a local ID or for a service, which may be a repeated one.
    fn next_any(&mut self, until: Instant) -> Outcome<Option<Came>> {
        loop {
            let Some((at, seen)) = self.b.next_to(Qpn::GSI, until)? else { return Ok(None) };
            let deth = seen.ext.deth.map(|deth| (deth.qkey, deth.src_qp));
            if !matches!(seen.said, Said::Request(Opcode::UD_SEND_ONLY, ..))
                || deth != Some((Qkey::GSI, Qpn::GSI))
            {
                let said = seen.said;
                return deviates(format!("{said} came to queue pair 1, from another one"));
            }
            let bytes = seen.payload;
            let Some(mad) = Mad::new(&bytes) else {
                let (len, should) = (bytes.len(), mad::LEN);
                return deviates(format!("a management datagram of {len} B came, not of {should}"));
            };
            let Some(message) = mad.message() else {
                let attribute = mad.header().attr_id;
                return deviates(format!(
                    "a management datagram came that is none of the CM's: attribute 0x{attribute:x}"
                ));
            };
            let own = PortSpace::Tcp.service_id(self.own_port);
            if matches!(mad.recipient(), Some(Recipient::Service(service)) if service != own) {
                let why =
                    "the peer has our own address, where requests that nobody takes come back";
                return Err(Stop::NotTestable(why.into()));
            }
            let said = words::cm(&message);
            let came = Came { at, message, bytes };
            // The peer may still be ending the connection of an earlier case.
            let earlier = self.remote_id == 0 && matches!(came.message, Message::Dreq(_));
            if !earlier && came.id().is_none_or(|id| self.ids.contains(&id)) {
                self.b.log.push(format!("came: {said}"));
                return Ok(Some(came));
            }
            self.b.log.push(format!("came, for an ID that is not of this case: {said}"));
        }
    }

    /// Returns the next message that is not a repetition. Each message may be sent again.
    pub(super) fn next(&mut self, time: Duration) -> Outcome<Option<Came>> {
        let until = Instant::now() + time;
        loop {
            let next = self.next_any(until)?;
            let Some(came) = &next else { return Ok(None) };
            if !self.seen.contains(&came.bytes) {
                self.seen.push(came.bytes.clone());
                return Ok(next);
            }
        }
    }

    /// Requires the next new message to have this name and the current ID.
    pub(super) fn expect(&mut self, name: &str) -> Outcome<Came> {
        let Some(came) = self.next(self.b.wait)? else {
            let waited = self.b.waited();
            return deviates(format!("{name} was expected, nothing came within {waited}"));
        };
        let said = words::cm(&came.message);
        if came.message.name() != name {
            return deviates(format!("{name} was expected, {said} came"));
        }
        if came.id().is_some_and(|id| id != self.id()) {
            return deviates(format!("{said} came for a request that it should drop"));
        }
        Ok(came)
    }

    /// Requires the message to arrive again, byte for byte. Returns its arrival time.
    pub(super) fn again(&mut self, first: &Came) -> Outcome<Instant> {
        self.again_within(first, self.b.wait)
    }

    /// Like [`Cm::again`], with a time limit.
    pub(super) fn again_within(&mut self, first: &Came, time: Duration) -> Outcome<Instant> {
        let name = first.message.name();
        match self.next_any(Instant::now() + time)? {
            Some(came) if came.bytes == first.bytes => Ok(came.at),
            Some(came) if came.message.name() == name => {
                deviates(format!("the {name} that came again differs from the first"))
            }
            Some(came) => {
                let said = words::cm(&came.message);
                deviates(format!("the {name} was expected again, {said} came"))
            }
            None => {
                let secs = time.as_secs_f64();
                deviates(format!("the {name} did not come again within {secs} s"))
            }
        }
    }

    /// Returns all messages that arrive within `time`, including repeated ones.
    pub(super) fn listen_for(&mut self, time: Duration) -> Outcome<Vec<Came>> {
        // The backend polls for datagrams to queue pair 1 less often than for others.
        let until = Instant::now() + time.max(Duration::from_millis(20));
        let mut all = Vec::new();
        while let Some(came) = self.next_any(until)? {
            all.push(came);
        }
        Ok(all)
    }

    /// Requires that no message arrives within `time`.
    pub(super) fn quiet(&mut self, time: Duration) -> Outcome {
        match self.listen_for(time)?.first() {
            None => Ok(()),
            Some(came) => unallowed(&came.message),
        }
    }

    /// Requires a REP, and takes over the communication ID and the queue pair in it.
    pub(super) fn rep(&mut self) -> Outcome<(Came, Rep)> {
        let came = self.expect("REP")?;
        let Message::Rep(rep) = &came.message else { return deviates("it is no REP") };
        let rep = rep.clone();
        self.remote_id = rep.local_comm_id;
        self.remote_qpn = rep.local_qpn;
        self.b.target = Target {
            qpn: rep.local_qpn,
            rq_psn: rep.starting_psn,
            sq_psn: Psn::new(RC.sq_psn),
            ..self.b.target
        };
        Ok((came, rep))
    }

    /// Requires a REJ of this message, for this reason.
    pub(super) fn rej(&mut self, subject: Subject, reason: RejReason) -> Outcome<Rej> {
        let came = self.expect("REJ")?;
        let Message::Rej(rej) = came.message else { return deviates("it is no REJ") };
        if rej.reason != reason.0 {
            let (is, should) = (RejReason(rej.reason), reason);
            return deviates(format!("the reason of the REJ is {is:?}, not {should:?}"));
        }
        if rej.message != subject as u8 {
            let is = rej.message;
            return deviates(format!("the REJ rejects message {is}, not {}", subject as u8));
        }
        Ok(rej)
    }

    /// Returns the reason of a REJ, if one arrives within `time`.
    pub(super) fn rej_within(&mut self, time: Duration) -> Outcome<Option<RejReason>> {
        match self.next(time)?.map(|came| came.message) {
            None => Ok(None),
            Some(Message::Rej(rej)) => Ok(Some(RejReason(rej.reason))),
            Some(other) => unallowed(&other),
        }
    }

    /// Requires a SIDR_REP.
    pub(super) fn sidr_rep(&mut self) -> Outcome<(Came, SidrRep)> {
        let came = self.expect("SIDR_REP")?;
        let Message::SidrRep(rep) = &came.message else { return deviates("it is no SIDR_REP") };
        let rep = rep.clone();
        Ok((came, rep))
    }

    /// Requires a DREP for this connection.
    pub(super) fn drep(&mut self) -> Outcome<Came> {
        let came = self.expect("DREP")?;
        let from = match &came.message {
            Message::Drep(drep) => drep.local_comm_id,
            _ => 0,
        };
        if from != self.remote_id {
            let is = self.remote_id;
            return deviates(format!("the DREP names communication ID 0x{from:x}, not 0x{is:x}"));
        }
        Ok(came)
    }

    /// Lets the peer's program disconnect. Returns the DREQ.
    pub(super) fn peer_ends(&mut self) -> Outcome<Came> {
        self.disconnect()?;
        let came = self.expect("DREQ")?;
        let names = match &came.message {
            Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_qpn),
            _ => (0, Qpn::default()),
        };
        let own = self.b.target.own_qpn;
        if names != (self.remote_id, own) {
            let (id, qpn) = (names.0, names.1.value());
            return deviates(format!(
                "the DREQ names communication ID 0x{id:x} and QPN 0x{qpn:x}, not 0x{:x} and 0x{:x}",
                self.remote_id,
                own.value()
            ));
        }
        self.asked = came.tid();
        Ok(came)
    }

    /// Returns the next event of the peer's program. TIMEWAIT_EXIT is skipped.
    fn next_event(&mut self, wait: Duration) -> Outcome<Option<Event>> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.b.peer.event(left)?;
            let Some(found) = &event else { return Ok(None) };
            self.b.log.push(format!("peer's event: {found}"));
            if found.name() != Event::TIMEWAIT_EXIT {
                return Ok(event);
            }
        }
    }

    /// Requires the next event of the peer's program to have this name.
    pub(super) fn event(&mut self, name: &str) -> Outcome<Event> {
        match self.next_event(self.b.wait)? {
            Some(event) if event.name() == name => Ok(event),
            Some(event) => deviates(format!("its program should see {name}, but sees {event}")),
            None => {
                // Record in the log what the peer sent instead.
                self.listen_for(Duration::ZERO)?;
                deviates(format!(
                    "its program should see {name}, but sees nothing within {}",
                    self.b.waited()
                ))
            }
        }
    }

    /// Requires that the peer's program sees no event within `time`.
    pub(super) fn no_event(&mut self, time: Duration) -> Outcome {
        match self.next_event(time)? {
            None => Ok(()),
            Some(event) => deviates(format!("its program sees {event}, of which it knows already")),
        }
    }

    /// Lets the peer's program accept the request. Returns its queue pair.
    pub(super) fn accept(&mut self) -> Outcome<Qpn> {
        self.b.log.push("peer accepts".into());
        Ok(self.b.peer.accept(ANSWERS)?)
    }

    /// Lets the peer's program reject the request.
    pub(super) fn reject(&mut self) -> Outcome {
        self.b.log.push("peer rejects".into());
        Ok(self.b.peer.reject(ANSWERS)?)
    }

    /// Lets the peer's program disconnect, or confirm a disconnect.
    pub(super) fn disconnect(&mut self) -> Outcome {
        self.b.log.push("peer disconnects".into());
        Ok(self.b.peer.disconnect()?)
    }

    /// Lets the peer's program connect to this end. Returns its queue pair and the REQ.
    pub(super) fn dial(&mut self) -> Outcome<(Qpn, Came, Req)> {
        let service = PortSpace::Tcp.service_id(self.own_port);
        self.b.end.listen(service).map_err(Stop::Broken)?;
        let own = self.b.end.net().src;
        self.b.log.push(format!("peer asks {own}, tcp port {}", self.own_port));
        let qpn = self.b.peer.dial(Space::Tcp, own, self.own_port, ANSWERS)?;
        let came = self.expect("REQ")?;
        let Message::Req(req) = &came.message else { return deviates("it is no REQ") };
        let req = req.clone();
        self.asked = came.tid();
        if req.service_id != service {
            let is = req.service_id;
            return deviates(format!("the REQ is for service 0x{is:x}, not 0x{service:x}"));
        }
        Ok((qpn, came, req))
    }

    /// Sends a request, which the peer's program must see.
    pub(super) fn request(&mut self, req: Req) -> Outcome<Event> {
        self.send(&Message::Req(req))?;
        self.event(Event::REQUEST)
    }

    /// Sends a request, which the peer's program accepts. Returns the REP.
    pub(super) fn ask(&mut self, req: Req) -> Outcome<(Came, Rep)> {
        self.request(req)?;
        self.accept()?;
        self.rep()
    }

    /// Sends the RTU after the REP, and requires the peer's program to be connected.
    pub(super) fn ready(&mut self) -> Outcome {
        self.send(&self.rtu())?;
        self.event(Event::ESTABLISHED).map(drop)
    }

    /// Establishes a connection from this end.
    pub(super) fn connect(&mut self) -> Outcome {
        self.ask(self.req())?;
        self.ready()
    }

    /// Rejects a message of the peer, and requires its program to see the reason and the data.
    pub(super) fn refuse(&mut self, subject: Subject) -> Outcome {
        self.send(&self.rejection(subject))?;
        let event = self.event(Event::REJECTED)?;
        if event.status != i32::from(RejReason::CONSUMER_DEFINED.0) {
            return deviates(format!("its program sees {event}, not reason 28"));
        }
        if !event.private_data.starts_with(ASKS) {
            return deviates("its program sees other private data than the REJ has".to_owned());
        }
        Ok(())
    }

    /// Requires a SEND at `psn` to arrive over the connection.
    pub(super) fn carries(&mut self, psn: i32) -> Outcome {
        self.b.receive(1, 100)?;
        self.b.send(send(psn, 8).ask())?;
        self.b.expect(Said::Ack(psn))?;
        self.b.completes([got(1, 8)])
    }

    /// Ends the connection, and lets the peer's program confirm. Returns the DREP.
    pub(super) fn end(&mut self) -> Outcome<Came> {
        self.send(&Message::Dreq(self.dreq()))?;
        self.event(Event::DISCONNECTED)?;
        self.disconnect()?;
        self.drep()
    }
}

/// Returns the deviation of a message that the case does not allow.
pub(super) fn unallowed<T>(message: &Message) -> Outcome<T> {
    deviates(format!("{} came, which nothing allows", words::cm(message)))
}

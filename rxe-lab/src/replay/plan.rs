//! Plans a replay: what to send, what to expect, and the peer's memory before and after.

use std::time::Duration;

use rxe_core::types::{Psn, RnrTimer};
use rxe_core::wire::{NakCode, OpKind, Service, Syndrome};

use super::layout::{Layout, Place, TooLarge, named, place};
use super::memory::{Memory, ReadData};
use super::outgoing::Outgoing;
use super::recording::{Conversation, MAX_BYTES, Packet};
use super::responder::{Fate, fates, span};
use super::{Ends, Responder};
use crate::answer::{FirstPsns, Said, Seen};
use crate::frame::Icrc;

/// The number of requests among which the one for an answer is searched.
const LOOKED_AT: usize = 4096;

/// The bytes that the receive of a datagram needs for the GRH.
const GRH: u64 = 40;

/// A receive that the peer posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The length in bytes.
    pub len: u64,
    /// Whether the memory of the receive may be accessed.
    pub is_usable: bool,
}

/// A recorded answer.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The number of the answer's frame.
    pub frame: u64,
    /// The frame and description of the answered request.
    pub request: Option<(u64, String)>,
    /// The answer, with the data that the peer's memory should have.
    pub seen: Seen,
    /// Whether the data are known, so that they are compared.
    pub(super) is_data_known: bool,
}

/// A step of a replay.
#[derive(Clone, Debug)]
pub enum Step {
    /// The peer posts a receive.
    Receive(Receive),
    /// A packet is sent to the peer.
    Send(Box<Outgoing>),
    /// An answer is expected that was recorded here.
    Answer(Box<Expected>),
}

/// The plan of a replay to a live peer.
#[derive(Debug)]
pub struct Plan {
    /// The two sides of the recorded conversation.
    pub ends: Ends,
    /// The first PSN that the recorded responder expected.
    pub first_psn: Psn,
    /// The path MTU in bytes.
    pub path_mtu: usize,
    /// The Q_Key of datagrams.
    pub qkey: u32,
    /// The RNR NAK timer of the recorded responder, as its code.
    pub rnr_timer: Option<u8>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The content of the peer's memory before the replay: offsets and bytes.
    pub before: Vec<(u64, Vec<u8>)>,
    /// The content of the peer's memory after the replay: offsets and bytes.
    pub after: Vec<(u64, Vec<u8>)>,
    /// The offset in the peer's region at which receives may be placed.
    pub receives_at: u64,
    /// The number of receives that complete successfully.
    pub received: u64,
    /// The number of packets to be sent.
    pub packets: u64,
    /// The number of recorded answers.
    pub answers: u64,
    /// Notes for the user, in sentences.
    pub notes: Vec<String>,
    /// Whether the responder's memory is known exactly because a scenario describes it.
    pub(super) is_exact: bool,
}

/// The parameters of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The responder as a scenario describes it, if there is one.
    pub responder: Option<&'a Responder>,
    /// The most packets that are sent.
    pub count: usize,
    /// The size of the peer's region in bytes.
    pub region: u64,
}

impl Conversation {
    /// Returns the smallest path MTU that fits the largest payload.
    pub fn path_mtu(&self) -> usize {
        self.largest.next_power_of_two().clamp(256, 4096)
    }
}

impl Plan {
    /// Plans the replay of a conversation.
    ///
    /// # Errors
    /// Fails if the peer's region is too small.
    pub fn new(mut it: Conversation, wanted: &Wanted<'_>) -> Result<Self, TooLarge> {
        let mut notes = Vec::new();
        let responder = wanted.responder;
        if responder.is_none() {
            skip_begun(&mut it, &mut notes);
        }
        cut(&mut it, wanted.count, &mut notes);
        let requests = || it.packets.iter().filter(|(is_request, _)| *is_request).map(|(_, p)| p);
        let first = requests().next().map_or(Psn::ZERO, |packet| packet.bth.psn);
        let first_psn = responder.map_or(first, |it| Psn::new(it.first_psn));
        let path_mtu = responder.and_then(|it| it.path_mtu).unwrap_or_else(|| it.path_mtu());
        let (all, wrong) =
            (requests().count(), requests().filter(|p| p.icrc == Icrc::Wrong).count());
        // A capture taken before the device computed the ICRCs has no right ones.
        let damaged = responder.is_some() || 2 * wrong < all;
        if !damaged {
            notes.push("Most ICRCs are wrong, so the capture was made before they were computed: all are sent right.".into());
        }
        notes.extend(not_captured(&it));
        let fates = fates(&it, first_psn, path_mtu, damaged);
        let region = responder.and_then(|it| it.engine);
        let named = it.packets.iter().zip(&fates).filter_map(|((is_request, packet), fate)| {
            let refused = matches!(fate, Fate::Refused(_));
            named(packet).filter(|_| *is_request && !refused)
        });
        let layout = Layout::new(named, region, wanted.region)?;
        let mut builder = Builder {
            plan: Self {
                ends: it.ends,
                first_psn,
                path_mtu,
                qkey: requests().find_map(|p| p.ext.deth).map_or(0, |deth| deth.qkey.value()),
                rnr_timer: it.packets.iter().find_map(|(_, packet)| rnr_timer(packet)),
                steps: Vec::new(),
                before: Vec::new(),
                after: Vec::new(),
                receives_at: layout.used.min(wanted.region),
                received: 0,
                packets: 0,
                answers: 0,
                notes,
                is_exact: responder.is_some_and(|it| it.engine.is_some()),
            },
            psns: FirstPsns { requests: Psn::ZERO, answers: first_psn },
            memory: Memory::new(&it, &fates, &layout, first_psn, path_mtu),
            layout,
            damaged,
            cursor: None,
            reads: ReadData::new(MAX_BYTES),
            joined: 0,
            sent: Vec::new(),
        };
        builder.plan.before = builder.memory.known();
        let posted = responder.map(|it| it.receives.as_slice());
        builder.build(&it, &fates, posted);
        let Builder { mut plan, memory, .. } = builder;
        plan.after = memory.written();
        plan.place_receives(wanted.region)?;
        Ok(plan)
    }
}

impl Plan {
    /// Places the receives behind the memory that requests use.
    /// Without room they share it, and memory is not compared.
    fn place_receives(&mut self, region: u64) -> Result<(), TooLarge> {
        let receives = self.steps.iter().filter_map(|step| match step {
            Step::Receive(receive) => Some(receive.len),
            _ => None,
        });
        let Some(largest) = receives.max() else { return Ok(()) };
        if self.receives_at + largest <= region {
            return Ok(());
        }
        self.receives_at = region.checked_sub(largest).ok_or(TooLarge {
            frame: 0,
            needed: largest,
            has: region,
        })?;
        self.after.clear();
        for step in &mut self.steps {
            if let Step::Answer(expected) = step {
                expected.is_data_known = false;
            }
        }
        let note = "Receives share the peer's region with READs and WRITEs: data are not compared.";
        self.notes.push(note.into());
        Ok(())
    }
}

/// Drops the packets of a message that began before the capture.
fn skip_begun(it: &mut Conversation, notes: &mut Vec<String>) {
    let is_start = |(is_request, packet): &(bool, Packet)| *is_request && packet.info.starts;
    let begins = it.packets.iter().position(is_start).unwrap_or(it.packets.len());
    let skipped = it.packets.drain(..begins).filter(|(is_request, _)| *is_request).count();
    if skipped > 0 {
        notes.push(format!(
            "The first {} not sent: the message began before the capture.",
            plural(skipped, "packet is", "packets are")
        ));
    }
}

/// Drops the requests beyond `count` and the answers to them.
fn cut(it: &mut Conversation, count: usize, notes: &mut Vec<String>) {
    let mut requests = it.packets.iter().enumerate().filter(|(_, (is_request, _))| *is_request);
    let Some((at, _)) = requests.nth(count) else { return };
    let left = 1 + requests.count();
    it.packets.truncate(at);
    let all = plural(count + left, "packet", "packets");
    notes.push(format!("--count leaves out {left} of the recording's {all}."));
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Describes how much payload was not captured and what follows from it.
fn not_captured(it: &Conversation) -> Option<String> {
    let cut = || it.packets.iter().map(|(_, packet)| packet).filter(|packet| packet.is_cut());
    let captured = || cut().map(|packet| packet.captured().len());
    let (least, most) = (captured().min()?, captured().max()?);
    let bytes = if least == most { format!("{most} B") } else { format!("{least} to {most} B") };
    Some(format!(
        "Payload beyond {bytes} was not captured ({}): zeros are sent for it, and it is not compared.",
        plural(cut().count(), "packet", "packets")
    ))
}

fn rnr_timer(packet: &Packet) -> Option<u8> {
    match packet.ext.aeth?.syndrome {
        Syndrome::RnrNak { timer } => Some(RnrTimer::code(timer)),
        _ => None,
    }
}

/// Builds the steps of a plan from the packets of a conversation.
struct Builder {
    plan: Plan,
    psns: FirstPsns,
    memory: Memory,
    layout: Layout,
    damaged: bool,
    /// The offset at which the next packet of a WRITE message goes.
    cursor: Option<u64>,
    reads: ReadData,
    /// The number of truncated frames with several answers.
    joined: usize,
    /// The requests sent: PSN, number of PSNs, frame, description.
    sent: Vec<(i32, i32, u64, String)>,
}

impl Builder {
    fn build(&mut self, it: &Conversation, fates: &[Fate], posted: Option<&[(Duration, Receive)]>) {
        let mut posted = posted.map(|posted| posted.iter().peekable());
        let mut lost = 0;
        for (at, ((is_request, packet), fate)) in it.packets.iter().zip(fates).enumerate() {
            while let Some((_, receive)) =
                posted.as_mut().and_then(|p| p.next_if(|(then, _)| *then <= packet.at))
            {
                self.plan.steps.push(Step::Receive(*receive));
            }
            if !is_request {
                self.answer(packet);
                continue;
            }
            if *fate == Fate::Lost {
                lost += 1;
                continue;
            }
            let takes = packet.info.consumes_recv
                && matches!(fate, Fate::Executed | Fate::Refused(_))
                && (it.service != Service::Ud || self.has_qkey(packet));
            if takes && posted.is_none() {
                let receive = receive_for(it, at, fates);
                self.plan.steps.push(Step::Receive(receive));
            }
            self.request(packet, *fate, it.service);
        }
        if lost > 0 {
            self.plan.notes.push(format!(
                "{} not sent: NAKs of the recording say that {} lost.",
                plural(lost, "packet is", "packets are"),
                if lost == 1 { "it was" } else { "they were" },
            ));
        }
        if self.joined > 0 {
            self.plan.notes.push(format!(
                "{} cut that had several answers: these answers are not compared.",
                plural(self.joined, "frame was", "frames were"),
            ));
        }
        for (_, receive) in posted.into_iter().flatten() {
            self.plan.steps.push(Step::Receive(*receive));
        }
    }

    fn has_qkey(&self, packet: &Packet) -> bool {
        packet.ext.deth.is_some_and(|deth| deth.qkey.value() == self.plan.qkey)
    }

    fn request(&mut self, packet: &Packet, fate: Fate, service: Service) {
        let psn = packet.bth.psn.diff(self.plan.first_psn);
        let place = place(&self.layout, packet);
        let is_executed = fate == Fate::Executed;
        let said = Said::Request(packet.bth.opcode, psn, packet.payload().len());
        let words = said.to_string();
        let span = span(packet, self.plan.path_mtu);
        if is_executed {
            self.carry_out(packet, psn, place);
        }
        let received = is_executed && packet.info.completes_recv;
        self.plan.received +=
            u64::from(received && (service != Service::Ud || self.has_qkey(packet)));
        if packet.info.kind == OpKind::ReadRequest
            && matches!(fate, Fate::Executed | Fate::Duplicate)
        {
            self.remember(psn, place, packet.dma_len());
        }
        self.sent.push((psn, span, packet.number, words.clone()));
        self.plan.packets += 1;
        let right = packet.ext.ieth.is_some_and(|key| self.layout.place(key, 0, 0).is_key_right);
        self.plan.steps.push(Step::Send(Box::new(Outgoing {
            frame: packet.number,
            at: packet.at,
            words,
            psn,
            span,
            asks: packet.bth.ack_req,
            is_met: !matches!(fate, Fate::Dropped | Fate::Lost),
            is_executed,
            is_duplicate: fate == Fate::Duplicate,
            packet: packet.clone(),
            place,
            invalidates_right_key: right,
            damaged: self.damaged,
        })));
    }

    /// Applies a request to the modelled memory as the peer applies it to its own.
    fn carry_out(&mut self, packet: &Packet, psn: i32, place: Option<Place>) {
        let start = place.filter(|place| place.is_inside).map(|place| place.offset);
        match packet.info.kind {
            OpKind::Write | OpKind::AtomicWrite => {
                let Some(at) = start.or(self.cursor) else { return };
                let payload = packet.payload();
                self.memory.write(at, payload, packet.captured().len());
                let next = at + payload.len() as u64;
                self.cursor = (!packet.info.ends).then_some(next);
            }
            OpKind::CompareSwap | OpKind::FetchAdd => {
                let (Some(at), Some(eth)) = (start, packet.ext.atomic) else { return };
                let Some(old) = self.memory.read(at, 8).and_then(|b| b.first_chunk().copied())
                else {
                    return;
                };
                let old = u64::from_le_bytes(old);
                let new = match packet.info.kind {
                    OpKind::FetchAdd => old.wrapping_add(eth.swap_add),
                    _ if old == eth.compare => eth.swap_add,
                    _ => old,
                };
                self.memory.write(at, &new.to_le_bytes(), 8);
                self.reads.keep(psn, old.to_be_bytes().to_vec());
            }
            _ => {}
        }
    }

    /// Keeps the data that a READ returns.
    fn remember(&mut self, psn: i32, place: Option<Place>, len: u64) {
        let data = place.filter(|p| p.is_inside).and_then(|p| self.memory.read(p.offset, len));
        if let Some(data) = data.map(<[u8]>::to_vec) {
            self.reads.keep(psn, data);
        }
    }

    /// Adds a recorded answer, with the data that the peer's memory should have.
    fn answer(&mut self, packet: &Packet) {
        if !packet.is_sound || (self.damaged && packet.icrc == Icrc::Wrong) {
            return;
        }
        if packet.unseen.is_certain(Some(self.plan.path_mtu)) {
            self.joined += 1;
            return;
        }
        let len = packet.payload().len();
        let mut said = Said::of(packet.info, packet.bth.psn, &packet.ext, len, &self.psns);
        let psn = said.answered().unwrap_or(0);
        let request = (self.sent.iter().rev().take(LOOKED_AT))
            .find(|(first, span, ..)| (0..*span).contains(&(psn - first)))
            .map(|(_, _, frame, words)| (*frame, words.clone()));
        let mut payload = packet.captured().to_vec();
        let known = self.reads.starting_at(psn, self.plan.path_mtu);
        let mut is_data_known = false;
        match &mut said {
            Said::Read(..) => {
                if let Some(data) = known.and_then(|data| data.get(..payload.len())) {
                    payload = data.to_vec();
                    is_data_known = true;
                }
            }
            Said::Atomic(_, value) => {
                if let Some(data) = known.and_then(<[u8]>::first_chunk) {
                    *value = u64::from_be_bytes(*data);
                }
            }
            _ => {}
        }
        self.plan.answers += 1;
        let opcode = packet.bth.opcode;
        let seen = Seen { said, opcode, ext: packet.ext, ack_req: packet.bth.ack_req, payload };
        let expected = Expected { frame: packet.number, request, seen, is_data_known };
        self.plan.steps.push(Step::Answer(Box::new(expected)));
    }
}

/// Returns the receive that the message beginning with packet `at` consumed.
fn receive_for(it: &Conversation, at: usize, fates: &[Fate]) -> Receive {
    let mut next = it.packets[at].1.bth.psn;
    let grh = if it.service == Service::Ud { GRH } else { 0 };
    let mut len = grh;
    for ((is_request, packet), fate) in it.packets[at..].iter().zip(&fates[at..]) {
        if !is_request || !matches!(fate, Fate::Executed | Fate::Refused(_)) {
            continue;
        }
        // The rest of the message was lost, and another message follows.
        if packet.bth.psn != next {
            break;
        }
        len += packet.payload().len() as u64;
        match fate {
            // A NAK "invalid request" means that the receive was too short, other NAKs that its
            // memory was invalid.
            Fate::Refused(NakCode::InvalidRequest) => {
                return Receive { len: len.saturating_sub(1), is_usable: true };
            }
            Fate::Refused(_) => return Receive { len, is_usable: false },
            _ if packet.info.ends => break,
            _ => next = next.next(),
        }
    }
    Receive { len, is_usable: true }
}

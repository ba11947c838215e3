//! Keeps the packets of a capture and finds the conversations in them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::{Bth, Ext, OpInfo, OpKind, Position, Service};

use super::Responder;
use crate::frame::{Address, Content, Frame, Icrc, Transport, Unseen};
use crate::header::{self, Header};
use crate::point::{Point, TakenFrom};

/// The most bytes of packets that are kept.
pub const MAX_BYTES: usize = 256 << 20;

/// The approximate memory that a kept packet needs in addition to its bytes.
const OVERHEAD: usize = 256;

/// A recorded packet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) number: u64,
    /// The time since the first frame.
    pub(super) at: Duration,
    /// The bytes from the BTH up to the ICRC, with zeros for bytes that were not captured.
    pub(super) bytes: Arc<[u8]>,
    /// The range of the payload in `bytes`, without the pad.
    payload: Range<usize>,
    /// The number of payload bytes that were captured.
    captured: usize,
    pub(super) bth: Bth,
    pub(super) info: &'static OpInfo,
    pub(super) ext: Ext,
    /// Whether the structure of the packet is right.
    pub(super) is_sound: bool,
    /// Whether the headers were captured whole.
    has_headers: bool,
    /// The packets behind this one in its frame that were not captured.
    pub(super) unseen: Unseen,
    pub(super) icrc: Icrc,
    /// The offsets of the headers that are rewritten.
    pub(super) places: Places,
}

/// The offsets from the BTH of the headers that are rewritten.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    pub(super) address: Option<usize>,
    pub(super) deth: Option<usize>,
    pub(super) ieth: Option<usize>,
}

/// The requester, the responder, and the responder's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The requester's address.
    pub from: Address,
    /// The responder's address.
    pub to: Address,
    /// The responder's queue pair.
    pub qp: u32,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} 0x{:06x}", self.from, self.to, self.qp)
    }
}

/// The requests to one queue pair and their answers, in capture order.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// The two sides of the conversation.
    pub ends: Ends,
    /// The transport service.
    pub service: Service,
    /// The recorded packets; `true` marks a request.
    pub(super) packets: Vec<(bool, Packet)>,
    /// The largest payload in bytes.
    pub(super) largest: usize,
    /// The first frame to the responder that was truncated within the BTH.
    without_bth: Option<u64>,
}

/// A truncated frame whose packets cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The headers of a packet in this frame were not captured whole.
    Headers(u64),
    /// This frame has, or may have, more packets than were captured (GSO, GRO).
    Several(u64),
}

/// Why a capture has no conversation that can be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoConversation {
    /// The capture has no requests.
    None,
    /// No requests go to the queue pair or come from it. The conversations that there are.
    NoSuchQp(Vec<Ends>),
    /// Several conversations are possible.
    Several(Vec<Ends>),
    /// The BTH of every packet was truncated. The first such frame.
    Cut(u64),
}

/// The packets of a capture, by conversation.
#[derive(Debug, Default)]
pub struct Recording {
    keys: HashMap<Ends, usize>,
    flows: Vec<Flow>,
    /// The first frame between two hosts that was truncated within the BTH.
    cut: HashMap<(Address, Address), u64>,
    bytes: usize,
    left_out: u64,
}

/// The most pairs of hosts for which a truncated frame is remembered.
const MAX_CUT: usize = 4096;

/// The packets from one host to a queue pair of another.
#[derive(Debug)]
struct Flow {
    ends: Ends,
    taken_from: TakenFrom,
    packets: Vec<Packet>,
}

impl Recording {
    /// Adds the packets of the next frame. `since` is the time since the first frame.
    pub fn add(&mut self, number: u64, interface: u32, since: Duration, frame: &Frame<'_>) {
        let Some((from, to)) = frame.ends else { return };
        let packets = match &frame.content {
            Content::Rdma(packets) => packets,
            Content::Cut => {
                if self.cut.len() < MAX_CUT {
                    self.cut.entry((from, to)).or_insert(number);
                }
                return;
            }
            _ => return,
        };
        let point = Point::of(interface, frame);
        for transport in packets {
            let Some(info) = transport.info.filter(|info| info.service != Service::Cnp) else {
                continue;
            };
            let qp = transport.bth.dest_qp.value();
            // Datagrams to QP 0 and QP 1 are management datagrams.
            if qp <= 1 {
                continue;
            }
            self.bytes += transport.len + OVERHEAD;
            if self.bytes > MAX_BYTES {
                self.left_out += 1;
                continue;
            }
            let ends = Ends { from, to, qp };
            let at = *self.keys.entry(ends).or_insert_with(|| {
                self.flows.push(Flow {
                    ends,
                    taken_from: TakenFrom::default(),
                    packets: Vec::new(),
                });
                self.flows.len() - 1
            });
            let flow = &mut self.flows[at];
            if !flow.taken_from.is_copy(point) {
                flow.packets.push(Packet::new(number, since, frame.bytes, transport, info));
            }
        }
    }

    /// Returns the number of packets that were ignored because there are too many.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the conversations that have requests, in the order of their first frames.
    pub fn conversations(&self) -> Vec<Ends> {
        self.flows.iter().filter(|flow| flow.has_requests()).map(|flow| flow.ends).collect()
    }

    /// Returns the conversation whose requests go to `qp` or else come from it.
    /// Without `qp` there must be only one conversation. `known` tells which queue pairs are connected.
    ///
    /// # Errors
    /// Fails if there is no such conversation, or more than one.
    pub fn choose(
        mut self,
        qp: Option<u32>,
        known: &[Responder],
    ) -> Result<Conversation, NoConversation> {
        let all = self.conversations();
        let to: Vec<_> =
            all.iter().copied().filter(|ends| qp.is_none_or(|qp| ends.qp == qp)).collect();
        let chosen: Vec<_> = if to.is_empty() {
            let from =
                |ends: &Ends| self.answers(ends, known).map(|at| self.flows[at].ends.qp) == qp;
            all.iter().copied().filter(from).collect()
        } else {
            to
        };
        match chosen[..] {
            [ends] => Ok(self.take(ends, known)),
            [] if all.is_empty() => Err(match self.cut.values().min() {
                Some(frame) => NoConversation::Cut(*frame),
                None => NoConversation::None,
            }),
            [] => Err(NoConversation::NoSuchQp(all)),
            _ => Err(NoConversation::Several(chosen)),
        }
    }

    /// Takes the packets of a conversation out of the recording.
    fn take(&mut self, ends: Ends, known: &[Responder]) -> Conversation {
        let answers =
            self.answers(&ends, known).map(|at| std::mem::take(&mut self.flows[at].packets));
        let requests = std::mem::take(&mut self.flows[self.keys[&ends]].packets);
        let service = requests.iter().find(|p| p.info.is_request).map(|p| p.info.service);
        let mut packets: Vec<_> = (requests.into_iter().filter(|p| p.info.is_request))
            .map(|packet| (true, packet))
            .chain(
                (answers.into_iter().flatten().filter(|p| p.info.is_response()))
                    .map(|packet| (false, packet)),
            )
            .collect();
        packets.sort_by_key(|(_, packet)| packet.number);
        let mtu = mtu(packets.iter().map(|(_, packet)| packet));
        let alone = packets.iter().filter(|(_, packet)| !packet.unseen.is_certain(mtu));
        let largest = alone.map(|(_, packet)| packet.payload().len()).max().unwrap_or(0);
        let service = service.unwrap_or(Service::Rc);
        let without_bth = self.cut.get(&(ends.from, ends.to)).copied();
        Conversation { ends, service, packets, largest, without_bth }
    }

    /// Returns the flow that has the answers to the requests of `ends`.
    /// `known` may tell the flow; otherwise the flow is taken whose answers fit the most requests.
    fn answers(&self, ends: &Ends, known: &[Responder]) -> Option<usize> {
        let back = |flow: &Flow| flow.ends.from == ends.to && flow.ends.to == ends.from;
        let responder = |it: &&Responder| Address::Ip(it.address) == ends.to && it.qpn == ends.qp;
        if let Some(qp) = known.iter().find(responder).and_then(|it| it.peer_qpn) {
            return self.flows.iter().position(|flow| back(flow) && flow.ends.qp == qp);
        }
        let requests = &self.flows[*self.keys.get(ends)?].packets;
        let psns: Vec<_> = (requests.iter().filter(|packet| packet.info.is_request))
            .map(|packet| (packet.number, packet.bth.psn, packet.last_psn()))
            .collect();
        let mut best = (0, None);
        for (at, flow) in self.flows.iter().enumerate().filter(|(_, flow)| back(flow)) {
            match fitting(&psns, &flow.packets) {
                count if count > best.0 => best = (count, Some(at)),
                count if count == best.0 => best.1 = None,
                _ => {}
            }
        }
        best.1
    }
}

impl Conversation {
    /// Returns the first frame that prevents sending the first `count` requests as recorded.
    /// `None` if all can be sent. Payload that was not captured does not matter.
    pub fn cut(&self, count: usize) -> Option<Cut> {
        let mtu = mtu(self.packets.iter().map(|(_, packet)| packet));
        let requests: Vec<_> = self.packets.iter().filter(|(is_request, _)| *is_request).collect();
        let end = requests.get(count).map_or(u64::MAX, |(_, packet)| packet.number);
        let psns: HashSet<_> = requests.iter().map(|(_, packet)| packet.bth.psn).collect();
        let first = self.without_bth.filter(|frame| *frame < end).map(Cut::Headers);
        // The request with the highest PSN, and the PSN after it.
        let mut last: Option<(&Packet, Psn)> = None;
        let mut found = None;
        for (is_request, packet) in
            self.packets.iter().take_while(|(_, packet)| packet.number < end)
        {
            if !packet.has_headers {
                found = Some(Cut::Headers(packet.number));
                break;
            }
            if !is_request {
                continue;
            }
            if packet.unseen.is_certain(mtu) {
                found = Some(Cut::Several(packet.number));
                break;
            }
            let psn = packet.bth.psn;
            // The missing requests occur nowhere in the recording, so they were in the truncated frame.
            if let Some((before, next)) = last
                && psn.after(next)
                && before.unseen.most(mtu) > 0
                && !psns.contains(&next)
            {
                found = Some(Cut::Several(before.number));
                break;
            }
            if last.is_none_or(|(_, next)| !psn.before(next)) {
                last = Some((packet, psn.next()));
            }
        }
        [first, found].into_iter().flatten().min_by_key(Cut::frame)
    }
}

impl Cut {
    /// Returns the number of the frame.
    pub fn frame(&self) -> u64 {
        let (Self::Headers(frame) | Self::Several(frame)) = self;
        *frame
    }
}

/// Returns the path MTU, learned from packets that are filled to it.
fn mtu<'a>(packets: impl Iterator<Item = &'a Packet>) -> Option<usize> {
    let is_full = |packet: &&Packet| {
        matches!(packet.info.position, Position::First | Position::Middle)
            && !packet.unseen.is_certain(None)
    };
    packets.filter(is_full).map(|packet| packet.payload().len()).max()
}

/// Counts the answers whose PSN belongs to a request sent before them.
/// `psns` has the frame number, first PSN and last PSN of each request.
fn fitting(psns: &[(u64, Psn, Psn)], packets: &[Packet]) -> usize {
    /// The number of answers examined: enough to tell two connections apart.
    const LOOKED_AT: usize = 64;
    let Some((_, first, _)) = psns.first() else { return 0 };
    let is_fit = |answer: &&Packet| {
        let before = psns.partition_point(|(number, ..)| *number <= answer.number);
        let (psn, last) = (answer.bth.psn, psns[..before].last());
        // Accept one PSN before the first request that was captured.
        psn.diff(*first) >= -1 && last.is_some_and(|(_, _, last)| psn.diff(*last) <= 0)
    };
    let answers = packets.iter().filter(|packet| packet.info.is_response());
    answers.take(LOOKED_AT).filter(is_fit).count()
}

impl Flow {
    fn has_requests(&self) -> bool {
        self.packets.iter().any(|packet| packet.info.is_request)
    }
}

impl Packet {
    fn new(
        number: u64,
        at: Duration,
        frame: &[u8],
        transport: &Transport<'_>,
        info: &'static OpInfo,
    ) -> Self {
        let end = transport.len.saturating_sub(rxe_core::wire::icrc::LEN);
        let captured = frame.get(transport.at..).unwrap_or_default();
        let mut bytes = captured[..captured.len().min(end)].to_vec();
        bytes.resize(end, 0);
        let place = |wanted: &'static Header| {
            let layer = transport.layers.iter().find(|l| l.header.name == wanted.name)?;
            let place = layer.at.checked_sub(transport.at)?;
            (place + wanted.len <= end).then_some(place)
        };
        let address = place(&header::RETH).or_else(|| place(&header::ATOMIC_ETH));
        let places = Places { address, deth: place(&header::DETH), ieth: place(&header::IETH) };
        Self {
            number,
            at,
            bytes: bytes.into(),
            payload: info.header_len..info.header_len + transport.payload_len,
            captured: transport.payload().len(),
            bth: transport.bth,
            info,
            ext: transport.ext,
            is_sound: transport.wrong.is_none(),
            has_headers: transport.has_whole_headers(),
            unseen: transport.unseen,
            icrc: transport.icrc,
            places,
        }
    }

    /// Returns the payload without the pad, with zeros for bytes that were not captured.
    pub(super) fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload.clone()).unwrap_or_default()
    }

    /// Returns the captured bytes of the payload.
    pub(super) fn captured(&self) -> &[u8] {
        self.payload().get(..self.captured).unwrap_or_default()
    }

    /// Returns whether the payload was captured only in part.
    pub(super) fn is_cut(&self) -> bool {
        self.captured < self.payload().len()
    }

    /// Returns the DMA length of the RETH, 8 for an atomic, and 0 for other packets.
    pub(super) fn dma_len(&self) -> u64 {
        match (self.ext.reth, self.ext.atomic) {
            (Some(reth), _) => reth.dma_len.into(),
            (None, Some(_)) => 8,
            (None, None) => 0,
        }
    }

    /// Returns the last PSN that the packet takes with the smallest path MTU.
    fn last_psn(&self) -> Psn {
        let packets = match self.info.kind {
            OpKind::ReadRequest => self.dma_len().div_ceil(256).max(1),
            _ => 1,
        };
        self.bth.psn + (u32::try_from(packets).unwrap_or(1) - 1)
    }

    /// Returns the remote address and key of the packet.
    pub(super) fn remote(&self) -> Option<(u64, u32)> {
        let reth = self.ext.reth.map(|reth| (reth.va, reth.rkey.value()));
        reth.or_else(|| self.ext.atomic.map(|atomic| (atomic.va, atomic.rkey.value())))
    }
}

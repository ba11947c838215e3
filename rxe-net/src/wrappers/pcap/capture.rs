//! The state of a capture between a packet and its file. It holds packets that may still get
//! comments, and blocks that wait for the writing thread.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rxe_core::types::Psn;
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, Frame, IpId, Mac, NetHeader, Packet, UDP_PORT, icrc};

use super::output::Output;
use super::write::{Direction, PacketBlock, PcapWriter};
use crate::backend::MAX_DATAGRAM;

/// The status of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcapStatus {
    /// The number of packets written.
    pub packets: u64,
    /// The number of bytes written.
    pub bytes: u64,
    /// The number of packets missing because they arrived faster than the file was written.
    pub dropped: u64,
    /// The reason why the capture has ended, if it has.
    pub stopped: Option<String>,
}

/// The maximum number of comments kept for packets that are not sent yet. Some may never be sent.
const MAX_ANNOUNCED: usize = 256;

/// The number of bytes collected before they go to the thread, unless traffic pauses earlier.
const GATHERED: usize = 64 << 10;

/// The approximate maximum size of the packets in one call of a backend, in bytes.
const CALL: usize = 1 << 20;

/// The size in bytes of the block with the number of missing packets. Room for it is always
/// reserved.
const STATISTICS: usize = 40;

/// The text in a comment after the number of packets that are missing before its packet.
const MISSING: &str = " packets before this one are missing";

/// Returns how many packets this comment says are missing before its packet, if it says so.
pub fn missing_before(comment: &str) -> Option<u64> {
    let (number, rest) = comment.split_once(MISSING)?;
    rest.starts_with(':').then(|| number.parse().ok()).flatten()
}

/// A capture of one backend.
pub(super) struct Capture {
    /// Writes blocks into memory. `None` when the capture has ended.
    writer: Option<PcapWriter<Vec<u8>>>,
    pub(super) output: Arc<Output>,
    pub(super) path: PathBuf,
    max_bytes: u64,
    /// Packets that are not written yet, because comments may still be added. Their bytes are in
    /// `bytes`.
    held: Vec<HeldFrame>,
    bytes: Vec<u8>,
    /// Comments on packets that are to be sent, by PSN.
    announced: VecDeque<(Psn, String)>,
    /// The PSN of the last NAK that arrived, while its packet is held.
    pub(super) nak: Option<Psn>,
    /// Packets dropped since the last packet that was written.
    dropped: u64,
    /// Whether the file has old content, which is kept until the first packet.
    patient: bool,
    /// Whether another process reads the capture. If so, packets are not even inspected while the
    /// queue is full.
    live: bool,
    pub(super) status: PcapStatus,
}

/// A packet that is not written yet.
struct HeldFrame {
    at: Duration,
    direction: Direction,
    /// The frame's range in `Capture::bytes`.
    from: usize,
    to: usize,
    /// The index of the packet's burst in the batch, if it is to be sent with one.
    burst: Option<usize>,
    /// Whether the packet is the first of its frame.
    first: bool,
    psn: Option<Psn>,
    comments: Vec<String>,
}

impl Capture {
    /// Creates a capture into a file. If `patient`, nothing is written before the first packet.
    pub(super) fn of_file(
        writer: PcapWriter<Vec<u8>>,
        output: Arc<Output>,
        path: PathBuf,
        max_bytes: u64,
        patient: bool,
    ) -> Self {
        Self {
            writer: Some(writer),
            output,
            path,
            max_bytes,
            held: Vec::new(),
            bytes: Vec::new(),
            announced: VecDeque::new(),
            nak: None,
            dropped: 0,
            patient,
            live: false,
            status: PcapStatus::default(),
        }
    }

    /// Creates a capture that another process reads. It has packet blocks only, without section
    /// header and interface.
    pub(super) fn live(output: Arc<Output>) -> Self {
        let writer = PcapWriter::continued(Vec::new());
        Self { live: true, ..Self::of_file(writer, output, PathBuf::new(), u64::MAX, false) }
    }

    /// Returns whether packets should be inspected: there is room for the packets of one call.
    pub(super) fn accepts(&self) -> bool {
        !self.live || self.writer.is_some() && self.output.has_room(CALL)
    }

    /// Counts packets that passed without being captured.
    pub(super) fn count_missed(&mut self, packets: usize) {
        self.dropped += packets as u64;
        self.status.dropped += packets as u64;
        self.output.add_dropped(packets);
    }

    /// Holds the packets of a frame that has arrived or is to be sent. `burst` is the index of the
    /// frame's burst in the batch; an outbound frame without a burst was sent already.
    pub(super) fn hold(&mut self, direction: Direction, burst: Option<usize>, frame: &Frame<'_>) {
        if self.writer.is_none() {
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for (index, (net, packet)) in frame.packets().enumerate() {
            if packet.len() > MAX_DATAGRAM {
                // The packet came through shared memory, where another process may write any
                // length.
                self.count_missed(1);
                continue;
            }
            let net = with_id(net, packet);
            let from = self.bytes.len();
            let ethernet = Ethernet { src: mac(net.src), dst: mac(net.dst), ..Ethernet::default() };
            // As on the wire, only IPv6 packets have a UDP checksum.
            let checksum = if net.dst.is_ipv4() { UdpChecksum::None } else { UdpChecksum::Compute };
            emit_ethernet(&ethernet, &net, UDP_PORT, checksum, packet, &mut self.bytes);
            let psn = Packet::parse(packet).ok().map(|p| p.psn());
            self.held.push(HeldFrame {
                at,
                direction,
                from,
                to: self.bytes.len(),
                burst,
                first: index == 0,
                psn,
                comments: Vec::new(),
            });
        }
    }

    /// Adds a comment to the last held inbound packet with this PSN, or to the first of its frame.
    pub(super) fn comment_received(&mut self, psn: Option<Psn>, text: String) {
        let mut inbound =
            self.held.iter_mut().rev().filter(|held| held.direction == Direction::Inbound);
        let found = match psn {
            Some(_) => inbound.find(|held| held.psn == psn),
            None => inbound.find(|held| held.first),
        };
        if let Some(held) = found {
            held.comments.push(text);
        }
    }

    /// Adds a comment to the last NAK that got a comment, if it is still held.
    pub(super) fn comment_nak(&mut self, text: String) {
        if let Some(psn) = self.nak.take() {
            self.comment_received(Some(psn), text);
        }
    }

    /// Adds a comment to the next packet with this PSN that is sent.
    pub(super) fn announce(&mut self, psn: Psn, text: String) {
        if self.announced.len() == MAX_ANNOUNCED {
            self.announced.pop_front();
        }
        self.announced.push_back((psn, text));
    }

    /// Removes held packets of bursts that were not sent: those with index `bursts` and above.
    pub(super) fn keep_bursts(&mut self, bursts: usize) {
        self.held.retain(|held| held.burst.is_none_or(|burst| burst < bursts));
    }

    /// Writes the held packets, which get no more comments.
    pub(super) fn write_held(&mut self) {
        self.nak = None;
        for mut held in std::mem::take(&mut self.held) {
            if held.direction == Direction::Outbound
                && let Some(psn) = held.psn
            {
                while let Some(at) = self.announced.iter().position(|(of, _)| *of == psn) {
                    held.comments.extend(self.announced.remove(at).map(|(_, text)| text));
                }
            }
            self.write(held);
        }
        self.bytes.clear();
    }

    fn write(&mut self, mut held: HeldFrame) {
        let Some(writer) = &mut self.writer else { return };
        if self.dropped > 0 {
            held.comments.push(format!(
                "{}{MISSING}: the capture was written more slowly than they came",
                self.dropped
            ));
        }
        let frame = &self.bytes[held.from..held.to];
        let comments: usize = held.comments.iter().map(|c| c.len() + 8).sum();
        // The fixed parts of a block have at most 64 bytes.
        let bytes = frame.len() + comments + 64;
        if writer.written() + (bytes + STATISTICS) as u64 > self.max_bytes {
            let max = self.max_bytes;
            return self.stop(format!("it has reached its limit of {max} bytes"));
        }
        if !self.output.has_room(writer.get_ref().len() + bytes) {
            return self.count_missed(1);
        }
        let block = PacketBlock {
            at: held.at,
            interface: 0,
            direction: held.direction,
            frame,
            comments: &held.comments,
        };
        match writer.append(&block) {
            Ok(()) => {
                self.dropped = 0;
                self.status.packets += 1;
                self.status.bytes = writer.written();
            }
            Err(e) => self.stop(e.to_string()),
        }
        if self.writer.as_ref().is_some_and(|writer| writer.get_ref().len() >= GATHERED) {
            self.submit();
        }
    }

    /// Hands the collected bytes to the thread.
    pub(super) fn submit(&mut self) {
        if self.patient && self.status.packets == 0 {
            return;
        }
        if let Some(writer) = &mut self.writer {
            let bytes = writer.take();
            self.status.bytes = writer.written();
            if !bytes.is_empty() {
                self.output.push(bytes);
                self.check_output();
            }
        }
    }

    /// Ends the capture if the file could not be written.
    pub(super) fn check_output(&mut self) {
        if self.writer.is_some()
            && let Some(why) = self.output.failed()
        {
            self.writer = None;
            self.status.stopped = Some(why);
        }
    }

    /// Ends the capture when its backend is dropped.
    pub(super) fn finish(&mut self) {
        self.write_held();
        self.write_dropped();
        self.end();
        self.output.close();
    }

    fn write_dropped(&mut self) {
        if let Some(writer) = &mut self.writer
            && self.status.dropped > 0
        {
            // Writing into memory does not fail.
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let _ = writer.write_statistics(0, at, self.status.dropped);
        }
    }

    /// Hands over the collected packets, and accepts no more.
    pub(super) fn end(&mut self) {
        self.write_held();
        self.submit();
        self.writer = None;
    }

    /// Ends the capture with an error, and reports the error once.
    fn stop(&mut self, why: String) {
        self.write_dropped();
        self.submit();
        if self.writer.take().is_some() {
            self.output.log(format!("rxe: the capture {} ends: {why}\n", self.path.display()));
            self.status.stopped = Some(why);
        }
    }
}

/// Returns the headers with the IPv4 ID that the ICRC was computed for, if it can be recovered.
fn with_id(net: NetHeader, packet: &[u8]) -> NetHeader {
    match net.id {
        IpId::Hidden => match icrc::recover_id(&net, packet) {
            Some((id, flags)) => NetHeader { id: IpId::Known { id, flags }, ..net },
            None => net,
        },
        _ => net,
    }
}

/// Derives a locally administered Ethernet address from the last four bytes of an IP address. It
/// differs for most addresses.
fn mac(ip: IpAddr) -> Mac {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    Mac([0x02, 0x00, a, b, c, d])
}

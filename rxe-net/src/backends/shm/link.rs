//! One direction of traffic between two processes. The sender creates a ring and offers it over a
//! connection; the end of the connection tells either process that the other is gone.
//!
//! An event descriptor that comes with the ring wakes the receiver. The sender signals it only
//! while the receiver says that it sleeps ([`Incoming::prepare_sleep`]), so two polling ends make
//! no system call for a message.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rxe_core::mem::{AccessError, Source};
use rxe_core::wire::{Bth, Coalesced, Frame, NetHeader};
use smallvec::SmallVec;

use super::registered::Registered;
use super::ring::{ALIGN, Broken, CAPACITY, Consumer, HEAD, MAX_RECORD, Producer};
use super::wake::WakeUp;
use crate::host::message;
use rxe_sys::CheckedFd;
use rxe_sys::unix::UnixSocket;

/// The message that accompanies the descriptors of a ring and its wake-up. The last byte is the
/// version of the ring's format, which must be the same at both ends.
pub(super) const OFFER: [u8; 4] = *b"rxm\x06";

/// The tag of a record that holds a frame in the format of [`message`].
pub(super) const FRAME: u32 = 1;

/// The tag of a record with one packet, or with a coalesced segment of packets. The packets have no
/// pad and no ICRC ([`Coalesced`]). In the ring it is [`PACKET`] with these fields added. The
/// record consists of the header of [`message`] unless that equals the header of the last packet,
/// the packet's headers, and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketTag {
    /// The record begins with a header of [`message`].
    has_header: bool,
    /// The payload begins at a cache line.
    aligned: bool,
    /// The length of the packet's headers in bytes.
    head_len: usize,
    /// The number of packets, at least 1.
    count: u16,
}

const PACKET: u32 = 2;

impl PacketTag {
    const HAS_HEADER: u32 = 1 << 8;
    const ALIGNED: u32 = 1 << 9;
    /// The payload length in bytes from which payloads begin at a cache line, because copies are
    /// then faster.
    const ALIGN_FROM: usize = 256;

    /// Returns the number of bytes in headers and payload of all packets. Every packet but one
    /// counts with a BTH alone, although it may have an XRCETH or an AETH.
    fn bytes(self, payload: usize) -> usize {
        self.head_len + usize::from(self.count - 1) * Bth::LEN + payload
    }

    fn to_word(self) -> u32 {
        let head_len = u32::try_from(self.head_len).unwrap_or(u32::from(u8::MAX));
        let flag = |on: bool, bit| if on { bit } else { 0 };
        let flags = flag(self.has_header, Self::HAS_HEADER) | flag(self.aligned, Self::ALIGNED);
        PACKET | flags | head_len << 16 | u32::from(self.count - 1) << 24
    }

    /// Parses a tag. Returns `None` if the record does not hold packets of this kind.
    fn parse(word: u32) -> Option<Self> {
        let [kind, _, head_len, more] = word.to_le_bytes();
        let (head_len, count) = (usize::from(head_len), u16::from(more) + 1);
        let (has_header, aligned) = (word & Self::HAS_HEADER != 0, word & Self::ALIGNED != 0);
        let tag = Self { has_header, aligned, head_len, count };
        (u32::from(kind) == PACKET && tag.to_word() == word && head_len <= Coalesced::MAX_HEAD)
            .then_some(tag)
    }

    /// Returns the offset of the packet's headers in the record.
    fn head_at(self) -> usize {
        if self.has_header { message::LEN } else { 0 }
    }

    /// Returns the offset of the payload in the record.
    fn payload_at(self) -> usize {
        let end = self.head_at() + self.head_len;
        if self.aligned { (HEAD + end).next_multiple_of(ALIGN) - HEAD } else { end }
    }
}

/// The approximate number of packets handed to the sink at a time.
const BATCH: usize = 16;
/// The maximum payload of a coalesced segment in bytes. A larger one would delay the first packet.
pub(super) const MAX_COALESCED: usize = 32 << 10;

/// The sender's end of a ring.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Producer,
    wake: WakeUp,
    pub(super) line: UnixSocket,
    /// The ring has records that the receiver may not have been told of.
    unsignalled: bool,
    congestion: Congestion,
    /// The header of the last direct packet.
    net: Option<NetHeader>,
}

/// How well the receiver keeps up with the sender.
#[derive(Clone, Copy, Debug)]
enum Congestion {
    /// The ring has not been full since it was last at most half full.
    None,
    /// The ring was full at this time, when the receiver had taken this many bytes.
    Since(Instant, u64),
    /// The receiver took next to nothing while the sender waited. It had taken this many bytes
    /// then.
    Stopped(u64),
}

/// A receiver that takes fewer bytes than this within its timeout counts as stopped, until it has
/// taken that many. Without such a threshold, a receiver that takes a record now and then would
/// slow all other destinations.
const PROGRESS: u64 = 256 << 10;

/// The result of pushing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// The frame is in the ring.
    Sent,
    /// The ring is full: try again soon.
    Full,
    /// The ring is full and its receiver does not empty it: the frame is lost.
    Lost,
}

impl Outgoing {
    /// Offers a ring to the process that listens on this path. Returns `None` if no process of this
    /// user does.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let Ok(line) = UnixSocket::connect(path) else { return Ok(None) };
        Self::offer(line).map(Some)
    }

    /// Offers a ring over this connection.
    pub(super) fn offer(line: UnixSocket) -> io::Result<Self> {
        let (ring, memory) = Producer::create()?;
        let memory = CheckedFd::new(memory);
        let wake = WakeUp::new()?;
        line.send(&OFFER, &[memory.as_fd(), wake.as_fd()])?;
        Ok(Self { ring, wake, line, unsignalled: false, congestion: Congestion::None, net: None })
    }

    /// Puts a frame into the ring if there is room. A receiver gets `timeout` to make room: nothing
    /// slows a sender of unreliable messages, and when two processes share a CPU, the messages sent
    /// while the other does not run would be lost. A receiver that exceeds the timeout is not
    /// waited for again until it has made progress.
    pub(super) fn push(&mut self, frame: &Frame<'_>, timeout: Duration) -> Result<Pushed, Broken> {
        let header = message::emit(frame);
        let sent = self.ring.push(FRAME, [&header, frame.payload])?;
        self.unsignalled |= sent;
        if sent && matches!(self.congestion, Congestion::None) {
            return Ok(Pushed::Sent);
        }
        self.ring.refresh_tail()?;
        let taken = self.ring.taken();
        let progress = |before: u64| taken.wrapping_sub(before) >= PROGRESS;
        self.congestion = match self.congestion {
            _ if self.ring.free()? >= CAPACITY / 2 => Congestion::None,
            Congestion::None => Congestion::Since(Instant::now(), taken),
            Congestion::Since(at, before) if at.elapsed() >= timeout && !progress(before) => {
                Congestion::Stopped(taken)
            }
            Congestion::Since(at, _) if at.elapsed() >= timeout => {
                Congestion::Since(Instant::now(), taken)
            }
            Congestion::Stopped(before) if progress(before) => {
                Congestion::Since(Instant::now(), taken)
            }
            same => same,
        };
        Ok(match self.congestion {
            _ if sent => Pushed::Sent,
            Congestion::Stopped(_) => Pushed::Lost,
            _ => Pushed::Full,
        })
    }

    /// Puts `count` packets without pad and ICRC into the ring, at most 256. If there is more than
    /// one, their payload has at most [`MAX_COALESCED`] bytes. The payload is copied directly into
    /// the ring.
    #[inline]
    pub(super) fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<DirectSend, SendError> {
        let len = payload.len();
        let has_header = self.net.as_ref() != Some(net);
        let aligned = len >= PacketTag::ALIGN_FROM;
        let tag = PacketTag { has_header, aligned, head_len: head.len(), count };
        let Some(record) = self.ring.reserve(tag.payload_at() + len)? else {
            return Ok(DirectSend::NoRoom);
        };
        if tag.has_header {
            record.write(0, &message::emit_header(net, 1))?;
        }
        record.write(tag.head_at(), head)?;
        payload.write_to(&[record.span(tag.payload_at(), len)]).map_err(SendError::Payload)?;
        record.commit(tag.to_word())?;
        if tag.has_header {
            self.net = Some(*net);
        }
        self.unsignalled = true;
        Ok(DirectSend::Sent(tag.bytes(len)))
    }

    /// Returns whether the receiver has taken nothing so far.
    pub(super) fn is_untouched(&mut self) -> bool {
        self.ring.refresh_tail().is_ok() && self.ring.taken() == 0
    }

    /// Wakes the receiver if it sleeps and there are new records.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.unsignalled) && self.ring.must_wake() {
            self.wake.signal()?;
        }
        Ok(())
    }
}

/// The result of sending packets without pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectSend {
    /// The packets are in the ring; this is the number of their bytes.
    Sent(usize),
    /// The ring has no room now.
    NoRoom,
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendError {
    /// The payload could not be read.
    Payload(AccessError),
    /// The ring cannot be used any more.
    Broken,
}

impl From<Broken> for SendError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl AsFd for Outgoing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.as_fd()
    }
}

/// The receiver's end of a ring.
#[derive(Debug)]
pub(super) struct Incoming {
    ring: Consumer,
    wake: Registered<WakeUp>,
    pub(super) line: Registered<UnixSocket>,
    /// The destination of the last frame; a sender has one ring for each address. `None` before the
    /// first frame.
    pub(super) address: Option<IpAddr>,
    /// The sender was asked to signal the next record.
    asleep: bool,
    /// `wake` is readable, or will be soon: the sender has cleared the flag.
    signalled: bool,
    /// The header of the last direct packet.
    net: Option<NetHeader>,
    /// The sender is gone: its remaining records are taken up to this place in the ring.
    end: Option<u64>,
}

/// A ring that was offered and not accepted yet.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) ring: Consumer,
    pub(super) wake: WakeUp,
}

impl Incoming {
    /// Accepts the offer that has arrived over this connection. Returns `None` if there is none
    /// yet. Fails if its descriptors are too many for this process.
    pub(super) fn accept(line: &UnixSocket) -> io::Result<Option<Offered>> {
        let mut buf = [0; OFFER.len() + 1];
        let Some(offer) = line.receive(&mut buf)? else { return Ok(None) };
        let refuse = || io::Error::from(io::ErrorKind::InvalidData);
        // Checked, because the program may close all descriptors at any moment.
        let fds: Vec<_> = offer.fds.into_iter().map(CheckedFd::new).collect();
        if offer.lost_fds {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        if buf[..offer.len] != OFFER {
            return Err(refuse());
        }
        let [memory, wake] = <[CheckedFd; 2]>::try_from(fds).map_err(|_| refuse())?;
        let (ring, wake) = (Consumer::open(&memory)?, WakeUp::adopt(wake)?);
        Ok(Some(Offered { ring, wake }))
    }

    /// Creates the receiver's end. `wake` is the wake-up of the offer.
    pub(super) fn new(
        ring: Consumer,
        wake: Registered<WakeUp>,
        line: Registered<UnixSocket>,
    ) -> Self {
        Self {
            ring,
            wake,
            line,
            address: None,
            asleep: false,
            signalled: false,
            net: None,
            end: None,
        }
    }

    /// Returns whether the sender is gone and all its records are taken. After its end, at most one
    /// lap of the ring can hold valid records; the limit holds even if the ring's contents claim
    /// more.
    pub(super) fn is_over(&mut self) -> bool {
        if !is_gone(&self.line) {
            return false;
        }
        let end = *self.end.get_or_insert(self.ring.place() + CAPACITY as u64);
        self.ring.is_empty() || self.ring.place() >= end
    }

    /// Hands about `budget` packets to `sink`. Returns the number of packets and bytes.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        buf: &mut [u8; MAX_RECORD],
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<(usize, usize), Broken> {
        let (mut packets, mut bytes) = (0, 0);
        while packets < budget
            && let Some((count, len)) = self.receive_next(budget - packets, buf, sink)?
        {
            packets += count;
            bytes += len;
        }
        Ok((packets, bytes))
    }

    /// Hands a frame that was copied out of its record to `sink`.
    fn receive_frame(
        &mut self,
        copy: &[u8],
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<(usize, usize), Broken> {
        let frame = message::parse(copy).ok_or(Broken)?;
        self.address = Some(frame.net.dst);
        sink(&frame);
        Ok((frame.count(), frame.payload.len()))
    }

    /// Hands the packets of the next records with the same header to `sink`. Their payloads stay in
    /// the ring. If the next record holds a frame, hands over that frame instead. Returns `None` if
    /// there is no record.
    fn receive_next(
        &mut self,
        budget: usize,
        buf: &mut [u8; MAX_RECORD],
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<Option<(usize, usize)>, Broken> {
        let mut packets = SmallVec::<[Coalesced<'_>; BATCH]>::new();
        let (mut count, mut bytes) = (0, 0);
        let mut cursor = self.ring.cursor();
        let mut place = cursor.place();
        while count < budget.min(BATCH) {
            let Some(record) = cursor.next()? else {
                if packets.is_empty() {
                    // A lone skip record may have been passed: release it, because the sender may
                    // wait for its room.
                    let place = cursor.place();
                    drop(packets);
                    self.ring.release(place)?;
                    return self.ring.publish_tail().map(|()| None);
                }
                break;
            };
            let Some(tag) = PacketTag::parse(record.tag) else {
                if !packets.is_empty() {
                    break;
                }
                if record.tag != FRAME {
                    return Err(Broken);
                }
                let copy = &mut buf[..record.len()];
                record.read(0, copy)?;
                let place = cursor.place();
                drop(packets);
                self.ring.release(place)?;
                return self.receive_frame(copy, sink).map(Some);
            };
            if tag.has_header && !packets.is_empty() {
                break;
            }
            let payload_len = record.len().checked_sub(tag.payload_at()).ok_or(Broken)?;
            if tag.has_header {
                let mut header = [0; message::LEN];
                record.read(0, &mut header)?;
                let (net, _) = message::parse_header(&header).ok_or(Broken)?;
                self.net = Some(net);
            }
            // The headers are copied once and checked in the copy, because the sender may change
            // the record.
            let read = |head: &mut [u8]| record.read(tag.head_at(), head);
            let payload = record.span(tag.payload_at(), payload_len);
            let packet = Coalesced::with_head(tag.head_len, read, payload, tag.count)?;
            packets.push(packet.ok_or(Broken)?);
            count += usize::from(tag.count);
            bytes += tag.bytes(payload_len);
            place = cursor.place();
        }
        let net = self.net.ok_or(Broken)?;
        self.address = Some(net.dst);
        sink(&Frame { coalesced: &packets, ..Frame::single(net, &[]) });
        drop(packets);
        self.ring.release(place)?;
        Ok(Some((count, bytes)))
    }

    /// Asks the sender to signal the next record if the ring is empty. Called when a thread is
    /// about to sleep. Returns whether there is a record, which the caller must then signal by
    /// other means.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        if self.ring.is_empty() {
            // If the ring is broken, the next read of a record reports it.
            let _ = self.ring.publish_tail();
            let answered = self.asleep && !self.ring.is_asleep();
            if self.signalled || answered {
                self.signalled = !self.wake.clear();
            }
            // The sender may have answered between the two reads of the flag.
            self.signalled |= !self.ring.set_asleep(true) && self.asleep && !answered;
            self.asleep = true;
        }
        !self.ring.is_empty()
    }

    /// Tells the sender that no thread sleeps, so it need not signal.
    pub(super) fn end_sleep(&mut self) {
        let was_asleep = self.ring.set_asleep(false);
        self.signalled |= std::mem::take(&mut self.asleep) && !was_asleep;
    }

    /// Makes the wake-up block every writer.
    #[cfg(test)]
    pub(super) fn spoil_wake(&self) {
        self.wake.spoil();
    }
}

/// Returns whether a connection has ended that carries no more messages.
pub(super) fn is_gone(line: &UnixSocket) -> bool {
    // Any further message violates the protocol, so it counts as the end too.
    !matches!(line.receive(&mut [0; 1]), Ok(None))
}

#[cfg(test)]
mod tests {
    use rxe_core::wire::{Opcode, emit, icrc};

    use super::*;
    use crate::backends::shm::ring::size_of_record;

    #[test]
    fn a_short_message_is_one_cache_line() {
        for opcode in [Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_ONLY] {
            let head_len = emit::len(opcode, 0) - icrc::LEN;
            // The previous packet had the same header.
            let tag = PacketTag { has_header: false, aligned: false, head_len, count: 1 };
            assert_eq!(size_of_record(tag.payload_at() + 8), 64, "{opcode:?}");
        }
    }
}

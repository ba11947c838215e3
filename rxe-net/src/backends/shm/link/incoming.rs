//! The receiver's end of a ring: takes frames and packets out of it, and sleeps until there are more.
//! The sender is not trusted: each value is read once and checked.

use std::io;
use std::net::IpAddr;

use rxe_core::wire::{Coalesced, Frame, NetHeader};
use rxe_sys::CheckedFd;
use rxe_sys::unix::UnixSocket;
use smallvec::SmallVec;

use super::tag::PacketTag;
use super::{FRAME, OFFER, is_gone};
use crate::backends::shm::registered::Registered;
use crate::backends::shm::ring::{Broken, CAPACITY, Consumer, MAX_RECORD};
use crate::backends::shm::wake::WakeUp;
use crate::host::message;

/// The approximate number of packets handed to the sink at a time.
const BATCH: usize = 16;
/// The receiver's end of a ring.
#[derive(Debug)]
pub(in crate::backends::shm) struct Incoming {
    ring: Consumer,
    wake: Registered<WakeUp>,
    pub(in crate::backends::shm) line: Registered<UnixSocket>,
    /// The destination of the last frame; a sender has one ring for each address. `None` before the
    /// first frame.
    pub(in crate::backends::shm) address: Option<IpAddr>,
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
pub(in crate::backends::shm) struct Offered {
    pub(in crate::backends::shm) ring: Consumer,
    pub(in crate::backends::shm) wake: WakeUp,
}

impl Incoming {
    /// Accepts the offer that has arrived over this connection. Returns `None` if there is none
    /// yet. Fails if its descriptors are too many for this process.
    pub(in crate::backends::shm) fn accept(line: &UnixSocket) -> io::Result<Option<Offered>> {
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
    pub(in crate::backends::shm) fn new(
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
    pub(in crate::backends::shm) fn is_over(&mut self) -> bool {
        if !is_gone(&self.line) {
            return false;
        }
        let end = *self.end.get_or_insert(self.ring.place() + CAPACITY as u64);
        self.ring.is_empty() || self.ring.place() >= end
    }

    /// Hands about `budget` packets to `sink`. Returns the number of packets and bytes.
    pub(in crate::backends::shm) fn receive(
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
    pub(in crate::backends::shm) fn prepare_sleep(&mut self) -> bool {
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
    pub(in crate::backends::shm) fn end_sleep(&mut self) {
        let was_asleep = self.ring.set_asleep(false);
        self.signalled |= std::mem::take(&mut self.asleep) && !was_asleep;
    }

    /// Makes the wake-up block every writer.
    #[cfg(test)]
    pub(in crate::backends::shm) fn spoil_wake(&self) {
        self.wake.spoil();
    }
}

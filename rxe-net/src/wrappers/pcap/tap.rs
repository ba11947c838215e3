//! Captures the packets that a backend receives, sends, and moves on its direct path.
//!
//! While a live capture has no room, packets bypass it and are only counted.

use rxe_core::mem::{AccessError, Source};
use rxe_core::wire::icrc::Prefix;
use rxe_core::wire::{Direct, Frame, NetHeader, Placed, TxBatch, whole_len, write_whole};

use super::handle::PcapHandle;
use super::write::Direction;
use crate::backend::{Backend, SendStatus};
use crate::error::NetError;

/// The point where a capture sees the packets of one backend.
pub struct Tap {
    handle: PcapHandle,
    /// The buffer in which headers, payload and ICRC of a packet are put together.
    whole: Vec<u8>,
}

impl Tap {
    pub(super) fn new(handle: PcapHandle) -> Self {
        Self { handle, whole: Vec::new() }
    }

    /// Returns a handle for comments on packets.
    pub fn handle(&self) -> PcapHandle {
        self.handle.clone()
    }

    /// Returns whether the capture has ended, so that the tap can be dropped.
    pub fn has_ended(&self) -> bool {
        self.handle.lock().output.has_ended()
    }

    /// Calls [`Backend::receive`] and captures the packets.
    ///
    /// # Errors
    /// Fails if [`Backend::receive`] fails.
    pub fn receive<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let Self { handle, whole } = self;
        let accepts = {
            let mut capture = handle.lock();
            capture.write_held();
            capture.accepts()
        };
        let mut missed = 0;
        let got = backend.receive(budget, &mut |frame| {
            if !accepts {
                missed += frame.count();
                return sink(frame);
            }
            // A payload in shared memory may change until it is copied, so the sink gets the
            // captured copy.
            frame.for_each_whole(whole, &mut |frame| {
                handle.lock().hold(Direction::Inbound, None, frame);
                // The lock is released first: the sink may comment on the frame.
                sink(frame);
            });
        });
        let mut capture = handle.lock();
        if missed > 0 {
            capture.count_missed(missed);
        }
        if matches!(got, Ok(0)) {
            capture.write_held();
            capture.submit();
        }
        got
    }

    /// Calls [`Backend::send`] and captures the packets that it sends.
    ///
    /// # Errors
    /// Fails if [`Backend::send`] fails.
    pub fn send<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        batch: &mut TxBatch,
    ) -> Result<SendStatus, NetError> {
        let before = batch.pending().len();
        let accepts = {
            let mut capture = self.handle.lock();
            capture.write_held();
            let accepts = capture.accepts();
            if accepts {
                for (burst, frame) in batch.frames().enumerate() {
                    capture.hold(Direction::Outbound, Some(burst), &frame);
                }
            }
            accepts
        };
        let packets = |batch: &TxBatch| batch.pending().iter().map(|b| b.packets()).sum::<usize>();
        let pending = if accepts { 0 } else { packets(batch) };
        let result = backend.send(batch);
        let mut capture = self.handle.lock();
        if accepts {
            // Bursts that were not sent will be passed to `send` again.
            capture.keep_bursts(before - batch.pending().len());
            capture.write_held();
        } else {
            capture.count_missed(pending - packets(batch));
        }
        result
    }

    /// Calls `send` with the backend's direct path ([`Backend::direct`]), if it has one.
    pub fn with_direct<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        send: impl FnOnce(Option<&mut dyn Direct>),
    ) {
        let accepts = self.handle.lock().accepts();
        match backend.direct() {
            None => send(None),
            Some(inner) => {
                let Self { handle, whole } = self;
                let mut direct = Tapped { inner, handle, whole, accepts, missed: 0 };
                send(Some(&mut direct));
                if direct.missed > 0 {
                    direct.handle.lock().count_missed(direct.missed);
                }
            }
        }
    }
}

/// A direct path whose packets are captured.
struct Tapped<'t> {
    inner: &'t mut dyn Direct,
    handle: &'t PcapHandle,
    whole: &'t mut Vec<u8>,
    accepts: bool,
    missed: usize,
}

impl Direct for Tapped<'_> {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        debug_assert_eq!(count, 1, "there are no coalesced segments");
        if !self.accepts {
            let placed = self.inner.send(net, head, payload, count)?;
            self.missed += usize::from(placed == Placed::Sent);
            return Ok(placed);
        }
        self.whole.resize(whole_len(head.len(), payload.len()), 0);
        write_whole(&Prefix::new(net), head, payload, self.whole)?;
        // The program may change the payload meanwhile, so the captured copy is sent.
        let copy = &self.whole[head.len()..head.len() + payload.len()];
        let placed = self.inner.send(net, head, &Source::Bytes(copy), count)?;
        if placed == Placed::Sent {
            let frame = Frame::single(*net, self.whole);
            self.handle.lock().hold(Direction::Outbound, None, &frame);
        }
        Ok(placed)
    }
}

//! The fault-injecting backend. A timer descriptor becomes readable when a delayed packet is due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rxe_core::types::Time;
use rxe_core::wire::{Frame, TxBatch, TxLimits};

use super::path::FaultPath;
use super::report::{FaultCounts, FaultReport};
use super::rules::FaultRule;
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::sharing::Sharing;
use crate::wrappers::pcap::Direction;
use rxe_sys::SharedFd;
use rxe_sys::TimerFd;

/// A backend that injects faults into the packets that it receives and sends.
///
/// Packets are sent one by one (`burst_segments` is 1). A burst with missing packets would assign
/// other IPv4 IDs than those that the ICRCs cover. There is no direct path into shared memory
/// either: packets to processes on this host are copied into a ring whole, with their ICRCs.
pub struct Fault<B> {
    pub(super) inner: B,
    start: Instant,
    inbound: FaultPath,
    outbound: FaultPath,
    rules: Arc<[FaultRule]>,
    counts: Arc<FaultCounts>,
    /// Packets that are due but not yet accepted by `inner`.
    ready: TxBatch,
    /// Readable when a delayed packet is due.
    timer: TimerFd,
    capabilities: Capabilities,
    packets_received: u64,
    bytes_received: u64,
}

/// The maximum number of packets that may be in transit in one direction. Others are lost.
pub(super) const MAX_PACKETS: usize = 1 << 16;

/// The time after which packets that `inner` could not send are sent again.
const RETRY: Duration = Duration::from_millis(1);

impl<B: Backend> Fault<B> {
    /// Creates a backend that applies the rules to the packets of `inner`. The same seed and the
    /// same packets give the same faults.
    ///
    /// # Errors
    /// Fails if the process or the kernel has no file descriptor left.
    pub fn new(inner: B, seed: u64, rules: &[FaultRule]) -> Result<Self, NetError> {
        let mut capabilities = inner.capabilities().clone();
        capabilities.tx.burst_segments = 1;
        let rules: Arc<[FaultRule]> = rules.into();
        let counts = Arc::new(FaultCounts::new(rules.len()));
        let path = |direction| {
            let (rules, counts) = (Arc::clone(&rules), Arc::clone(&counts));
            FaultPath::with_counts(seed, rules, direction, counts, MAX_PACKETS)
        };
        Ok(Self {
            start: Instant::now(),
            inbound: path(Direction::Inbound),
            outbound: path(Direction::Outbound),
            ready: TxBatch::new(TxLimits { burst_segments: 1, ..capabilities.tx }),
            timer: TimerFd::new()?,
            capabilities,
            packets_received: 0,
            bytes_received: 0,
            rules,
            counts,
            inner,
        })
    }

    /// Returns a report of what the rules do. It remains readable after this backend is dropped.
    pub fn report(&self) -> FaultReport {
        FaultReport::new(Arc::clone(&self.rules), Arc::clone(&self.counts))
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Sends packets that are due through `inner`.
    fn pass_out(&mut self, now: Time) -> Result<SendStatus, NetError> {
        loop {
            while !self.ready.is_full()
                && let Some((net, bytes)) = self.outbound.pop(now)
            {
                self.ready.push(net, bytes.len(), |_, buf| buf.extend_from_slice(&bytes));
            }
            if self.ready.is_empty() {
                return Ok(SendStatus::Done);
            }
            let status = self.inner.send(&mut self.ready)?;
            if status != SendStatus::Done {
                return Ok(status);
            }
        }
    }

    fn set_timer(&self, now: Time) {
        let next = [self.inbound.next_delivery(), self.outbound.next_delivery()];
        let next = next.into_iter().flatten().min();
        self.timer.set_after(next.map(|at| at.since(now)));
    }
}

impl<B: Backend> Backend for Fault<B> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let now = self.now();
        let inbound = &mut self.inbound;
        let mut whole = Vec::new();
        let arrived = self.inner.receive(budget, &mut |frame| {
            frame.for_each_whole(&mut whole, &mut |frame| inbound.take(now, frame));
        })?;
        let now = self.now();
        let blocked = self.pass_out(now)? != SendStatus::Done;
        let mut packets = 0;
        while let Some((net, bytes)) = self.inbound.pop(now) {
            packets += 1;
            self.bytes_received += bytes.len() as u64;
            sink(&Frame::single(net, &bytes));
        }
        self.packets_received += packets as u64;
        if blocked {
            // Packets that are due cannot be sent, so an immediate wake-up would be useless.
            self.timer.set_after(Some(RETRY));
        } else {
            self.set_timer(now);
        }
        // If every packet of this call was lost or delayed, more may wait in `inner`.
        Ok(if packets == 0 { arrived } else { packets })
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.now();
        let status = self.pass_out(now)?;
        if status != SendStatus::Done {
            return Ok(status);
        }
        for frame in batch.frames() {
            self.outbound.take(now, &frame);
        }
        batch.mark_sent(batch.pending().len());
        // The whole batch is accepted. Packets that cannot be sent now are sent when the timer
        // expires.
        match self.pass_out(now)? {
            SendStatus::Done => self.set_timer(now),
            SendStatus::Blocked | SendStatus::Congested => self.timer.set_after(Some(RETRY)),
        }
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.inner.for_each_fd(f);
        f(self.timer.shared());
    }

    fn counters(&self) -> Counters {
        Counters {
            rx_packets: self.packets_received,
            rx_bytes: self.bytes_received,
            injected: self.counts.hits(),
            ..self.inner.counters()
        }
    }

    fn watch(&mut self, on: bool) {
        self.inner.watch(on);
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.inner.sharing()
    }
}

//! A wrapper that injects the faults of a [`Fabric`] into any backend: packets are lost,
//! duplicated, reordered, damaged and delayed, in either direction, as a seed decides.

use std::time::{Duration, Instant};

use rxe_core::types::Time;
use rxe_core::wire::{Frame, TxBatch, TxLimits};

use crate::TimerFd;
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::fabric::{Fabric, FabricCounters, Faults};
use crate::{NetError, SharedFd, Sharing};

/// A backend with faults on its way in and out.
///
/// Packets leave one by one (`burst_segments` is 1), since a burst with holes would no longer have the
/// IDs that its ICRCs were made for.
pub struct Fault<B> {
    inner: B,
    start: Instant,
    inbound: Fabric,
    outbound: Fabric,
    /// Packets that are due and that `inner` has not taken yet.
    ready: TxBatch,
    /// Readable when a delayed packet is due.
    timer: TimerFd,
    capabilities: Capabilities,
    packets_received: u64,
    bytes_received: u64,
}

/// Time after which packets that a full socket did not take are sent again.
const RETRY: Duration = Duration::from_millis(1);

impl<B: Backend> Fault<B> {
    /// Applies `inbound` to what `inner` receives and `outbound` to what it sends.
    ///
    /// [`Faults::hide_ids`] hides IPv4 IDs in addition to those that `inner` hides.
    pub fn new(inner: B, seed: u64, inbound: Faults, outbound: Faults) -> Result<Self, NetError> {
        let mut capabilities = inner.capabilities().clone();
        capabilities.tx.burst_segments = 1;
        capabilities.sees_ip_id &= !inbound.hide_ids;
        // IDs are hidden from receivers only.
        let outbound = Faults { hide_ids: false, merge: false, ..outbound };
        Ok(Self {
            start: Instant::now(),
            inbound: Fabric::new(seed, inbound),
            outbound: Fabric::new(seed ^ u64::MAX, outbound),
            ready: TxBatch::new(TxLimits { burst_segments: 1, ..capabilities.tx }),
            timer: TimerFd::new()?,
            capabilities,
            packets_received: 0,
            bytes_received: 0,
            inner,
        })
    }

    /// What was done to packets that arrived, and to those that left.
    pub fn fault_counters(&self) -> [FabricCounters; 2] {
        [self.inbound.counters(), self.outbound.counters()]
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Hands packets that are due to `inner`.
    fn pass_out(&mut self, now: Time) -> Result<SendStatus, NetError> {
        loop {
            while !self.ready.is_full()
                && let Some(delivery) = self.outbound.pop(now)
            {
                for (net, bytes) in delivery.frame().packets() {
                    self.ready.push(net, bytes.len(), |_, buf| buf.extend_from_slice(bytes));
                }
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
            frame.for_each_whole(&mut whole, &mut |frame| inbound.send_frame(now, frame));
        })?;
        let now = self.now();
        let blocked = self.pass_out(now)? != SendStatus::Done;
        let mut packets = 0;
        while let Some(delivery) = self.inbound.pop(now) {
            let frame = delivery.frame();
            packets += frame.packets().count();
            self.bytes_received += frame.payload.len() as u64;
            sink(&frame);
        }
        self.packets_received += packets as u64;
        if blocked {
            // The packets that are due cannot leave: being woken at once would not help.
            self.timer.set_after(Some(RETRY));
        } else {
            self.set_timer(now);
        }
        // If all that arrived was lost there may be more.
        Ok(if packets == 0 { arrived } else { packets })
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.now();
        let status = self.pass_out(now)?;
        if status != SendStatus::Done {
            return Ok(status);
        }
        self.outbound.send(now, batch);
        // The batch is taken. Packets that cannot leave now are sent when the timer expires.
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
        let [inbound, outbound] = self.fault_counters();
        let injected = |c: FabricCounters| c.lost + c.duplicated + c.reordered + c.corrupted;
        Counters {
            rx_packets: self.packets_received,
            rx_bytes: self.bytes_received,
            injected: injected(inbound) + injected(outbound),
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rxe_core::wire::NetHeader;

    use super::*;
    use crate::testing::{receive_packets, send_all};
    use crate::{FabricPort, Hub};

    fn ports() -> (FabricPort, FabricPort, NetHeader) {
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
        let hub = Hub::new(1, Faults::default());
        let net = NetHeader::outgoing(a, b, 4791);
        (hub.port(&[a]).unwrap(), hub.port(&[b]).unwrap(), net)
    }

    /// Packets with their numbers.
    fn batch(limits: TxLimits, net: NetHeader, count: u32) -> TxBatch {
        let mut batch = TxBatch::new(limits);
        for i in 0..count {
            batch.push(net, 4, |_, buf| buf.extend(i.to_be_bytes()));
        }
        batch
    }

    fn numbers(packets: &[(NetHeader, Vec<u8>)]) -> Vec<u32> {
        packets.iter().map(|(_, b)| u32::from_be_bytes(b[..4].try_into().unwrap())).collect()
    }

    #[test]
    fn what_leaves_is_lost_doubled_and_reordered() {
        let (a, mut b, net) = ports();
        let faults = Faults { loss: 0.1, duplicate: 0.1, reorder: 0.1, ..Faults::default() };
        let mut a = Fault::new(a, 7, Faults::default(), faults).unwrap();
        assert_eq!(a.capabilities().tx.burst_segments, 1);
        let mut sent = batch(a.capabilities().tx, net, 1000);
        send_all(&mut a, &mut sent);
        let [_, out] = a.fault_counters();
        assert!(out.lost > 50 && out.duplicated > 50 && out.reordered > 50, "{out:?}");
        let count = usize::try_from(1000 - out.lost + out.duplicated).unwrap();
        // What is held back leaves when the timer says so.
        while usize::try_from(a.inner.counters().tx_packets).unwrap() < count {
            crate::testing::wait_readable(&a);
            a.receive(1, &mut |_| {}).unwrap();
        }
        let got = numbers(&receive_packets(&mut b, count));
        assert_eq!(got.len(), count);
        assert!(!got.is_sorted());
        assert_eq!(a.counters().injected, out.lost + out.duplicated + out.reordered);
    }

    #[test]
    fn what_arrives_is_lost_and_late() {
        let (mut a, b, net) = ports();
        let faults = Faults {
            loss: 0.2,
            delay: Duration::from_micros(10)..=Duration::from_millis(3),
            ..Faults::default()
        };
        let mut b = Fault::new(b, 7, faults, Faults::default()).unwrap();
        for _ in 0..10 {
            a.send(&mut batch(TxLimits::default(), net, 100)).unwrap();
        }
        let mut arrived = 0;
        loop {
            arrived += b.receive(10, &mut |_| {}).unwrap();
            let [inbound, _] = b.fault_counters();
            if inbound.sent == 1000 && inbound.lost + inbound.delivered == 1000 {
                assert!(inbound.lost > 100);
                break;
            }
            crate::testing::wait_readable(&b);
        }
        assert!(arrived > 0);
        assert_eq!(b.counters().rx_packets, b.fault_counters()[0].delivered);
    }
}

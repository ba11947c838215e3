//! The counters of a backend.

use std::ops::{AddAssign, Range};

/// The counters of a backend since it was opened, in packets unless a field says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the sink.
    pub rx_packets: u64,
    /// UDP payload bytes handed to the sink.
    pub rx_bytes: u64,
    /// Packets lost because the receive buffer was full, as far as the kernel tells.
    pub rx_overflow: u64,
    /// Packets that arrived but were unusable (truncated, not UDP, …).
    pub rx_unusable: u64,
    /// Packets given to the network.
    pub tx_packets: u64,
    /// UDP payload bytes given to the network.
    pub tx_bytes: u64,
    /// Packets given to the network without their IPv6 flow label. Another program has reserved
    /// flow labels on this host.
    pub tx_unlabelled: u64,
    /// Packets not sent because the device queue was full (ENOBUFS).
    pub tx_no_buffer: u64,
    /// Packets not sent for lack of a route or neighbour, or after an ICMP "unreachable".
    pub tx_unreachable: u64,
    /// Packets not sent because a firewall forbids it (EPERM, EACCES).
    pub tx_denied: u64,
    /// Packets not sent because the interface is down or gone.
    pub tx_down: u64,
    /// Packets not sent because they exceed the MTU of the path.
    pub tx_too_big: u64,
    /// Packets not sent because no socket has the source address, or the families differ.
    pub tx_bad_address: u64,
    /// Packets not sent for another reason.
    pub tx_other: u64,
    /// Packets dropped, duplicated, delayed or damaged on purpose by the fault wrapper.
    pub injected: u64,
}

impl AddAssign<Self> for Counters {
    fn add_assign(&mut self, other: Self) {
        // The pattern names every field, so that a new field cannot be forgotten here.
        let Self {
            rx_packets,
            rx_bytes,
            rx_overflow,
            rx_unusable,
            tx_packets,
            tx_bytes,
            tx_unlabelled,
            tx_no_buffer,
            tx_unreachable,
            tx_denied,
            tx_down,
            tx_too_big,
            tx_bad_address,
            tx_other,
            injected,
        } = other;
        self.rx_packets += rx_packets;
        self.rx_bytes += rx_bytes;
        self.rx_overflow += rx_overflow;
        self.rx_unusable += rx_unusable;
        self.tx_packets += tx_packets;
        self.tx_bytes += tx_bytes;
        self.tx_unlabelled += tx_unlabelled;
        self.tx_no_buffer += tx_no_buffer;
        self.tx_unreachable += tx_unreachable;
        self.tx_denied += tx_denied;
        self.tx_down += tx_down;
        self.tx_too_big += tx_too_big;
        self.tx_bad_address += tx_bad_address;
        self.tx_other += tx_other;
        self.injected += injected;
    }
}

impl Counters {
    /// Counts packets of a burst as given to the network. `packets` are their indexes in the burst.
    /// The burst has `bytes` bytes; each packet but the last has `segment`.
    pub(crate) fn count_sent(&mut self, bytes: usize, segment: usize, packets: Range<usize>) {
        let [from, to] = [packets.start, packets.end].map(|i| (i * segment).min(bytes));
        self.tx_packets += packets.len() as u64;
        self.tx_bytes += (to - from) as u64;
    }
}

//! The counters of a backend.

use std::ops::{AddAssign, Range};

/// Defines a struct of counters, how two of them are added, and the names of all.
macro_rules! counters {
    ($(#[$attribute:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $counter:ident: u64,)*
    }) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$doc])* pub $counter: u64,)*
        }

        impl AddAssign<Self> for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$counter += other.$counter;)*
            }
        }

        impl $name {
            /// Returns all counters with their names, in the order of the fields.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($counter), self.$counter)),*].into_iter()
            }
        }
    };
}

counters! {
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

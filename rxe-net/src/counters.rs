//! What a backend counts.

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
/// What has happened on a backend since it was opened. All fields count packets, except where they
/// say bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the sink.
    pub rx_packets: u64,
    /// UDP payload bytes handed to the sink.
    pub rx_bytes: u64,
    /// Lost because the receive buffer was full, as far as the system tells.
    pub rx_overflow: u64,
    /// Arrived, but not usable (truncated, not UDP, …).
    pub rx_unusable: u64,
    /// Given to the network.
    pub tx_packets: u64,
    /// UDP payload bytes given to the network.
    pub tx_bytes: u64,
    /// Given to the network without their IPv6 flow label: another program has flow labels of this host for
    /// itself.
    pub tx_unlabelled: u64,
    /// Not sent: the device queue was full (ENOBUFS).
    pub tx_no_buffer: u64,
    /// Not sent: no route, no neighbour, or the peer's host answered "unreachable" (ICMP).
    pub tx_unreachable: u64,
    /// Not sent: a firewall forbids it (EPERM, EACCES).
    pub tx_denied: u64,
    /// Not sent: the interface is down or gone.
    pub tx_down: u64,
    /// Not sent: larger than the MTU of the path.
    pub tx_too_big: u64,
    /// Not sent: no socket has this source address, or the families of the addresses differ.
    pub tx_bad_address: u64,
    /// Not sent for another reason.
    pub tx_other: u64,
    /// Dropped, duplicated, delayed or damaged on purpose by the fault wrapper.
    pub injected: u64,
}
}

impl Counters {
    /// Counts packets of a burst as given to the network, by their numbers in it. The burst has `bytes`
    /// bytes, `segment` in each packet but the last.
    pub(crate) fn count_sent(&mut self, bytes: usize, segment: usize, packets: Range<usize>) {
        let [from, to] = [packets.start, packets.end].map(|i| (i * segment).min(bytes));
        self.tx_packets += packets.len() as u64;
        self.tx_bytes += (to - from) as u64;
    }
}

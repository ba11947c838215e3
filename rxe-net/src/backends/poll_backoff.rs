//! How often a backend polls something that costs a system call.

/// The number of calls and packets between two polls that each cost a system call. The interval
/// doubles while polls find nothing.
#[derive(Debug)]
pub(crate) struct PollBackoff {
    /// The shortest and the longest interval.
    limits: [u32; 2],
    /// The current interval, in calls plus packets.
    length: u32,
    /// The calls and packets since the last poll.
    done: u32,
}

impl PollBackoff {
    /// Starts with the shortest interval. `limits` are the shortest and the longest one.
    pub(crate) fn new(limits: [u32; 2]) -> Self {
        Self { limits, length: limits[0], done: 0 }
    }

    /// Counts one more call and the packets that it returned. Returns whether it is time to poll.
    pub(crate) fn is_due(&mut self, packets: usize) -> bool {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        self.done = self.done.saturating_add(packets).saturating_add(1);
        self.done >= self.length
    }

    /// Starts a new interval after a poll: the shortest if the poll found something, else a longer
    /// one.
    pub(crate) fn restart(&mut self, found: bool) {
        let [shortest, longest] = self.limits;
        self.length = if found { shortest } else { (2 * self.length).min(longest) };
        self.done = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::PollBackoff;

    #[test]
    fn looks_are_rarer_while_they_find_nothing_and_count_packets_too() {
        let mut interval = PollBackoff::new([4, 16]);
        let mut calls_to_look = |packets, found| {
            let calls = (1..100).find(|_| interval.is_due(packets));
            interval.restart(found);
            calls
        };
        let lengths = [0; 5].map(|packets| calls_to_look(packets, false));
        assert_eq!(lengths, [4, 8, 16, 16, 16].map(Some));
        assert_eq!((calls_to_look(7, true), calls_to_look(0, true)), (Some(2), Some(4)));
    }
}

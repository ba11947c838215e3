//! How often something that costs a system call is looked at.

/// How much work there is between two looks at something that costs a system call.
#[derive(Debug)]
pub(crate) struct Interval {
    limits: [u32; 2],
    /// Calls and packets, until the next look, and now.
    length: u32,
    done: u32,
}

impl Interval {
    pub(crate) fn new(limits: [u32; 2]) -> Self {
        Self { limits, length: limits[0], done: 0 }
    }

    /// Counts one more call, and the packets that it took. Whether it is time to look.
    pub(crate) fn is_over(&mut self, packets: usize) -> bool {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        self.done = self.done.saturating_add(packets).saturating_add(1);
        self.done >= self.length
    }

    /// It has looked, and found something or not.
    pub(crate) fn begin(&mut self, found: bool) {
        let [shortest, longest] = self.limits;
        self.length = if found { shortest } else { (2 * self.length).min(longest) };
        self.done = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Interval;

    #[test]
    fn looks_are_rarer_while_they_find_nothing_and_count_packets_too() {
        let mut interval = Interval::new([4, 16]);
        let mut calls_to_look = |packets, found| {
            let calls = (1..100).find(|_| interval.is_over(packets));
            interval.begin(found);
            calls
        };
        let lengths = [0; 5].map(|packets| calls_to_look(packets, false));
        assert_eq!(lengths, [4, 8, 16, 16, 16].map(Some));
        assert_eq!((calls_to_look(7, true), calls_to_look(0, true)), (Some(2), Some(4)));
    }
}

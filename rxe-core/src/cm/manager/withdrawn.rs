//! Requests that their senders have withdrawn, in case a copy arrives later.
//!
//! A peer that withdraws a request sends a REJ, which may overtake the REQ: processes that share an
//! address hand over to each other the datagrams they read, and different processes may read the
//! two messages. A late REQ would create a connection that no peer waits for and whose end no
//! message reports.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::types::{Gid, Time};

/// How long after its REJ a REQ may arrive: longer than a busy process takes to hand over a
/// datagram.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// The maximum number of remembered requests. The oldest are forgotten first.
const MAX_KEPT: usize = 1024;

/// A request: the sender's address and communication ID.
type Request = (Gid, u32);

/// The requests that were withdrawn recently.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    requests: HashSet<Request>,
    /// The requests with their expiry times, ordered by arrival and therefore by expiry.
    ends: VecDeque<(Time, Request)>,
}

impl Withdrawn {
    /// Records that the sender has withdrawn its request.
    pub(super) fn add(&mut self, now: Time, source: Gid, id: u32) {
        self.expire(now);
        if self.ends.len() == MAX_KEPT
            && let Some((_, oldest)) = self.ends.pop_front()
        {
            self.requests.remove(&oldest);
        }
        if self.requests.insert((source, id)) {
            self.ends.push_back((now + KEPT_FOR, (source, id)));
        }
        debug_assert!(self.requests.len() == self.ends.len() && self.ends.len() <= MAX_KEPT);
    }

    /// Returns whether the sender has withdrawn this request.
    pub(super) fn contains(&mut self, now: Time, source: Gid, id: u32) -> bool {
        self.expire(now);
        self.requests.contains(&(source, id))
    }

    fn expire(&mut self, now: Time) {
        while let Some((end, oldest)) = self.ends.front()
            && *end <= now
        {
            self.requests.remove(oldest);
            self.ends.pop_front();
        }
        debug_assert_eq!(self.requests.len(), self.ends.len(), "each has one end");
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn it_remembers_for_a_while_and_so_many() {
        let (mut withdrawn, source) = (Withdrawn::default(), Gid::from(Ipv4Addr::LOCALHOST));
        let (one, end) = (Time::ZERO + Duration::from_secs(1), Time::ZERO + KEPT_FOR);
        withdrawn.add(Time::ZERO, source, 1);
        withdrawn.add(one, source, 1);
        assert!(withdrawn.contains(one, source, 1) && !withdrawn.contains(one, source, 2));
        assert!(!withdrawn.contains(end, source, 1), "the second REJ is a copy");
        (0..2000).for_each(|id| withdrawn.add(end, source, id));
        let kept = (0..2000).filter(|&id| withdrawn.contains(end, source, id)).count();
        assert_eq!((kept, withdrawn.ends.len()), (MAX_KEPT, MAX_KEPT));
        assert!(withdrawn.contains(end, source, 1999));
    }
}

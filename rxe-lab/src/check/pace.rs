//! Measures how fast a queue pair sends before and after congestion notifications. IBTA A17.9.3.

use std::time::Duration;

use super::summary::Slowdown;
use super::{Checker, MAX_DIRECTIONS};
use crate::frame::Address;

/// The time before and after a notification in which bytes are counted.
const WINDOW: Duration = Duration::from_micros(100);

/// The bytes that a queue pair sends, and the notifications that it receives.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The end of the current window.
    until: Duration,
    /// The bytes sent in the current window.
    bytes: u64,
    /// The bytes sent in the previous window.
    before: u64,
    /// The open window of a notification: its end, and the bytes before and after.
    open: Option<(Duration, u64, u64)>,
    sum: Slowdown,
}

impl Pace {
    /// Counts bytes that are sent.
    pub(super) fn sends(&mut self, at: Duration, bytes: usize) {
        if at >= self.until {
            self.turn(at);
        }
        self.bytes += bytes as u64;
        match &mut self.open {
            Some((end, _, after)) if at < *end => *after += bytes as u64,
            Some(_) => self.close(),
            None => {}
        }
    }

    /// Handles a notification. Notifications within the window of another are ignored.
    pub(super) fn is_notified(&mut self, at: Duration) {
        if at >= self.until {
            self.turn(at);
        }
        if self.open.is_some_and(|(end, ..)| at < end) {
            return;
        }
        self.close();
        // The share of the previous window that is at most one window old.
        let left = u64::from(self.until.saturating_sub(at).subsec_nanos());
        let before = self.bytes + self.before * left / u64::from(WINDOW.subsec_nanos());
        if before > 0 {
            self.open = Some((at + WINDOW, before, 0));
        }
    }

    /// Ends the measurement at the end of the capture.
    pub(super) fn finish(&mut self, end: Duration) -> Slowdown {
        if self.open.is_some_and(|(until, ..)| until > end) {
            self.open = None;
        }
        self.close();
        self.sum
    }

    fn close(&mut self) {
        if let Some((_, before, after)) = self.open.take() {
            self.sum.count += 1;
            self.sum.before += before;
            self.sum.after += after;
        }
    }

    /// Begins the next window, or after a pause a window that starts now.
    fn turn(&mut self, at: Duration) {
        let is_next = at < self.until + WINDOW;
        self.before = if is_next { self.bytes } else { 0 };
        self.until = if is_next { self.until } else { at } + WINDOW;
        self.bytes = 0;
    }
}

impl Checker {
    /// Handles a congestion notification to a queue pair.
    pub(super) fn notified(&mut self, (src, dst): (Address, Address), dest_qp: u32, at: Duration) {
        let key = (src, dst, dest_qp);
        self.datagrams.notified(dst, dest_qp);
        if self.cnps.len() < MAX_DIRECTIONS || self.cnps.contains_key(&key) {
            *self.cnps.entry(key).or_default() += 1;
        }
        if let Some(peer) = self.keys.get(&key).and_then(|&to| self.flows[to].peer) {
            self.flows[peer].pace.is_notified(at);
        }
    }

    /// Adds the congestion notifications to the statistics of their connections.
    pub(super) fn count_notifications(&mut self) {
        for (key, count) in std::mem::take(&mut self.cnps) {
            let Some(&to) = self.keys.get(&key) else { continue };
            let Some(peer) = self.flows[to].peer else { continue };
            let slowdown = self.flows[peer].pace.finish(self.end);
            let sends_requests = self.flows[peer].found.stats.requests > 0;
            let stats = &mut self.flows[if sends_requests { peer } else { to }].found.stats;
            *if sends_requests { &mut stats.cnps } else { &mut stats.cnps_to_responder } += count;
            stats.slowdown = slowdown;
        }
    }
}

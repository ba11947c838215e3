//! A link over an interface of this host, by pnet's channel ([`crate::backends::pnet`]).
//!
//! The endpoint is another station on the interface's wire, as with [`super::interface`], and its
//! socket has the same filter. The interface is promiscuous while the link is open. Each packet is a
//! frame.
//!
//! Invariants: the queues in both directions are bounded.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::config::L2Config;
use super::interface::usable;
use super::link::{Arrival, Link};
use super::waiting::Waiting;
use crate::backends::loss::Loss;
use crate::backends::packet::filter;
use crate::backends::pnet::{Channel, Use, find};
use crate::error::{L2Failure, NetError};
use rxe_sys::{Epoll, EventFd, SharedFd, TimerFd};

/// A link over an interface of this host.
pub(super) struct PnetLink {
    name: String,
    channel: Channel,
    /// Readable while the queue has frames.
    arrived: Arc<EventFd>,
    /// Readable when sending is to be tried again.
    retry: TimerFd,
    epoll: Epoll,
    waiting: Waiting,
    retries: bool,
}

/// The size of the queue of received frames in bytes.
const QUEUE: usize = 4 << 20;
/// The time after which sending is tried again: the channel does not tell when there is room.
const RETRY_TIME: Duration = Duration::from_millis(1);

impl PnetLink {
    /// Opens a channel on the interface `name`.
    pub(super) fn open(name: &str, config: &L2Config) -> Result<Self, NetError> {
        let failed = |reason| NetError::L2 { link: format!("pnet:{name}"), reason };
        let interface = find(name)?;
        usable(name, config, failed)?;
        let arrived = Arc::new(EventFd::new()?);
        let retry = TimerFd::new()?;
        let epoll = Epoll::new()?;
        epoll.add(&*arrived, 0, EventFlags::IN)?;
        epoll.add(retry.shared(), 0, EventFlags::IN)?;
        let (mac, wake) = (config.mac.0, Arc::clone(&arrived));
        let user = Use {
            // A bridge returns the endpoint's own frames.
            wants: Box::new(move |frame| frame.get(6..12).is_some_and(|from| from != mac)),
            filter: Some(filter::station(mac)),
            wake: Box::new(move || wake.set()),
            queue: QUEUE,
        };
        let channel = Channel::open(&interface, user)?;
        let (waiting, retries) = (Waiting::default(), false);
        Ok(Self { name: name.into(), channel, arrived, retry, epoll, waiting, retries })
    }
}

impl Link for PnetLink {
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        let taken = self.channel.inbox().take(|| self.arrived.clear());
        let taken = taken.map_err(|e| NetError::L2 {
            link: format!("pnet:{}", self.name),
            reason: L2Failure::Gone(e),
        })?;
        let Some(frame) = taken else { return Ok(false) };
        let lost = u32::try_from(frame.lost).unwrap_or(u32::MAX);
        f(&Arrival { lost, ..Arrival::single(&frame.bytes) });
        Ok(true)
    }

    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss> {
        let channel = &mut self.channel;
        self.waiting.send_or_keep(parts, |parts| channel.send(parts))
    }

    fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    fn flush(&mut self) -> Result<(), NetError> {
        let channel = &mut self.channel;
        self.waiting.flush(|parts| channel.send(parts));
        let retries = !self.waiting.is_empty();
        if retries || self.retries {
            self.retry.set_after(retries.then_some(RETRY_TIME));
            self.retries = retries;
        }
        Ok(())
    }

    fn shared(&self) -> &SharedFd {
        self.epoll.shared()
    }
}

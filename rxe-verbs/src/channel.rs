//! Completion channels: one descriptor for the events of many completion queues. IBTA 11.2.6.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::types::Time;
use rxe_net::EventFd;

use crate::cq::{CompletionQueue, CqInner};
use crate::device::{Device, closed};
use crate::error::Result;
use crate::os::now;
use crate::progress::OnSignal;

/// Tells a program that sleeps in its own event loop which of its completion queues got something.
///
/// Make queues on it with [`Device::create_cq_on`], arm them with [`CompletionQueue::arm`], poll them
/// once more, and sleep until the channel's descriptor ([`AsFd`]) is readable. Each arming gives at
/// most one event. Events need not be acknowledged.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    device: Device,
    events: Arc<ChannelEvents>,
}

impl CompletionChannel {
    pub(crate) fn new(device: Device) -> Result<Self> {
        let events = ChannelEvents { queue: Mutex::default(), fd: EventFd::for_program()? };
        Ok(Self { device, events: Arc::new(events) })
    }

    /// The next queue that got what it was armed for; `None` if there is none within `timeout`
    /// (which may be zero; `None` waits for ever). Poll it until it is empty, then arm it again.
    ///
    /// # Errors
    /// [`crate::Error::DeviceFailed`], unless there are events.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CompletionQueue>> {
        self.next(timeout, OnSignal::Sleep)
    }

    /// As [`CompletionChannel::get_event`], but a signal handler of the program that runs meanwhile
    /// ends the wait, so that the program can act on what the handler noted.
    ///
    /// # Errors
    /// As there; and one whose [`errno`](crate::Error::errno) is `EINTR`.
    pub fn get_event_or_signal(&self, timeout: Duration) -> Result<Option<CompletionQueue>> {
        self.next(Some(timeout), OnSignal::End)
    }

    fn next(
        &self,
        timeout: Option<Duration>,
        signals: OnSignal,
    ) -> Result<Option<CompletionQueue>> {
        let event = self.events.take();
        if event.is_some() || timeout == Some(Duration::ZERO) {
            return Ok(event);
        }
        let deadline = timeout.map_or(Time::MAX, |t| now() + t);
        let shard = self.device.shard();
        shard.sleep(self.events.fd.as_fd(), deadline, signals, || Ok(self.events.take()))
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(Arc::strong_count(&self.events) - 1, "the completion channel")
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn events(&self) -> &Arc<ChannelEvents> {
        &self.events
    }
}

/// Readable while [`CompletionChannel::get_event`] has something.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd.as_fd()
    }
}

/// What waits to be told.
#[derive(Debug)]
pub(crate) struct ChannelEvents {
    queue: Mutex<VecDeque<Weak<CqInner>>>,
    /// Readable while the queue is not empty.
    fd: EventFd,
}

impl ChannelEvents {
    pub(crate) fn push(&self, cq: Weak<CqInner>) {
        let mut queue = self.queue.lock();
        queue.push_back(cq);
        self.fd.set();
    }

    /// The first whose queue is still there.
    fn take(&self) -> Option<CompletionQueue> {
        let mut queue = self.queue.lock();
        let found = std::iter::from_fn(|| queue.pop_front()).find_map(|cq| cq.upgrade());
        if queue.is_empty() {
            self.fd.clear();
        }
        found.map(CompletionQueue::from_inner)
    }
}

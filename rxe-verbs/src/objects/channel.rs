//! Completion channels: one descriptor for the events of many completion queues. IBTA 11.2.6.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::types::Time;
use rxe_sys::EventFd;

use crate::device::Device;
use crate::error::Result;
use crate::objects::cq::{ChannelEvents, CompletionQueue};
use crate::observe::{Counted, Kind, UseCounts, closed};
use crate::progress::Shard;

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
    /// The next queue that got what it was armed for; `None` if there is none within `timeout`
    /// (which may be zero; `None` waits for ever). Poll it until it is empty, then arm it again.
    ///
    /// # Errors
    /// [`crate::Error::DeviceFailed`], unless there are events.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CompletionQueue>> {
        self.device.shard().check_own()?;
        let event = self.events.take();
        if event.is_some() || timeout == Some(Duration::ZERO) {
            return Ok(event);
        }
        let deadline = timeout.map_or(Time::MAX, |t| self.device.now() + t);
        let shard = self.device.first_of(self.events.shards());
        let slept = shard.sleep(self.events.fd(), deadline, || Ok(self.events.take()));
        // What a failure flushed may have given an event.
        slept.or_else(|error| self.events.take().map(Some).ok_or(error))
    }

    /// The caller is about to sleep in a read of the channel's descriptor: the drivers look after the sockets.
    ///
    /// # Errors
    /// [`crate::Error::DeviceFailed`]; or the program has closed the descriptor.
    pub fn before_sleep(&self) -> Result<()> {
        self.events.fd().ensure()?;
        self.device.first_of(self.events.shards()).serve_sleeper()?;
        let bits = self.events.shards().bits();
        self.device.shards_among(bits & bits.wrapping_sub(1)).try_for_each(Shard::serve_sleeper)
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        let handles = Arc::strong_count(&self.events) - 1;
        closed(self.used_by(), handles, "the completion channel")
    }

    /// The completion queues on it.
    pub fn used_by(&self) -> UseCounts {
        self.events.use_counters().read()
    }
}

impl Device {
    /// Makes a completion queue whose events come through a channel.
    ///
    /// # Errors
    /// As [`Device::create_cq`]; or the channel is another device's.
    pub fn create_cq_on(&self, depth: u32, channel: &CompletionChannel) -> Result<CompletionQueue> {
        self.owns(&channel.device, "the completion channel")?;
        CompletionQueue::new(
            self.clone(),
            depth,
            Some(channel.events.used_as(Kind::CompletionQueue)),
        )
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        Ok(self.create_channel_with(EventFd::new()?))
    }

    /// Makes a completion channel that has this descriptor.
    pub fn create_channel_with(&self, fd: EventFd) -> CompletionChannel {
        CompletionChannel { device: self.clone(), events: Arc::new(ChannelEvents::new(fd)) }
    }
}

/// Readable while [`CompletionChannel::get_event`] has something.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd().as_fd()
    }
}

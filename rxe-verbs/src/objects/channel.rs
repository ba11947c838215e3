//! Completion channels: one descriptor for the events of several completion queues. IBTA 11.2.6.

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

/// A channel that tells an event loop which completion queues have new completions.
///
/// Create queues with [`Device::create_cq_on`], arm them with [`CompletionQueue::arm`], poll them
/// once more, and sleep until the channel's descriptor ([`AsFd`]) is readable. Each arming gives at
/// most one event. Events need not be acknowledged.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    device: Device,
    events: Arc<ChannelEvents>,
}

impl CompletionChannel {
    /// Waits for the next queue that received a completion it was armed for.
    ///
    /// Returns `None` if there is no event within `timeout`, which may be zero; without a timeout,
    /// waits indefinitely. Poll the queue until it is empty, then arm it again.
    ///
    /// # Errors
    /// Fails with [`crate::Error::DeviceFailed`] after all events have been taken.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CompletionQueue>> {
        self.device.shard().check_own()?;
        let event = self.events.take();
        if event.is_some() || timeout == Some(Duration::ZERO) {
            return Ok(event);
        }
        let deadline = timeout.map_or(Time::MAX, |t| self.device.now() + t);
        let shard = self.device.first_of(self.events.shards());
        let slept = shard.sleep(self.events.fd(), deadline, || Ok(self.events.take()));
        // Requests flushed by a failure may have caused an event.
        slept.or_else(|error| self.events.take().map(Some).ok_or(error))
    }

    /// Prepares for a read(2) of the channel's descriptor that may sleep: from now on, the driver
    /// threads serve the sockets.
    ///
    /// # Errors
    /// Fails with [`crate::Error::DeviceFailed`], or if the program has closed the descriptor.
    pub fn before_sleep(&self) -> Result<()> {
        self.events.fd().ensure()?;
        self.device.first_of(self.events.shards()).serve_sleeper()?;
        let bits = self.events.shards().bits();
        self.device.shards_among(bits & bits.wrapping_sub(1)).try_for_each(Shard::serve_sleeper)
    }

    /// Closes the channel and reports remaining users.
    ///
    /// # Errors
    /// Fails if the channel is in use. It is then destroyed with its last user.
    pub fn close(self) -> Result<()> {
        let handles = Arc::strong_count(&self.events) - 1;
        closed(self.used_by(), handles, "the completion channel")
    }

    /// Returns how many completion queues use the channel.
    pub fn used_by(&self) -> UseCounts {
        self.events.use_counters().read()
    }
}

impl Device {
    /// Creates a completion queue that sends its events to a channel.
    ///
    /// # Errors
    /// Fails like [`Device::create_cq`], and if the channel belongs to another device.
    pub fn create_cq_on(&self, depth: u32, channel: &CompletionChannel) -> Result<CompletionQueue> {
        self.owns(&channel.device, "the completion channel")?;
        CompletionQueue::new(
            self.clone(),
            depth,
            Some(channel.events.used_as(Kind::CompletionQueue)),
        )
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// Fails if the process or the host has no descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel> {
        Ok(self.create_channel_with(EventFd::new()?))
    }

    /// Creates a completion channel that uses an existing descriptor.
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

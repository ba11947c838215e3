//! Event channels, from which programs take the events of their identifiers. `rdma_event_channel`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rxe_core::cm::service::PortSpace;
use rxe_core::types::Time;
use rxe_sys::EventFd;

use super::cm_port::destroy_requests;
use super::devices::{self, DeviceSource, Given};
use super::id::CmId;
use super::process::{CmEvent, process};
use super::queue::EventQueue;
use super::state::ChannelInner;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::os::{Environment, until};

/// A channel with one descriptor for the events of many identifiers. These may use any number of
/// devices.
#[derive(Clone, Debug)]
pub struct EventChannel {
    pub(super) inner: Arc<ChannelInner>,
}

impl EventChannel {
    /// Creates a channel whose identifiers use any device of this host. Devices are opened over UDP
    /// sockets when they are needed.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> Result<Self> {
        Ok(Self::with_source(devices::of_host(), EventFd::new()?))
    }

    /// Creates a channel whose identifiers use these devices.
    ///
    /// # Errors
    /// Like [`EventChannel::new`].
    pub fn on(devices: &[Device]) -> Result<Self> {
        let of_first = devices.first().map(|device| device.shard().environment().clone());
        let environment = of_first.unwrap_or(Environment::System);
        Ok(Self::make(Arc::new(Given(devices.to_vec())), environment, EventFd::new()?))
    }

    /// Creates a channel that uses this descriptor. Its identifiers get their devices from
    /// `source`.
    pub fn with_source(source: Arc<dyn DeviceSource>, fd: EventFd) -> Self {
        Self::make(source, Environment::System, fd)
    }

    fn make(devices: Arc<dyn DeviceSource>, environment: Environment, fd: EventFd) -> Self {
        let (queue, turn) = (EventQueue::new(fd), Mutex::new(()));
        Self { inner: Arc::new(ChannelInner { queue, turn, devices, environment }) }
    }

    /// Creates an identifier whose events this channel delivers. It is for connections
    /// ([`PortSpace::Tcp`]) or datagrams ([`PortSpace::Udp`]).
    ///
    /// # Errors
    /// The kernel provides no random numbers.
    pub fn create_id(&self, space: PortSpace) -> Result<CmId> {
        CmId::new(&self.inner, space)
    }

    /// Takes the next event; returns `None` if there is none within `timeout`. A `timeout` of zero
    /// does not wait, and `None` waits without limit.
    ///
    /// # Errors
    /// The process cannot sleep, or the program has closed the descriptor.
    pub fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
        let environment = &self.inner.environment;
        let deadline = timeout.map_or(Time::MAX, |t| environment.now() + t);
        let queue = &self.inner.queue;
        loop {
            if let Some(event) = self.take_event(Some) {
                return Ok(Some(event));
            }
            if timeout == Some(Duration::ZERO) {
                return Ok(None);
            }
            if let Some(host) = environment.simulation() {
                if host.advance(deadline) {
                    continue;
                }
                return Ok(None);
            }
            queue.fd.ensure()?;
            rxe_sys::may_block("waiting for an event");
            let mut fds = [PollFd::new(&queue.fd, PollFlags::IN)];
            match poll(&mut fds, until(deadline).as_ref()) {
                Ok(0) if environment.now() >= deadline => return Ok(None),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("sleep in poll", e)),
            }
        }
    }

    /// Takes the oldest event that `f` maps to a value; skips events for which `f` returns `None`.
    /// Returns `None` if no event waits.
    ///
    /// The events of a channel are processed one after the other, whichever threads take them, so a
    /// thread that takes the second event of a connection finds the results of the first one.
    pub fn take_event<R>(&self, mut f: impl FnMut(CmEvent) -> Option<R>) -> Option<R> {
        let _turn = self.inner.turn.lock();
        while let Some(pending) = self.inner.queue.take() {
            if let Some(known) = process(&self.inner, pending).and_then(&mut f) {
                return Some(known);
            }
        }
        None
    }

    /// Checks that the program has not closed the descriptor: its number may belong to another file
    /// then.
    ///
    /// # Errors
    /// The program has closed the descriptor.
    pub fn ensure(&self) -> Result<()> {
        Ok(self.inner.queue.fd.ensure()?)
    }

    /// Returns whether the channel's devices belong to a [`crate::cluster`].
    #[cfg(feature = "tokio")]
    pub(crate) fn is_simulated(&self) -> bool {
        self.inner.environment.is_simulated()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and the errors of [`EventChannel::get_event`].
    pub fn wait_event(&self, timeout: Duration) -> Result<CmEvent> {
        let event = self.get_event(Some(timeout))?;
        event.ok_or(Error::TimedOut { what: "connection event", after: timeout })
    }
}

impl CmId {
    /// Moves the identifier to another channel, with its waiting events.
    pub fn migrate(&self, channel: &EventChannel) {
        let mut state = self.state();
        self.inner.id_queue.migrate(&channel.inner.queue);
        let old = std::mem::replace(&mut state.channel, Arc::clone(&channel.inner));
        drop(state);
        drop(old);
    }
}

/// The descriptor is readable while [`EventChannel::get_event`] may return an event.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.queue.fd.as_fd()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        destroy_requests(self.queue.close());
    }
}

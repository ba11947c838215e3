//! Completions and events as futures, for programs on tokio. Feature `tokio`.
//!
//! - [`Completions`]: a completion queue for tasks;
//! - [`ConnectionEvents`]: events of the connection manager;
//! - [`DeviceEvents`]: asynchronous events of a device.
//!
//! Requests are posted as without tokio: [`crate::QueuePair::post_send`] and its relatives do not
//! wait.
//!
//! All futures are cancel-safe: a future that is dropped before it is ready has taken nothing. They
//! may therefore be used in `tokio::select!` and `tokio::time::timeout`. Any number of tasks may
//! wait on one value.
//!
//! A waiting task occupies no thread, because the device's own thread drives the engine meanwhile.
//! This adds a few microseconds to each message. If they matter, poll the queue in a dedicated
//! thread ([`crate::CompletionQueue::spin_one`]).
//!
//! The values must be created and used in the same runtime, whose I/O driver must be enabled.
//! Devices of a [`crate::cluster`] are refused, because their time passes only in calls that wait.
//!
//! ```no_run
//! use rxe_verbs::task::Completions;
//! use rxe_verbs::{Access, Device};
//!
//! # async fn example() -> rxe_verbs::Result<()> {
//! let device = Device::options("eth0").open()?;
//! let pd = device.create_pd()?;
//! let completions = Completions::new(&device, 64)?;
//! let qp = pd.qp(completions.queue()).build()?;
//! // … connect it …
//! let memory = pd.register(4096, Access::LOCAL_WRITE)?;
//! qp.recv(1, &[memory.slice(..)])?;
//! qp.send_bytes(2, b"hello").post()?;
//! let (sent, received) = tokio::try_join!(completions.of(2), completions.of(1))?;
//! println!("{}, {} bytes", sent.status, received.byte_len);
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::queue::Completion;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::Notify;

use crate::cm::{CmEvent, EventChannel};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::AsyncEvent;
use crate::objects::{CompletionChannel, CompletionQueue};

/// A completion queue that tasks wait on.
///
/// A task takes completions in the order of their arrival with [`Completions::next`], or the
/// completion of its own request with [`Completions::of`].
#[derive(Debug)]
pub struct Completions {
    queue: CompletionQueue,
    channel: Readable<CompletionChannel>,
    /// Completions that were polled and not yet taken by a task; at most as many as the queue
    /// holds.
    polled: Mutex<VecDeque<Completion>>,
    /// Notified when completions are added to `polled`.
    more: Notify,
}

impl Completions {
    /// Creates a completion queue for `depth` completions and a channel for its events.
    ///
    /// # Errors
    /// Fails like [`Device::create_cq`] and [`Device::create_channel`], if there is no runtime, and
    /// if the device is simulated.
    ///
    /// # Panics
    /// Panics if the runtime's I/O driver is not enabled (`tokio::runtime::Builder::enable_io`).
    pub fn new(device: &Device, depth: u32) -> Result<Self> {
        real(device)?;
        let channel = device.create_channel()?;
        let queue = device.create_cq_on(depth, &channel)?;
        let channel = Readable::new(channel)?;
        Ok(Self { queue, channel, polled: Mutex::default(), more: Notify::new() })
    }

    /// Returns the queue, for creating queue pairs. Polling it directly takes completions away from
    /// the tasks.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Returns the oldest completion that no task has taken. Cancel-safe.
    ///
    /// # Errors
    /// Fails like [`CompletionQueue::poll_one`]. A failed request is not an error here: its status
    /// is in [`Completion::status`].
    pub async fn next(&self) -> Result<Completion> {
        self.take(|polled| polled.pop_front()).await
    }

    /// Returns the oldest completion with this `wr_id` ([`Completion::id`]). Cancel-safe.
    ///
    /// Other completions are kept for their tasks.
    ///
    /// Unsignaled requests have no completion, unless they fail.
    ///
    /// # Errors
    /// Fails like [`Completions::next`], and with [`Error::CqOverflow`] if no task takes the other
    /// completions and as many of them are kept as the queue holds.
    pub async fn of(&self, id: u64) -> Result<Completion> {
        self.take(|polled| {
            let at = polled.iter().position(|completion| completion.id == id)?;
            polled.remove(at)
        })
        .await
    }

    async fn take(
        &self,
        pick: impl Fn(&mut VecDeque<Completion>) -> Option<Completion>,
    ) -> Result<Completion> {
        loop {
            // Created before polling, so that completions polled by other tasks are not missed.
            let more = self.more.notified();
            if let Some(completion) = self.poll(&pick)? {
                return Ok(completion);
            }
            select! {
                readable = self.channel.readable() => readable?,
                () = more => {}
            }
        }
    }

    /// Picks one of the available completions. If none fits, the queue is armed.
    fn poll(
        &self,
        pick: impl Fn(&mut VecDeque<Completion>) -> Option<Completion>,
    ) -> Result<Option<Completion>> {
        let mut polled = self.polled.lock();
        let depth = self.queue.depth();
        // The second round catches completions that arrived before the queue was armed.
        for armed in [false, true] {
            if let Some(completion) = pick(&mut polled) {
                return Ok(Some(completion));
            }
            if armed {
                while self.channel.source.get_event(Some(Duration::ZERO))?.is_some() {}
                // If the device has failed, polling reports it after the flushed completions are
                // taken.
                let _ = self.queue.arm(false);
            }
            let room = depth.saturating_sub(polled.len());
            let got = self.queue.poll(room, |completion| polled.push_back(completion))?;
            if got > 0 {
                self.more.notify_waiters();
            }
        }
        let picked = pick(&mut polled);
        if picked.is_none() && polled.len() >= depth {
            return Err(Error::CqOverflow { depth });
        }
        Ok(picked)
    }
}

/// The events of an [`EventChannel`], awaited by tasks.
///
/// A server that runs a task for each connection gives each identifier its own channel
/// ([`crate::cm::CmId::migrate`]).
#[derive(Debug)]
pub struct ConnectionEvents {
    channel: Readable<EventChannel>,
}

impl ConnectionEvents {
    /// Wraps a channel whose events tasks await.
    ///
    /// # Errors
    /// Fails if there is no runtime, or if the channel's devices are simulated.
    ///
    /// # Panics
    /// Panics like [`Completions::new`].
    pub fn new(channel: EventChannel) -> Result<Self> {
        if channel.is_simulated() {
            return Err(simulated());
        }
        Ok(Self { channel: Readable::new(channel)? })
    }

    /// Returns the channel, for creating identifiers.
    pub fn channel(&self) -> &EventChannel {
        &self.channel.source
    }

    /// Returns the next event. Cancel-safe.
    ///
    /// # Errors
    /// Fails like [`EventChannel::get_event`].
    pub async fn next(&self) -> Result<CmEvent> {
        self.channel.next(|channel| channel.get_event(Some(Duration::ZERO))).await
    }
}

/// The asynchronous events of a device, awaited by tasks.
#[derive(Debug)]
pub struct DeviceEvents {
    events: Readable<EventsOf>,
}

impl DeviceEvents {
    /// Wraps a device whose asynchronous events tasks await.
    ///
    /// # Errors
    /// Fails if there is no runtime, or if the device is simulated.
    ///
    /// # Panics
    /// Panics like [`Completions::new`].
    pub fn new(device: &Device) -> Result<Self> {
        real(device)?;
        Ok(Self { events: Readable::new(EventsOf(device.clone()))? })
    }

    /// Returns the oldest event not yet taken. Cancel-safe.
    ///
    /// # Errors
    /// Fails if the runtime is shutting down.
    pub async fn next(&self) -> Result<AsyncEvent> {
        self.events.next(|EventsOf(device)| Ok(device.poll_async_event())).await
    }
}

/// A device, represented by the descriptor of its asynchronous events.
#[derive(Debug)]
struct EventsOf(Device);

impl AsFd for EventsOf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }
}

/// A source of events whose descriptor is readable while it has events.
#[derive(Debug)]
struct Readable<T> {
    source: T,
    /// A duplicate of the source's descriptor, registered with the runtime.
    fd: AsyncFd<OwnedFd>,
}

impl<T: AsFd> Readable<T> {
    fn new(source: T) -> Result<Self> {
        Handle::try_current().map_err(|e| failed(io::Error::other(e)))?;
        let fd = source.as_fd().try_clone_to_owned().map_err(failed)?;
        #[allow(
            deprecated,
            reason = "what replaces it is unsafe, and younger than what we promise"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
        Ok(Self { source, fd })
    }

    /// Waits until the descriptor is readable. It may also return early, so the caller must check
    /// the source.
    async fn readable(&self) -> Result<()> {
        // Events that arrive after this make the descriptor readable again.
        self.fd.readable().await.map_err(failed)?.clear_ready();
        Ok(())
    }

    async fn next<E>(&self, take: impl Fn(&T) -> Result<Option<E>>) -> Result<E> {
        loop {
            if let Some(event) = take(&self.source)? {
                return Ok(event);
            }
            self.readable().await?;
        }
    }
}

fn failed(e: io::Error) -> Error {
    Error::io("wait in a task of tokio", e)
}

fn simulated() -> Error {
    let why = "the device is simulated: its time passes only in calls that wait, such as \
               CompletionQueue::wait";
    failed(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Refuses a device of a cluster.
fn real(device: &Device) -> Result<()> {
    if device.shard().environment().is_simulated() { Err(simulated()) } else { Ok(()) }
}

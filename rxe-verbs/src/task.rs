//! Completions and events as futures, for programs on tokio. Feature `tokio`.
//!
//! - [`Completions`]: a completion queue for tasks;
//! - [`ConnectionEvents`]: what the connection manager tells;
//! - [`DeviceEvents`]: asynchronous events of a device.
//!
//! Requests are posted as everywhere: [`crate::QueuePair::post_send`] and its relatives do not wait.
//!
//! All futures are cancel-safe: one that is dropped before it is ready has taken nothing. So they may
//! stand in `tokio::select!`, and a timeout is `tokio::time::timeout`. Any number of tasks may wait on
//! one value.
//!
//! A task that waits costs no thread: the device's own thread turns the engine meanwhile. This adds a
//! few microseconds to each message. Where they matter, poll the queue in a thread of its own
//! ([`crate::CompletionQueue::spin_one`]).
//!
//! Values are made inside a runtime whose I/O driver is enabled, and are used in that runtime. Devices of a
//! [`crate::cluster`] are refused, because their time passes only in calls that wait.
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
/// Completions are taken in the order in which they come, by [`Completions::next`], or each by the
/// task that posted the request, by [`Completions::of`].
#[derive(Debug)]
pub struct Completions {
    queue: CompletionQueue,
    channel: Readable<CompletionChannel>,
    /// Polled, and not yet taken by a task. No more than the queue holds.
    polled: Mutex<VecDeque<Completion>>,
    /// Told when there are more of them.
    more: Notify,
}

impl Completions {
    /// Makes a completion queue for `depth` completions, and a channel for its events.
    ///
    /// # Errors
    /// As [`Device::create_cq`] and [`Device::create_channel`]; there is no runtime here, or the
    /// device is simulated.
    ///
    /// # Panics
    /// The runtime's I/O driver is not enabled (`tokio::runtime::Builder::enable_io`).
    pub fn new(device: &Device, depth: u32) -> Result<Self> {
        real(device)?;
        let channel = device.create_channel()?;
        let queue = device.create_cq_on(depth, &channel)?;
        let channel = Readable::new(channel)?;
        Ok(Self { queue, channel, polled: Mutex::default(), more: Notify::new() })
    }

    /// The queue, to make queue pairs with. Whoever polls it takes completions away from tasks.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// The oldest completion that no task has taken. Cancel-safe.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_one`]. The status of the request is in [`Completion::status`].
    pub async fn next(&self) -> Result<Completion> {
        self.take(|polled| polled.pop_front()).await
    }

    /// The oldest completion with this `wr_id` ([`Completion::id`]). Others are kept for their tasks.
    /// Cancel-safe.
    ///
    /// Unsignaled requests have no completion, unless they fail.
    ///
    /// # Errors
    /// As [`Completions::next`]; and [`Error::CqOverflow`] if as many others as the queue holds are kept
    /// that no task takes.
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
            // From here on it is told of what other tasks poll.
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

    /// Picks one of what is there. If there is none, the queue is armed.
    fn poll(
        &self,
        pick: impl Fn(&mut VecDeque<Completion>) -> Option<Completion>,
    ) -> Result<Option<Completion>> {
        let mut polled = self.polled.lock();
        let depth = self.queue.depth();
        // The second time, for what came before the arming.
        for armed in [false, true] {
            if let Some(completion) = pick(&mut polled) {
                return Ok(Some(completion));
            }
            if armed {
                while self.channel.source.get_event(Some(Duration::ZERO))?.is_some() {}
                // If the device has failed, polling says so once what was flushed is taken.
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

/// The events of a [`EventChannel`]: what happens to connections.
///
/// A server whose connections are tasks of their own gives each identifier a channel
/// ([`crate::cm::CmId::migrate`]).
#[derive(Debug)]
pub struct ConnectionEvents {
    channel: Readable<EventChannel>,
}

impl ConnectionEvents {
    /// Waits on this channel.
    ///
    /// # Errors
    /// There is no runtime here, or the channel's devices are simulated.
    ///
    /// # Panics
    /// As [`Completions::new`].
    pub fn new(channel: EventChannel) -> Result<Self> {
        if channel.is_simulated() {
            return Err(simulated());
        }
        Ok(Self { channel: Readable::new(channel)? })
    }

    /// The channel, to make identifiers with.
    pub fn channel(&self) -> &EventChannel {
        &self.channel.source
    }

    /// The next event. Cancel-safe.
    ///
    /// # Errors
    /// As [`EventChannel::get_event`].
    pub async fn next(&self) -> Result<CmEvent> {
        self.channel.next(|channel| channel.get_event(Some(Duration::ZERO))).await
    }
}

/// The asynchronous events of a device.
#[derive(Debug)]
pub struct DeviceEvents {
    events: Readable<EventsOf>,
}

impl DeviceEvents {
    /// Waits on this device.
    ///
    /// # Errors
    /// There is no runtime here, or the device is simulated.
    ///
    /// # Panics
    /// As [`Completions::new`].
    pub fn new(device: &Device) -> Result<Self> {
        real(device)?;
        Ok(Self { events: Readable::new(EventsOf(device.clone()))? })
    }

    /// The oldest event that is not taken yet. Cancel-safe.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn next(&self) -> Result<AsyncEvent> {
        self.events.next(|EventsOf(device)| Ok(device.poll_async_event())).await
    }
}

/// A device whose descriptor is that of its asynchronous events.
#[derive(Debug)]
struct EventsOf(Device);

impl AsFd for EventsOf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }
}

/// Something with a descriptor that is readable while it has something.
#[derive(Debug)]
struct Readable<T> {
    source: T,
    /// The same, as the runtime has it.
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

    /// Returns when the descriptor has become readable, or may have. The caller must then look for what
    /// there is.
    async fn readable(&self) -> Result<()> {
        // What comes after this makes it readable again.
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

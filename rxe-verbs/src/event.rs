//! Events of a device: asynchronous events as verbs define them, and a log of events for a person.
//! IBTA 11.6.3.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::engine::{Affiliation, Engine, Event, ResponderError};
use rxe_core::keyed::{Keyed, KeyedQueue};
use rxe_core::types::Qpn;
use rxe_net::PcapHandle;
use rxe_sys::EventFd;

use crate::error::Result;

/// An asynchronous event of a device or of one of its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of event.
    pub kind: AsyncKind,
    /// The queue pair concerned; for [`AsyncKind::CqErr`], the queue pair whose completion was the
    /// first to be lost.
    pub qpn: Option<Qpn>,
    /// The completion queue concerned ([`crate::CompletionQueue::id`]).
    pub cq: Option<u64>,
    /// The shared receive queue concerned.
    pub srq: Option<u32>,
    /// A description of the event for a person.
    pub text: String,
}

/// The kinds of asynchronous events, numbered as in `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum AsyncKind {
    /// A completion queue overflowed; its queue pairs are in the error state.
    CqErr = 0,
    /// A queue pair failed because of a local error.
    QpFatal = 1,
    /// A queue pair failed because its peer sent an invalid request.
    QpReqErr = 2,
    /// A queue pair failed because its peer's request violated memory access rights.
    QpAccessErr = 3,
    /// The first packet arrived on a queue pair that is ready to receive.
    CommEst = 4,
    /// A send queue has drained.
    SqDrained = 5,
    /// The device has stopped working: its network backend failed, or its interface was removed.
    DeviceFatal = 8,
    /// The port carries packets again. The first packets may still be lost, because the kernel must
    /// resolve the neighbour's address anew and repeats a lost query only after a second.
    PortActive = 9,
    /// The port no longer carries packets: its interface is down, without carrier or removed.
    PortErr = 10,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A queue pair will take no more receives from its shared receive queue.
    QpLastWqeReached = 16,
    /// The interface's addresses, and therefore the GID table, have changed.
    GidChange = 18,
}

impl AsyncKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
        Self::GidChange,
    ];

    /// Returns the name in libibverbs, such as `IBV_EVENT_QP_FATAL`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CqErr => "IBV_EVENT_CQ_ERR",
            Self::QpFatal => "IBV_EVENT_QP_FATAL",
            Self::QpReqErr => "IBV_EVENT_QP_REQ_ERR",
            Self::QpAccessErr => "IBV_EVENT_QP_ACCESS_ERR",
            Self::CommEst => "IBV_EVENT_COMM_EST",
            Self::SqDrained => "IBV_EVENT_SQ_DRAINED",
            Self::DeviceFatal => "IBV_EVENT_DEVICE_FATAL",
            Self::PortActive => "IBV_EVENT_PORT_ACTIVE",
            Self::PortErr => "IBV_EVENT_PORT_ERR",
            Self::SrqLimitReached => "IBV_EVENT_SRQ_LIMIT_REACHED",
            Self::QpLastWqeReached => "IBV_EVENT_QP_LAST_WQE_REACHED",
            Self::GidChange => "IBV_EVENT_GID_CHANGE",
        }
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(qpn) = self.qpn {
            write!(f, " (QP {qpn})")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Asynchronous events that wait for the program: the newest of each kind for each object. Their
/// number is therefore bounded by the number of objects.
#[derive(Debug)]
pub(crate) struct AsyncEvents {
    queue: Mutex<KeyedQueue<Pending>>,
    /// Readable while an event waits. `None` on a simulated host, where no thread sleeps on it.
    fd: Option<Arc<EventFd>>,
}

/// An asynchronous event that waits for the program.
#[derive(Debug)]
struct Pending {
    kind: AsyncKind,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    /// An engine's event, about one object.
    Engine(Event),
    /// An event of the device as a whole, described for a person.
    Device(String),
}

/// Events are keyed by object; `None` stands for the device.
impl Keyed for Pending {
    type Key = Option<Affiliation>;

    fn keys(&self) -> [Option<Option<Affiliation>>; 2] {
        let object = match &self.cause {
            Cause::Engine(event) => event.affiliation(),
            Cause::Device(_) => None,
        };
        [Some(object), None]
    }
}

impl From<Pending> for AsyncEvent {
    fn from(Pending { kind, cause }: Pending) -> Self {
        match cause {
            Cause::Engine(event) => {
                let (cq, srq) = match event {
                    Event::CqOverflow { cq, .. } => (Some(cq), None),
                    Event::SrqLimitReached { srq } => (None, Some(srq)),
                    _ => (None, None),
                };
                Self { kind, qpn: event.qpn(), cq, srq, text: event.to_string() }
            }
            Cause::Device(text) => Self { kind, qpn: None, cq: None, srq: None, text },
        }
    }
}

/// The descriptor that all simulated hosts share. It is never readable.
static NEVER: OnceLock<EventFd> = OnceLock::new();

impl AsyncEvents {
    pub(crate) fn new(fd: Arc<EventFd>) -> Self {
        Self { queue: Mutex::default(), fd: Some(fd) }
    }

    /// Creates the event queue of a device on a simulated host.
    pub(crate) fn simulated() -> Result<Self> {
        if NEVER.get().is_none() {
            // Another thread may have set it meanwhile.
            let _ = NEVER.set(EventFd::new()?);
        }
        Ok(Self { queue: Mutex::default(), fd: None })
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut queue = self.queue.lock();
        let event = queue.pop();
        if queue.is_empty() {
            self.clear();
        } else {
            // A thread that was asleep in read(2) of the descriptor has cleared it.
            self.set();
        }
        event.map(AsyncEvent::from)
    }

    /// Removes the events of a destroyed object. An event of a completion queue stays if the queue
    /// pair that it names is destroyed.
    pub(crate) fn forget(&self, object: Affiliation) {
        let mut queue = self.queue.lock();
        if !queue.remove(Some(object)).is_empty() && queue.is_empty() {
            self.clear();
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        let own = self.fd.as_deref().or_else(|| NEVER.get());
        own.expect("made with the events").as_fd()
    }

    /// Adds an event of the device as a whole.
    pub(crate) fn of_device(&self, kind: AsyncKind, text: String) {
        self.push(Pending { kind, cause: Cause::Device(text) });
    }

    fn push(&self, event: Pending) {
        let mut queue = self.queue.lock();
        for object in event.keys().into_iter().flatten() {
            // The newer event goes to the end, so the last event about a port tells its present
            // state.
            queue.remove_if(object, |pending| pending.kind == event.kind);
        }
        queue.push(event);
        self.set();
    }

    fn set(&self) {
        if let Some(fd) = &self.fd {
            fd.set();
        }
    }

    fn clear(&self) {
        if let Some(fd) = &self.fd {
            fd.clear();
        }
    }
}

/// The newest events of an engine, oldest first.
pub(crate) type Log = VecDeque<Event>;

/// Distributes an engine's events to the log, the program, captures and observers.
pub(crate) struct Events {
    log: Log,
    asyncs: Arc<AsyncEvents>,
    capture: Option<PcapHandle>,
    /// The capture by another process, while there is one.
    live: Option<PcapHandle>,
    observers: Option<Arc<Observers>>,
}

/// A callback for each event, called in order after the turn in which the event happened.
pub(crate) type Observer = Box<dyn Fn(&Event) + Send>;

/// The number of events in this process that still wait for an observer.
static UNDELIVERED: AtomicUsize = AtomicUsize::new(0);

/// Returns whether an event still waits for an observer. Async-signal-safe.
pub(crate) fn has_undelivered_events() -> bool {
    UNDELIVERED.load(Ordering::Acquire) > 0
}

/// Events that wait for an observer.
///
/// An observer may block, for example in a write to a stopped terminal. It is therefore called
/// without the shard's lock, by a thread that has just released it.
pub(crate) struct Observers {
    /// Oldest first.
    events: Mutex<VecDeque<Event>>,
    /// Whether events may wait.
    any: AtomicBool,
    observer: Mutex<Observer>,
    /// Whether the observer did not return within the last timeout.
    slow: AtomicBool,
}

impl Observers {
    /// The most events that wait. If the observer is slower than the events, it misses the newest.
    const CAPACITY: usize = 4096;

    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            events: Mutex::default(),
            any: AtomicBool::new(false),
            observer: Mutex::new(observer),
            slow: AtomicBool::new(false),
        }
    }

    /// Queues an event for the observer.
    fn note(&self, event: &Event) {
        let mut events = self.events.lock();
        if events.len() < Self::CAPACITY {
            events.push_back(*event);
            UNDELIVERED.fetch_add(1, Ordering::Release);
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Delivers the events noted so far, and waits up to `timeout` while another thread does. An
    /// observer that takes longer is not waited for again until it returns.
    pub(crate) fn wait(&self, timeout: Duration) {
        let timeout = if self.slow.load(Ordering::Relaxed) { Duration::ZERO } else { timeout };
        let free = self.observer.try_lock_for(timeout).is_some();
        self.slow.store(!free, Ordering::Relaxed);
        self.deliver();
    }

    /// Calls the observer with the waiting events, unless another thread is doing so. That thread
    /// checks again after it has released the observer's lock, so no event is stranded.
    pub(crate) fn deliver(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        loop {
            // If one thread has just noted an event and another has just released the lock, at
            // least one of them sees what the other did.
            fence(Ordering::SeqCst);
            if !self.any.load(Ordering::Relaxed) {
                return;
            }
            let Some(observer) = self.observer.try_lock() else { return };
            self.any.store(false, Ordering::SeqCst);
            loop {
                let event = self.events.lock().pop_front();
                let Some(event) = event else { break };
                observer(&event);
                UNDELIVERED.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

impl Drop for Observers {
    fn drop(&mut self) {
        UNDELIVERED.fetch_sub(self.events.get_mut().len(), Ordering::Release);
    }
}

impl Events {
    /// The number of events that are kept for [`Events::take_log`].
    const LOG: usize = 256;

    /// Creates the distribution; `capture` is the capture file, if traffic is captured.
    pub(crate) fn new(
        asyncs: Arc<AsyncEvents>,
        capture: Option<PcapHandle>,
        observers: Option<Arc<Observers>>,
    ) -> Self {
        Self { log: Log::new(), asyncs, capture, live: None, observers }
    }

    /// Sets or clears the capture by another process.
    pub(crate) fn set_live_capture(&mut self, capture: Option<PcapHandle>) {
        self.live = capture;
    }

    /// Returns the observers, which are called after the shard's lock is released.
    pub(crate) fn observers(&self) -> Option<Arc<Observers>> {
        self.observers.clone()
    }

    /// Takes and distributes the engine's events. Called after each frame and before its effects
    /// are sent, so that the capture shows an event next to the frame that caused it, and a flood
    /// of bad packets cannot displace an event that the program must learn of.
    pub(crate) fn take_all(&mut self, engine: &mut Engine) {
        while let Some(event) = engine.poll_event() {
            for capture in [&self.capture, &self.live].into_iter().flatten() {
                capture.event(&event);
            }
            if let Some(observers) = &self.observers {
                observers.note(&event);
            }
            self.record(event);
        }
    }

    /// Removes the events of a destroyed queue pair, whose number may be assigned again. The
    /// engine's events must have been taken before.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.asyncs.forget(Affiliation::Qp(qpn));
    }

    pub(crate) fn take_log(&mut self) -> Log {
        std::mem::take(&mut self.log)
    }

    fn record(&mut self, event: Event) {
        if let Some(kind) = as_async(&event) {
            self.asyncs.push(Pending { kind, cause: Cause::Engine(event) });
        }
        if self.log.len() == Self::LOG {
            self.log.pop_front();
        }
        self.log.push_back(event);
    }
}

/// Returns the kind of event that verbs define for an engine's event, if any.
fn as_async(event: &Event) -> Option<AsyncKind> {
    Some(match *event {
        Event::CommunicationEstablished { .. } => AsyncKind::CommEst,
        Event::SqDrained { .. } => AsyncKind::SqDrained,
        Event::CqOverflow { .. } => AsyncKind::CqErr,
        Event::SrqLimitReached { .. } => AsyncKind::SrqLimitReached,
        Event::LastWqeReached { .. } => AsyncKind::QpLastWqeReached,
        Event::ResponderFailed { error, .. } => match error {
            ResponderError::RemoteAccess(_) | ResponderError::MisalignedAtomic => {
                AsyncKind::QpAccessErr
            }
            ResponderError::BadReceiveBuffer(_) => AsyncKind::QpFatal,
            _ => AsyncKind::QpReqErr,
        },
        _ => return None,
    })
}

/// Describes an event in one line, including the queue pair concerned.
pub(crate) fn explain(event: &Event) -> String {
    match event.qpn() {
        // The text of these events names the queue pair.
        Some(_) if matches!(event, Event::Dropped { .. }) => event.to_string(),
        Some(qpn) => format!("QP {qpn}: {event}"),
        None => event.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn readable(events: &AsyncEvents) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(events.fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn the_descriptor_is_readable_while_an_event_waits() {
        let events = AsyncEvents::new(Arc::new(EventFd::new().unwrap()));
        assert!(!readable(&events));
        events.of_device(AsyncKind::DeviceFatal, "one".into());
        events.of_device(AsyncKind::PortErr, "two".into());
        assert!(readable(&events));
        assert_eq!(events.take().unwrap().to_string(), "IBV_EVENT_DEVICE_FATAL: one");
        assert!(readable(&events));
        assert_eq!(events.take().unwrap().text, "two");
        assert!(!readable(&events));
        assert_eq!(events.take(), None);
    }

    fn push(events: &AsyncEvents, event: Event) {
        events.push(Pending { kind: as_async(&event).unwrap(), cause: Cause::Engine(event) });
    }

    #[test]
    fn every_object_has_its_events_and_one_of_each_kind() {
        const COUNT: u32 = 20_000;
        let events = AsyncEvents::new(Arc::new(EventFd::new().unwrap()));
        let qpn = |n| Qpn::new(16 + n).unwrap();
        for _ in 0..2 {
            for n in 0..COUNT {
                push(&events, Event::CommunicationEstablished { qpn: qpn(n) });
                push(&events, Event::SqDrained { qpn: qpn(n) });
            }
        }
        for kind in [AsyncKind::PortErr, AsyncKind::PortActive, AsyncKind::PortErr] {
            events.of_device(kind, String::new());
        }
        for n in 0..COUNT {
            let of = |kind| Some((kind, Some(qpn(n))));
            let next = || events.take().map(|event| (event.kind, event.qpn));
            assert_eq!([next(), next()], [of(AsyncKind::CommEst), of(AsyncKind::SqDrained)]);
        }
        let left: Vec<_> = std::iter::from_fn(|| events.take()).map(|e| e.kind).collect();
        assert_eq!(left, [AsyncKind::PortActive, AsyncKind::PortErr], "the last one holds");
        assert!(!readable(&events));
    }

    #[test]
    fn what_is_forgotten_with_a_queue_pair_is_its_own() {
        let events = AsyncEvents::new(Arc::new(EventFd::new().unwrap()));
        let [gone, other] = [17, 18].map(|n| Qpn::new(n).unwrap());
        let comes = |qpn| push(&events, Event::CommunicationEstablished { qpn });
        comes(gone);
        push(&events, Event::LastWqeReached { qpn: gone });
        events.forget(Affiliation::Qp(gone));
        assert!(!readable(&events));
        comes(gone);
        comes(other);
        push(&events, Event::CqOverflow { cq: 3, qpn: gone });
        events.forget(Affiliation::Qp(gone));
        assert!(readable(&events));
        let left: Vec<_> = std::iter::from_fn(|| events.take()).map(|e| (e.kind, e.qpn)).collect();
        assert_eq!(left, [(AsyncKind::CommEst, Some(other)), (AsyncKind::CqErr, Some(gone))]);
    }

    #[test]
    fn a_responder_s_failure_is_an_event_by_its_error() {
        let qpn = Qpn::new(17).unwrap();
        let kind = |error| as_async(&Event::ResponderFailed { qpn, error, asked: None }).unwrap();
        assert_eq!(kind(ResponderError::BadLength), AsyncKind::QpReqErr);
        assert_eq!(
            kind(ResponderError::RemoteAccess(rxe_core::mem::AccessError::OutOfBounds)),
            AsyncKind::QpAccessErr
        );
        assert_eq!(as_async(&Event::RnrNakReceived { qpn, psn: Default::default() }), None);
    }
}

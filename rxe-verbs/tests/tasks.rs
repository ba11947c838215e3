//! Completions and events as futures.

mod common;

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use common::*;
use rxe_verbs::cluster::Cluster;
use rxe_verbs::cm::{CmEventKind, EventChannel, PortSpace};
use rxe_verbs::task::{Completions, ConnectionEvents, DeviceEvents};
use rxe_verbs::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Creates a runtime with this many threads, or one on this thread if 0.
fn runtime(threads: usize) -> Runtime {
    let mut builder =
        if threads > 0 { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.worker_threads(threads.max(1)).enable_all().build().unwrap()
}

/// A queue pair connected to itself, with the futures of its completions.
struct Own {
    qp: QueuePair,
    completions: Completions,
    memory: MemoryRegion,
}

impl Own {
    fn new(depth: u32) -> Self {
        let device = open(address());
        let pd = device.create_pd().unwrap();
        let completions = Completions::new(&device, depth).unwrap();
        let qp = pd.qp(completions.queue()).build().unwrap();
        qp.connect(&qp.endpoint(), &patient()).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = pd.register(64, access).unwrap();
        Self { qp, completions, memory }
    }

    /// Posts a READ with this `wr_id`.
    fn read(&self, id: u64) {
        let (from, to) = (self.memory.remote(0), self.memory.slice(8..16));
        self.qp.read(id, &[to], from).post().unwrap();
    }
}

/// Polls a future once. Returns its output if it is ready.
fn asked_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

async fn in_time<T>(future: impl Future<Output = Result<T>>) -> T {
    timeout(TIMEOUT, future).await.expect("it comes").unwrap()
}

#[test]
fn each_task_gets_the_completion_it_asks_for() {
    for threads in [0, 4] {
        runtime(threads).block_on(async {
            let own = std::sync::Arc::new(Own::new(256));
            let mut tasks = JoinSet::new();
            for task in 0..16 {
                let own = own.clone();
                tasks.spawn(async move {
                    for round in 0..50 {
                        let id = task * 1000 + round;
                        own.read(id);
                        let done = in_time(own.completions.of(id)).await;
                        assert_eq!((done.id, done.status), (id, Status::Success));
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.unwrap();
            }
            assert!(asked_once(own.completions.next()).is_none());
        });
    }
}

#[test]
fn a_future_that_is_dropped_has_taken_nothing() {
    runtime(0).block_on(async {
        let own = Own::new(16);
        assert!(asked_once(own.completions.next()).is_none());
        own.read(1);
        own.read(2);
        // Each future is dropped after one poll, at an arbitrary moment of the READ.
        let mut ids = Vec::new();
        let end = Instant::now() + TIMEOUT;
        while ids.len() < 2 {
            assert!(Instant::now() < end, "{ids:?}");
            let done = asked_once(own.completions.next());
            ids.extend(done.map(|done| done.unwrap().id));
            tokio::task::yield_now().await;
        }
        assert_eq!(ids, [1, 2]);
    });
}

#[test]
fn a_completion_that_nobody_asked_for_yet_is_kept() {
    runtime(0).block_on(async {
        let own = Own::new(16);
        for id in 1..=3 {
            own.read(id);
        }
        assert_eq!(in_time(own.completions.of(3)).await.id, 3);
        assert_eq!(in_time(own.completions.next()).await.id, 1);
        assert_eq!(in_time(own.completions.of(2)).await.id, 2);
    });
}

#[test]
fn a_task_sleeps_until_a_message_comes() {
    runtime(0).block_on(async {
        let own = Own::new(16);
        own.qp.recv(1, &[own.memory.slice(..)]).unwrap();
        let mut waiting = std::pin::pin!(own.completions.of(1));
        for _ in 0..10 {
            assert!(timeout(Duration::from_millis(2), &mut waiting).await.is_err());
        }
        // The sender is a thread without a runtime.
        std::thread::scope(|scope| {
            scope.spawn(|| own.qp.send_bytes(2, b"hello").unsignaled().post().unwrap());
        });
        assert_eq!(in_time(waiting).await.byte_len, 5);
    });
}

#[test]
fn who_polls_for_another_tells_it() {
    // On a single thread, descriptors are polled only while a task waits.
    runtime(0).block_on(async {
        let own = Own::new(16);
        let mut waiting = std::pin::pin!(own.completions.of(1));
        assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
        own.read(1);
        let end = Instant::now() + TIMEOUT;
        while own.completions.queue().is_empty() {
            assert!(Instant::now() < end, "the READ completes");
        }
        assert!(asked_once(own.completions.of(2)).is_none());
        assert!(own.completions.queue().is_empty());
        assert_eq!(in_time(waiting).await.id, 1);
    });
}

#[test]
fn as_many_as_the_queue_holds_are_kept() {
    runtime(0).block_on(async {
        let own = Own::new(4);
        for id in 1..=4 {
            own.read(id);
        }
        let full = timeout(TIMEOUT, own.completions.of(9)).await.expect("it fails in time");
        assert!(matches!(full, Err(Error::CqOverflow { depth: 4 })), "{full:?}");
        // The completions can still be taken.
        for id in 1..=4 {
            assert_eq!(in_time(own.completions.of(id)).await.id, id);
        }
    });
}

#[test]
fn events_of_connections_and_devices_are_futures() {
    runtime(2).block_on(async {
        let ip = address();
        let device = open(ip);
        let events = ConnectionEvents::new(EventChannel::on(&[device]).unwrap()).unwrap();
        let id = events.channel().create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, (ip, 1).into()).unwrap();
        assert_eq!(in_time(events.next()).await.kind, CmEventKind::AddrResolved);
        assert!(asked_once(events.next()).is_none());

        // A message that is larger than the posted receive fails the responder.
        let (a, b) = pair();
        let happenings = DeviceEvents::new(&b.device).unwrap();
        let waiting = tokio::spawn(async move {
            loop {
                let event = happenings.next().await.unwrap();
                if event.kind == AsyncKind::QpReqErr {
                    return event.qpn;
                }
            }
        });
        b.qp.recv(1, &[b.region(4).slice(..)]).unwrap();
        a.qp.send_bytes(1, &[0; 8]).post().unwrap();
        let qpn = timeout(TIMEOUT, waiting).await.expect("it comes").unwrap();
        assert_eq!(qpn, Some(b.qp.qpn()));
    });
}

#[test]
fn what_cannot_be_waited_for_is_refused() {
    let refused = |made: Result<Completions>, why: &str| {
        let text = made.map(|_| ()).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    };
    let device = open(address());
    refused(Completions::new(&device, 16), "must be called from the context of a Tokio");
    let _inside = runtime(0);
    let _entered = _inside.enter();
    refused(Completions::new(&device, 0), "at least 1");
    let mut cluster = Cluster::new(1);
    let host = cluster.add_host().unwrap();
    refused(Completions::new(host.device(), 16), "the device is simulated");
}

//! The thread that forwards messages whose recipient is found in a file.
//!
//! These are requests to a service, whose process a claim names ([`super::directory`]), messages
//! for the process that has received a request, and all messages if the directory is on a disk.
//! Reading a file may sleep, which a shard must not do while it holds its lock.
//!
//! A message without a recipient goes to this device's own inbox, so that its engine refuses it: a
//! request to a service on which no process listens, or a message to a block of queue pair numbers
//! that no process has.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::net::SocketAddrUnix;

use super::Blocks;
use super::directory::{Directory, ScopedAddr};
use super::services::{Services, closed_service};
use super::tx_queue::{AGAIN, CAPACITY, TxQueue};
use rxe_sys::spawn_thread;

/// The handle of the forwarding thread. The thread starts with the first job and ends when this is
/// dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    directory: Arc<Directory>,
    services: Weak<Services>,
    /// The channel to the thread, or `None` if it does not run.
    jobs: Mutex<Option<Sender<Job>>>,
    /// The bytes that wait for the thread.
    waiting: Arc<AtomicUsize>,
}

/// A job for the thread.
enum Job {
    Forward(ForwardedMessage, Waiting),
    /// Releases the claims of ended listeners when their time is over.
    Expire,
}

/// A message to forward.
pub(super) struct ForwardedMessage {
    /// The address on which the message has arrived.
    pub(super) addr: ScopedAddr,
    pub(super) to: Recipient,
    pub(super) message: Vec<u8>,
}

/// The recipient of a message.
pub(super) enum Recipient {
    /// The device that has this block; if there is none, the device that has the block
    /// `fallback_block`.
    Block { block: u8, fallback_block: u8 },
    /// The device that listens to the service. If there is none, the device that has the block
    /// `fallback_block`.
    Service { service: u64, fallback_block: u8 },
    /// All devices that listen to a service, or did until recently, except the one that has these
    /// blocks.
    Listeners { except: Blocks },
}

impl Forwarder {
    pub(super) fn new(directory: Arc<Directory>, services: &Arc<Services>) -> Self {
        let services = Arc::downgrade(services);
        Self { directory, services, jobs: Mutex::default(), waiting: Arc::default() }
    }

    /// Forwards a message. Returns `false` if there is no thread. If too many bytes wait, the
    /// message is lost, as on a wire.
    pub(super) fn send(&self, forwarded: ForwardedMessage) -> bool {
        let waiting = Waiting::new(&self.waiting, forwarded.message.len());
        if self.waiting.load(Ordering::Relaxed) > CAPACITY {
            return true;
        }
        self.give(Job::Forward(forwarded, waiting))
    }

    /// Tells the thread that a listener has ended. It calls [`Services::expire`] when its time is
    /// over.
    pub(super) fn expire(&self) {
        // Without a thread the claim is released when the device is closed, at the latest.
        let _ = self.give(Job::Expire);
    }

    /// Gives a job to the thread. Returns `false` if no thread can be started. If the thread has
    /// panicked, a new one replaces it.
    fn give(&self, job: Job) -> bool {
        let mut known = self.jobs.lock();
        let job = match &*known {
            None => job,
            Some(jobs) => match jobs.send(job) {
                Ok(()) => return true,
                Err(SendError(job)) => job,
            },
        };
        *known = self.start();
        known.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Starts a thread and returns the channel to it.
    fn start(&self) -> Option<Sender<Job>> {
        let (jobs, theirs) = channel();
        let thread = Thread {
            directory: Arc::clone(&self.directory),
            services: Weak::clone(&self.services),
            out: TxQueue::new(None),
        };
        // The thread is not joined: it ends when the last sender is dropped.
        spawn_thread("rxe-forward", move || thread.run(&theirs)).ok().map(|_| jobs)
    }
}

/// Counts bytes that wait for the thread until it is dropped, even if the thread has ended.
struct Waiting {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Waiting {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Self {
        all.fetch_add(bytes, Ordering::Relaxed);
        Self { all: Arc::clone(all), bytes }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Thread {
    directory: Arc<Directory>,
    services: Weak<Services>,
    out: TxQueue,
}

impl Thread {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let now = Instant::now();
            let expiry = self.services.upgrade().and_then(|services| services.expire(now));
            let timeout = match expiry {
                _ if !self.out.is_empty() => Some(AGAIN),
                expiry => expiry.map(|at| at.saturating_duration_since(now)),
            };
            let job = match timeout {
                Some(timeout) => jobs.recv_timeout(timeout),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(Job::Forward(forwarded, waiting)) => {
                    drop(waiting);
                    self.forward(&forwarded);
                }
                Ok(Job::Expire) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.out.try_again();
        }
    }

    fn forward(&mut self, forwarded: &ForwardedMessage) {
        match forwarded.to {
            Recipient::Block { block, fallback_block } => {
                if !self.send(forwarded, block) {
                    self.send(forwarded, fallback_block);
                }
            }
            Recipient::Service { service, fallback_block } => {
                let sent = [service, closed_service(service)].into_iter().any(|service| {
                    let block = self.directory.claimed_by(&forwarded.addr, service);
                    block.is_some_and(|block| self.send(forwarded, block))
                });
                if !sent {
                    self.send(forwarded, fallback_block);
                }
            }
            Recipient::Listeners { except } => {
                for block in self.directory.claimants(&forwarded.addr).iter() {
                    if !except.has(block) {
                        self.send(forwarded, block);
                    }
                }
            }
        }
    }

    /// Sends a message to an inbox. Returns `false` if the inbox does not exist.
    fn send(&mut self, forwarded: &ForwardedMessage, block: u8) -> bool {
        let inbox = self.directory.inbox(&forwarded.addr, block).ok_or(io::ErrorKind::NotFound);
        let to = inbox.map_err(io::Error::from).and_then(|path| Ok(SocketAddrUnix::new(path)?));
        to.is_ok_and(|to| self.out.send(to, &forwarded.message, &[]))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use rxe_sys::unix::NamedSocket;

    fn forwarded(addr: ScopedAddr) -> ForwardedMessage {
        ForwardedMessage {
            addr,
            to: Recipient::Block { block: 1, fallback_block: 2 },
            message: vec![0; 4096],
        }
    }

    #[test]
    fn what_waits_for_the_thread_is_bounded() {
        let directory = Arc::new(Directory::first_of([]));
        let services = Arc::new(Services::new(Arc::clone(&directory), 0));
        let forwarder = Forwarder::new(directory, &services);
        // A thread that never runs.
        let (jobs, theirs) = channel();
        *forwarder.jobs.lock() = Some(jobs);
        let addr = ScopedAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), 0);
        for _ in 0..10 * CAPACITY / 4096 {
            assert!(forwarder.send(forwarded(addr)));
        }
        assert_eq!(theirs.try_iter().count(), CAPACITY / 4096);
    }
    #[test]
    fn a_thread_that_has_ended_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::first_of([scratch.path().join("rxe")]));
        let addr = ScopedAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), 0);
        let _lock = directory.lock(&addr).unwrap();
        let inbox = NamedSocket::inbox(&directory.inbox(&addr, 1).unwrap()).unwrap();
        let services = Arc::new(Services::new(Arc::clone(&directory), 0));
        let forwarder = Forwarder::new(directory, &services);
        // A thread that has ended with a message in its queue.
        let (jobs, theirs) = channel();
        jobs.send(Job::Forward(forwarded(addr), Waiting::new(&forwarder.waiting, CAPACITY)))
            .unwrap();
        drop(theirs);
        *forwarder.jobs.lock() = Some(jobs);
        assert!(forwarder.send(forwarded(addr)));
        rustix::event::poll(&mut [PollFd::new(&inbox, PollFlags::IN)], None).unwrap();
        assert_eq!(inbox.receive(&mut [0; 8192]).unwrap().unwrap().len, 4096);
    }
}

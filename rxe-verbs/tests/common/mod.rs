//! Helpers that the tests share. Each device has an address of its own, so that tests can run
//! simultaneously.

#![allow(dead_code, reason = "each test uses some of it")]

mod namespace;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_net::{XdpMode, XdpRefusal};
use rxe_verbs::*;

#[allow(unused_imports, reason = "each test uses some of it")]
pub(crate) use namespace::{at_the_other_end, in_bpf_namespace, in_namespace, sh, skipped};

/// A timeout that is long enough on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns an address in 127.0.0.0/8 that no other device of this process has. The process ID in it
/// makes collisions with other processes unlikely.
pub(crate) fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let mine = NEXT.fetch_add(1, Ordering::Relaxed) % 1024;
    let process = 64 + std::process::id() % ((1 << 14) - 128);
    let [_, b, c, d] = (process << 10 | mine).to_be_bytes();
    Ipv4Addr::new(127, b, c, d).into()
}

pub(crate) fn open(ip: IpAddr) -> Device {
    Device::options("lo").address(ip).open().unwrap()
}

/// Opens a device over AF_XDP. Returns `None`, and reports a skipped test, if that is not
/// permitted.
pub(crate) fn open_xdp(options: OpenOptions, mode: XdpMode) -> Option<Device> {
    match options.backend(BackendKind::Xdp(mode)).open() {
        Ok(device) => Some(device),
        Err(Error::Net(e @ NetError::Xdp { reason: XdpRefusal::NotPermitted, .. })) => {
            skipped(thread::current().name().unwrap_or("a test"), e);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A device with a protection domain, a completion queue and a queue pair.
pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

impl Side {
    pub(crate) fn new(device: Device) -> Self {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(1024).unwrap();
        let qp = pd.qp(&cq).build().unwrap();
        Self { device, pd, cq, qp }
    }

    pub(crate) fn region(&self, len: usize) -> MemoryRegion {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        self.pd.register(len, access).unwrap()
    }

    pub(crate) fn done(&self) -> Completion {
        self.cq.wait_one(TIMEOUT).unwrap()
    }

    /// Waits for a completion and checks that it succeeded.
    pub(crate) fn ok(&self) -> Completion {
        let done = self.done();
        assert_eq!(done.status, Status::Success, "{done:?}: {:?}", self.device.explain());
        done
    }
}

/// Returns two devices with connected queue pairs.
pub(crate) fn pair() -> (Side, Side) {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    connect(&a.qp, &b.qp);
    (a, b)
}

pub(crate) fn connect(a: &QueuePair, b: &QueuePair) {
    connect_with(a, b, &patient());
}

pub(crate) fn connect_without_retries(a: &QueuePair, b: &QueuePair) {
    connect_with(a, b, &without_retries());
}

pub(crate) fn connect_with(a: &QueuePair, b: &QueuePair, options: &ConnectOptions) {
    a.connect(&b.endpoint(), options).unwrap();
    b.connect(&a.endpoint(), options).unwrap();
}

/// Returns options with which retries take at least nine seconds. The default is half a second, but
/// on a busy machine the peer may get no CPU for that long.
pub(crate) fn patient() -> ConnectOptions {
    ConnectOptions { timeout: AckTimeout::new(18).unwrap(), ..ConnectOptions::default() }
}

/// Returns options without a timeout, for connections that lose no packet. No packet is
/// retransmitted by a timer, so each packet exists once, however late it is.
pub(crate) fn without_retries() -> ConnectOptions {
    ConnectOptions { timeout: AckTimeout::INFINITE, ..ConnectOptions::default() }
}

/// Waits until the condition holds. `what` describes it in the failure.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns bytes that depend on their position and on the seed.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| [i, i >> 8].map(|n| n.to_le_bytes()[0]))
        .map(|[a, b]| a.wrapping_mul(31) ^ b ^ seed)
        .collect()
}

/// Returns whether a descriptor becomes readable within this time. Reads nothing from it.
pub(crate) fn readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

/// Waits for an event of this kind and drops the others.
pub(crate) fn async_event(device: &Device, kind: AsyncKind) -> AsyncEvent {
    loop {
        assert!(readable(&device.async_fd(), TIMEOUT), "no {kind:?} came");
        let events = std::iter::from_fn(|| device.poll_async_event());
        if let Some(event) = events.into_iter().find(|e| e.kind == kind) {
            return event;
        }
    }
}

/// Returns the directory through which processes share an address of this network namespace.
pub(crate) fn directory_of(address: &str) -> std::path::PathBuf {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let control = sockets.lines().find_map(|line| {
        let path = line.split_ascii_whitespace().last()?;
        path.ends_with(&format!("/{address}/1")).then_some(path)
    });
    std::path::Path::new(control.expect("a device on this address")).with_file_name("")
}

//! Entry points for this project's fuzzers: a device's handling of input from its neighbours. The
//! input is messages in its inbox, questions to its control socket, and files in the directory.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use rxe_core::wire::Frame;

pub use super::control::ControlMessage;
use super::control::reply;
use super::directory::{Directory, ScopedAddr};
use super::forward::Forwarding;
use super::forwarder::Forwarder;
pub use super::message::{MAX_PACKETS, emit, parse};
use super::services::Services;
use super::{Endpoint, Group};
use crate::counters::Counters;
use crate::error::NetError;
pub use rxe_sys::unix::MAX_FDS;
use rxe_sys::unix::{NamedSocket, UnixSocket};
use rxe_sys::{Epoll, SharedFd};

/// A device with one leased block on one address, without UDP sockets: files stand in for them.
pub struct Device {
    directory: Arc<Directory>,
    addr: ScopedAddr,
    block: u8,
    group: Group,
    /// Kept because dropping it removes its path.
    _inbox: NamedSocket,
    services: Arc<Services>,
    forwarding: Forwarding,
    counters: Counters,
}

impl Device {
    /// Creates a device that meets its neighbours in this directory.
    ///
    /// # Errors
    /// The kernel has no descriptors left, or refuses the directory.
    pub fn new(directory: &Path, address: IpAddr, block: u8) -> Result<Self, NetError> {
        let os = |e: io::Error| NetError::os("make a device's sockets", e);
        let directory = Arc::new(Directory::first_of([directory.to_owned()]));
        let addr = ScopedAddr::new(address, 0);
        // Taking the lock creates the address's directory.
        let lock = directory.lock(&addr).map_err(os)?;
        let inbox = directory.inbox(&addr, block).ok_or(NetError::NoBlock { address })?;
        let inbox = NamedSocket::inbox(&inbox).map_err(os)?;
        drop(lock);
        let socket = |_| Ok(SharedFd::guarded(File::open("/dev/null")?.into()));
        let group = (0..=block).map(socket).collect::<io::Result<Group>>().map_err(os)?;
        let services = Arc::new(Services::new(Arc::clone(&directory), 0));
        services.enter(address, block)?;
        let forwarder = Arc::new(Forwarder::new(Arc::clone(&directory), &services));
        let (of_directory, of_services) = (Arc::clone(&directory), Arc::clone(&services));
        let epoll = Epoll::new()?;
        let mut forwarding = Forwarding::new(of_directory, 0, of_services, forwarder, epoll);
        let socket = Some(Arc::clone(inbox.socket()));
        forwarding.add(Endpoint { addr, block, group: Arc::clone(&group), inbox: socket });
        let counters = Counters::default();
        Ok(Self { directory, addr, block, group, _inbox: inbox, services, forwarding, counters })
    }

    /// Returns the path of the device's inbox.
    pub fn inbox(&self) -> Option<PathBuf> {
        self.directory.inbox(&self.addr, self.block)
    }

    /// Returns the path of the file that claims a service on the device's address.
    pub fn service(&self, service: u64) -> Option<PathBuf> {
        self.directory.service(&self.addr, service)
    }

    /// Listens to a service.
    ///
    /// # Errors
    /// Another device has the service.
    pub fn listen(&mut self, service: u64) -> Result<(), NetError> {
        self.services.listen(service, None)
    }

    /// Hands the packets in the device's inbox to `sink`. Returns their number.
    pub fn collect(&mut self, sink: &mut dyn FnMut(&Frame<'_>)) -> usize {
        self.forwarding.collect(&mut self.counters, sink)
    }

    /// Hands the device's own packets of a received frame to `sink`, and forwards the others.
    pub fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        self.forwarding.deliver(frame, sink);
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the control socket's answer to a question, and the number of sockets sent with it.
    pub fn answer(&self, question: &[u8]) -> Option<(ControlMessage, usize)> {
        let (answer, sockets) = reply(ControlMessage::parse(question)?, &self.group)?;
        Some((answer, sockets.len()))
    }
}

/// A neighbour that sends arbitrary messages.
pub struct Stranger(UnixSocket);

impl Stranger {
    /// Creates a neighbour without a name.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn new() -> io::Result<Self> {
        UnixSocket::sender().map(Self)
    }

    /// Puts a message into an inbox.
    ///
    /// # Errors
    /// The inbox does not exist, or is full.
    pub fn send(&self, inbox: &Path, message: &[u8]) -> io::Result<()> {
        self.0.send_to(&SocketAddrUnix::new(inbox)?, &[IoSlice::new(message)])
    }
}

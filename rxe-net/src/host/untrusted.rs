//! A device's side of what its neighbours can write: messages in its inbox, questions to its control
//! socket, files in the directory. For the fuzzers of this project.

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

/// A device on one address that has leased one block, without its UDP sockets: files stand in for
/// these.
pub struct Device {
    directory: Arc<Directory>,
    addr: ScopedAddr,
    block: u8,
    group: Group,
    /// Its path goes with it.
    _inbox: NamedSocket,
    services: Arc<Services>,
    forwarding: Forwarding,
    counters: Counters,
}

impl Device {
    /// Its neighbours meet it in this directory.
    ///
    /// # Errors
    /// The system has no descriptors left, or refuses the directory.
    pub fn new(directory: &Path, address: IpAddr, block: u8) -> Result<Self, NetError> {
        let os = |e: io::Error| NetError::os("make a device's sockets", e);
        let directory = Arc::new(Directory::first_of([directory.to_owned()]));
        let addr = ScopedAddr::new(address, 0);
        // Makes the address's directory.
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

    /// The path of its inbox.
    pub fn inbox(&self) -> Option<PathBuf> {
        self.directory.inbox(&self.addr, self.block)
    }

    /// The path of the file that says who has a service on its address.
    pub fn service(&self, service: u64) -> Option<PathBuf> {
        self.directory.service(&self.addr, service)
    }

    /// Takes what is sent to a service.
    ///
    /// # Errors
    /// Another device has the service.
    pub fn listen(&mut self, service: u64) -> Result<(), NetError> {
        self.services.listen(service, None)
    }

    /// Hands over what has come into its inbox; how many packets.
    pub fn collect(&mut self, sink: &mut dyn FnMut(&Frame<'_>)) -> usize {
        self.forwarding.collect(&mut self.counters, sink)
    }

    /// Hands over what is its own of a frame off the wire, and forwards the rest.
    pub fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        self.forwarding.deliver(frame, sink);
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What its control socket answers, and with how many of its sockets.
    pub fn answer(&self, question: &[u8]) -> Option<(ControlMessage, usize)> {
        let (answer, sockets) = reply(ControlMessage::parse(question)?, &self.group)?;
        Some((answer, sockets.len()))
    }
}

/// A neighbour that sends whatever it likes.
pub struct Stranger(UnixSocket);

impl Stranger {
    /// One without a name.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        UnixSocket::sender().map(Self)
    }

    /// Puts a message into an inbox.
    ///
    /// # Errors
    /// There is no such inbox, or it is full.
    pub fn send(&self, inbox: &Path, message: &[u8]) -> io::Result<()> {
        self.0.send_to(&SocketAddrUnix::new(inbox)?, &[IoSlice::new(message)])
    }
}

//! The sockets where rings are offered to a device. Each of its blocks on each of its addresses has
//! a path, and usually all paths lead to one socket.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;

use super::{CONTROL, Destination};
use rxe_sys::Epoll;
use rxe_sys::unix::{NamedSocket, Rights, SocketPaths, UnixSocket, distinct};

/// The device's own destinations, and the sockets where rings for them are offered. `epoll` watches
/// the sockets while they have a path.
#[derive(Debug)]
pub(super) struct Listeners {
    /// The destinations that the device has listened for. They stay while it accepts no more rings.
    own: Vec<Destination>,
    all: Vec<(Destination, NamedSocket)>,
    paths: SocketPaths,
    epoll: Epoll,
}

impl Listeners {
    pub(super) fn new(epoll: Epoll) -> Self {
        Self { own: Vec::new(), all: Vec::new(), paths: SocketPaths::default(), epoll }
    }

    /// Listens for this destination under this path.
    pub(super) fn add(&mut self, own: Destination, path: &Path) -> io::Result<()> {
        let added = self.paths.listen(path, Rights::Accepted)?;
        if !self.all.iter().any(|(_, one)| one.is_same(&added)) {
            let registered = self.epoll.add(&added, CONTROL, EventFlags::IN);
            registered.map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        self.all.push((own, added));
        if !self.has(own) {
            self.own.push(own);
        }
        Ok(())
    }

    /// Removes the destinations for which `keep` returns `false`, and stops listening for them.
    pub(super) fn retain(&mut self, keep: impl Fn(&Destination) -> bool) {
        self.own.retain(&keep);
        self.listen_for(keep);
    }

    /// Stops listening for all destinations. They stay the device's own.
    pub(super) fn close(&mut self) {
        self.listen_for(|_| false);
    }

    /// Closes the paths of destinations for which `keep` returns `false`.
    fn listen_for(&mut self, keep: impl Fn(&Destination) -> bool) {
        let before = self.sockets();
        self.all.retain(|(own, _)| keep(own));
        let stays = self.sockets();
        for socket in before {
            // A forked child may still have the socket, and epoll would continue to watch it.
            if !stays.iter().any(|one| Arc::ptr_eq(one, &socket)) {
                self.epoll.delete(&*socket);
            }
        }
    }

    /// Returns whether the device listens for this destination.
    pub(super) fn listens_for(&self, own: Destination) -> bool {
        self.all.iter().any(|(one, _)| *one == own)
    }

    /// Returns whether this destination belongs to the device.
    pub(super) fn has(&self, own: Destination) -> bool {
        self.own.contains(&own)
    }

    /// Returns whether the device has a destination with this address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| *own == address)
    }

    /// Returns the sockets without duplicates.
    pub(super) fn sockets(&self) -> SmallVec<[Arc<UnixSocket>; 2]> {
        distinct(self.all.iter().map(|(_, named)| named.socket()))
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

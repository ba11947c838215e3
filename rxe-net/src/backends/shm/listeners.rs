//! Where rings are offered to a device: a path for each of its blocks on each of its addresses, and,
//! as a rule, one socket for all of them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;

use super::{CONTROL, Destination};
use rxe_sys::Epoll;
use rxe_sys::unix::{NamedSocket, Rights, SocketPaths, UnixSocket, distinct};

/// The destinations that are a device's own, and where it is offered rings for them. `epoll` watches the
/// sockets as long as they have a path.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Those that it has listened for. It stays with these when it takes no more rings.
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
            let watched = self.epoll.add(&added, CONTROL, EventFlags::IN);
            watched.map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        self.all.push((own, added));
        if !self.has(own) {
            self.own.push(own);
        }
        Ok(())
    }

    /// Forgets the destinations of which `keep` says `false`, and listens no more for them.
    pub(super) fn retain(&mut self, keep: impl Fn(&Destination) -> bool) {
        self.own.retain(&keep);
        self.listen_for(keep);
    }

    /// Listens no more, for any destination. They stay the device's own.
    pub(super) fn close(&mut self) {
        self.listen_for(|_| false);
    }

    fn listen_for(&mut self, keep: impl Fn(&Destination) -> bool) {
        let before = self.sockets();
        self.all.retain(|(own, _)| keep(own));
        let stays = self.sockets();
        for socket in before {
            // A forked child may have it still, and epoll would go on to watch it.
            if !stays.iter().any(|one| Arc::ptr_eq(one, &socket)) {
                self.epoll.delete(&*socket);
            }
        }
    }

    /// Whether it listens for this destination.
    pub(super) fn listens_for(&self, own: Destination) -> bool {
        self.all.iter().any(|(one, _)| *one == own)
    }

    /// Whether this destination is the device's own.
    pub(super) fn has(&self, own: Destination) -> bool {
        self.own.contains(&own)
    }

    /// Whether this address is that of a destination of its own.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.own.iter().any(|(own, _)| *own == address)
    }

    /// Each socket once.
    pub(super) fn sockets(&self) -> SmallVec<[Arc<UnixSocket>; 2]> {
        distinct(self.all.iter().map(|(_, named)| named.socket()))
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

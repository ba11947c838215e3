//! Where rings are offered to a device: a path for each of its blocks on each of its addresses, and,
//! as a rule, one socket for all of them.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;

use super::{CONTROL, Destination};
use crate::Epoll;
use crate::sys::unix::{NamedSocket, Rights, SocketPaths, UnixSocket, distinct};

/// The destinations for which a device offers rings. `epoll` watches the sockets as long as they have a path.
#[derive(Debug)]
pub(super) struct Listeners {
    all: Vec<(Destination, NamedSocket)>,
    paths: SocketPaths,
    epoll: Epoll,
}

impl Listeners {
    pub(super) fn new(epoll: Epoll) -> Self {
        Self { all: Vec::new(), paths: SocketPaths::default(), epoll }
    }

    /// Listens for this destination under this path.
    pub(super) fn add(&mut self, own: Destination, path: &Path) -> io::Result<()> {
        let added = self.paths.listen(path, Rights::Accepted)?;
        if !self.all.iter().any(|(_, one)| one.is_same(&added)) {
            let watched = self.epoll.add(&added, CONTROL, EventFlags::IN);
            watched.map_err(|_| io::ErrorKind::OutOfMemory)?;
        }
        self.all.push((own, added));
        Ok(())
    }

    /// Listens no more for those of which `keep` says so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Destination) -> bool) {
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

    pub(super) fn has(&self, own: Destination) -> bool {
        self.all.iter().any(|(one, _)| *one == own)
    }

    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.all.iter().any(|((own, _), _)| *own == address)
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

//! Both ends of a ring in one process: the records of [`Shm`](super::Shm) without its sockets, for tests of
//! engines whose packets go through shared memory. Any headers fit into a record, so a test can say what no
//! socket of this host may say.

use std::io;
use std::time::Duration;

use rxe_core::mem::{AccessError, Source};
use rxe_core::types::Qpn;
use rxe_core::wire::{Direct, Frame, NetHeader, Placed};

use super::link::{Incoming, MAX_COALESCED, Offered, Outgoing, Packets, Pushed, SendError};
use super::ring::{Broken, MAX_RECORD};
use super::watched::Watched;
use super::{CONTROL, WAKE};
use rxe_sys::Epoll;
use rxe_sys::unix::UnixSocket;

/// A ring, with the process that puts packets in and the one that takes them out.
#[derive(Debug)]
pub struct Lane {
    from: Outgoing,
    to: Incoming,
    buf: Box<[u8; MAX_RECORD]>,
}

impl Lane {
    /// Makes a ring, and offers and takes it as two processes do.
    ///
    /// # Errors
    /// The system has no descriptors or no memory left.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new().map_err(io::Error::other)?;
        let [here, there] = UnixSocket::pair()?;
        let from = Outgoing::offer(here)?;
        let offer = Incoming::accept(&there)?;
        let Offered { ring, wake } = offer.ok_or(io::ErrorKind::WouldBlock)?;
        let wake = Watched::new(wake, &epoll, WAKE).map_err(io::Error::other)?;
        let line = Watched::new(there, &epoll, CONTROL).map_err(io::Error::other)?;
        let buf = vec![0; MAX_RECORD].try_into().map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { from, to: Incoming::new(ring, wake, line), buf })
    }

    /// Puts a frame into the ring, as what a batch holds is; `false` if there is no room.
    ///
    /// # Errors
    /// The ring is of no more use.
    pub fn push(&mut self, frame: &Frame<'_>) -> Result<bool, Broken> {
        // Nobody is given up who does not take anything out: here only the test can do so.
        Ok(self.from.push(frame, Duration::MAX)? == Pushed::Sent)
    }

    /// Takes out about `budget` packets; how many.
    ///
    /// # Errors
    /// The ring is of no more use: a record is none that a process may write.
    pub fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, Broken> {
        self.to.receive(budget, &mut self.buf, sink).map(|(packets, _)| packets)
    }
}

impl Direct for Lane {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        match self.from.send(net, head, payload, count) {
            Ok(Packets::Sent(_)) => Ok(Placed::Sent),
            Ok(Packets::NoRoom) => Ok(Placed::NoRoom),
            Err(SendError::Payload(why)) => Err(why),
            Err(SendError::Broken) => Ok(Placed::Unsupported),
        }
    }

    fn max_coalesced(&mut self, _: &NetHeader, _: Qpn) -> usize {
        MAX_COALESCED
    }
}

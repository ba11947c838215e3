//! Both ends of a ring in one process, to test engines that use shared memory. The ring has the
//! records of [`Shm`](super::Shm), without its sockets. A record takes any headers, so a test can
//! send packets that no socket of this host could send.

use std::io;
use std::time::Duration;

use rxe_core::mem::{AccessError, Source};
use rxe_core::types::Qpn;
use rxe_core::wire::{Direct, Frame, NetHeader, Placed};

use super::link::{DirectSend, Incoming, MAX_COALESCED, Offered, Outgoing, Pushed, SendError};
use super::registered::Registered;
use super::ring::{Broken, MAX_RECORD};
use super::{CONTROL, WAKE};
use rxe_sys::Epoll;
use rxe_sys::unix::UnixSocket;

/// A ring, with both its producing and its consuming process.
#[derive(Debug)]
pub struct Lane {
    from: Outgoing,
    to: Incoming,
    buf: Box<[u8; MAX_RECORD]>,
}

impl Lane {
    /// Creates a ring, and offers and accepts it as two processes do.
    ///
    /// # Errors
    /// The kernel has no descriptors or no memory left.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new().map_err(io::Error::other)?;
        let [here, there] = UnixSocket::pair()?;
        let from = Outgoing::offer(here)?;
        let offer = Incoming::accept(&there)?;
        let Offered { ring, wake } = offer.ok_or(io::ErrorKind::WouldBlock)?;
        let wake = Registered::new(wake, &epoll, WAKE).map_err(io::Error::other)?;
        let line = Registered::new(there, &epoll, CONTROL).map_err(io::Error::other)?;
        let buf = vec![0; MAX_RECORD].try_into().map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self { from, to: Incoming::new(ring, wake, line), buf })
    }

    /// Puts a frame into the ring, in the form that a batch uses. Returns `false` if there is no
    /// room.
    ///
    /// # Errors
    /// The ring cannot be used any more.
    pub fn push(&mut self, frame: &Frame<'_>) -> Result<bool, Broken> {
        // Without a timeout: only the test itself could empty the ring.
        Ok(self.from.push(frame, Duration::MAX)? == Pushed::Sent)
    }

    /// Takes out about `budget` packets. Returns their number.
    ///
    /// # Errors
    /// The ring cannot be used any more: a record is invalid.
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
            Ok(DirectSend::Sent(_)) => Ok(Placed::Sent),
            Ok(DirectSend::NoRoom) => Ok(Placed::NoRoom),
            Err(SendError::Payload(why)) => Err(why),
            Err(SendError::Broken) => Ok(Placed::Unsupported),
        }
    }

    fn max_coalesced(&mut self, _: &NetHeader, _: Qpn) -> usize {
        MAX_COALESCED
    }
}

//! The sockets of a shard: one on each queue of an interface. All receive, and one of them also
//! sends.

use std::net::IpAddr;

use super::interface::XdpInterface;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::error::NetError;
use crate::host::Blocks;
use rxe_sys::SharedFd;

/// The number of `receive` calls between two checks for errors of the sockets.
const CLEAR_INTERVAL: usize = 1024;

/// The sockets of a shard on the queues of an interface.
pub(super) struct Queues {
    receivers: Vec<Receiver>,
    sender: Sender,
    /// The queue that is read first.
    turn: usize,
    shard: u32,
    /// Declared after the sockets, so that it is dropped after them.
    interface: XdpInterface,
}

impl Queues {
    /// Opens the sockets of one more shard.
    pub(super) fn open(interface: &XdpInterface) -> Result<Self, NetError> {
        let shard = interface.next_shard()?;
        let (receivers, sender) = interface.open_sockets(shard)?;
        Ok(Self { receivers, sender, turn: 0, shard, interface: interface.clone() })
    }

    /// Replaces the addresses and the QPN blocks to receive for.
    pub(super) fn listen_to(
        &mut self,
        addresses: &[IpAddr],
        blocks: Blocks,
    ) -> Result<(), NetError> {
        self.interface.maps().listen_to(self.shard, addresses, blocks)
    }

    /// Returns the socket that sends.
    pub(super) fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Returns how many single-chunk frames can wait on the first queue.
    pub(super) fn room(&self) -> usize {
        self.receivers.first().map_or(0, Receiver::room)
    }

    /// Hands about `budget` frames to `f`, as [`Receiver::receive`] does.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        f: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, NetError> {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(CLEAR_INTERVAL) {
            self.receivers.iter().for_each(Receiver::clear_error);
        }
        let count = self.receivers.len();
        let mut frames = 0;
        for index in (0..count).map(|i| (self.turn + i) % count) {
            frames += self.receivers[index].receive(budget - frames, f)?;
            if frames >= budget {
                break;
            }
        }
        Ok(frames)
    }

    /// Returns the number of chunks received so far on each queue.
    #[cfg(test)]
    pub(super) fn received(&self) -> Vec<u32> {
        self.receivers.iter().map(Receiver::received).collect()
    }

    /// Returns the number of chunks that wait to be received.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.receivers.iter().map(Receiver::waiting).sum()
    }

    /// Returns the number of frames lost so far for lack of room.
    pub(super) fn lost(&self) -> u64 {
        self.receivers.iter().map(Receiver::lost).sum()
    }

    /// Calls `f` with the descriptor of each socket.
    pub(super) fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.receivers.iter().for_each(|receiver| f(receiver.shared()));
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.interface.maps().forget(self.shard);
    }
}

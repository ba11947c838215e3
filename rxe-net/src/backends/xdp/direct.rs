//! Packets that the engine writes directly into frames. Headers, payload and ICRC are written where
//! the kernel or the driver reads them. The payload is copied once, and the ICRC computed while the
//! copy is in the CPU cache.
//!
//! Frames of several chunks, and packets whose next hop is unknown, go through the batch.

use rxe_core::mem::{AccessError, Source};
use rxe_core::wire::icrc::PrefixCache;
use rxe_core::wire::{Direct, NetHeader, Placed, whole_len, write_whole};

use super::XdpBackend;
use super::sender::Transmitted;
use crate::backends::packet::headers::Headers;
use crate::backends::packet::route::{Ends, Path};

/// Cached values that consecutive packets usually share.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The Ethernet address of the next hop between two addresses; `None` inside if frames cannot
    /// be sent directly. Looked up again after each [`Backend::send`](crate::Backend::send).
    hop: Option<(Ends, Option<[u8; 6]>)>,
    prefix: PrefixCache,
    /// The headers of the last IPv4 packet, with their inputs. (IPv6 headers contain a checksum of
    /// the payload, so they cannot be reused.)
    headers: Option<(NetHeader, usize, [u8; 6], Headers)>,
}

impl Recent {
    /// Forgets the next hop, because it may have changed.
    pub(super) fn forget_hop(&mut self) {
        self.hop = None;
    }

    fn headers(&mut self, net: &NetHeader, packet: &[u8], from: [u8; 6], to: [u8; 6]) -> Headers {
        match &self.headers {
            Some((of, len, hop, headers)) if (of, *len, *hop) == (net, packet.len(), to) => {
                *headers
            }
            _ => {
                let headers = Headers::plain(net, packet, from, to);
                let same = net.dst.is_ipv4();
                self.headers = same.then_some((*net, packet.len(), to, headers));
                headers
            }
        }
    }
}

impl XdpBackend {
    /// Returns the Ethernet address that frames with these headers go to, if they can be sent
    /// directly.
    fn next_hop(&mut self, net: &NetHeader) -> Option<[u8; 6]> {
        let ends = (net.src, net.dst);
        match self.recent.hop {
            Some((of, hop)) if of == ends => hop,
            _ => {
                let hop = self.find_next_hop(net);
                self.recent.hop = Some((ends, hop));
                hop
            }
        }
    }

    fn find_next_hop(&mut self, net: &NetHeader) -> Option<[u8; 6]> {
        if self.down || net.dst.is_ipv4() != net.src.is_ipv4() {
            return None;
        }
        match self.paths.known((net.src, net.dst))? {
            Path::Direct { interface, mac } if interface == self.device.index => Some(mac),
            Path::Direct { .. } | Path::Kernel => None,
        }
    }
}

impl Direct for XdpBackend {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        debug_assert_eq!(count, 1, "there are no coalesced segments");
        let Some(mac) = self.next_hop(net) else { return Ok(Placed::Unsupported) };
        let Self { recent, queues, device, counters, .. } = self;
        let len = whole_len(head.len(), payload.len());
        let front = Headers::plain_len(net);
        let prefix = recent.prefix.get(net);
        let written = queues.sender().write(front + len, |frame| {
            let (headers, packet) = frame.split_at_mut(front);
            write_whole(&prefix, head, payload, packet)?;
            let made = recent.headers(net, packet, device.mac, mac);
            let [ethernet, ip] = made.parts();
            let (to_ethernet, to_ip) = headers.split_at_mut(ethernet.len());
            to_ethernet.copy_from_slice(ethernet);
            to_ip.copy_from_slice(ip);
            Ok::<(), AccessError>(())
        })?;
        Ok(match written {
            Transmitted::Queued => {
                counters.tx_packets += 1;
                counters.tx_bytes += len as u64;
                Placed::Sent
            }
            Transmitted::NoRoom => Placed::NoRoom,
            Transmitted::TooBig => Placed::Unsupported,
        })
    }
}

#[cfg(test)]
mod tests;

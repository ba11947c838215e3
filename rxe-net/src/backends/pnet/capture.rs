//! Captures the RDMA packets of an interface on systems other than Linux.

// On Linux, this module is only compiled for its test.
#![cfg_attr(target_os = "linux", allow(unreachable_pub))]

use std::time::Duration;

use rxe_core::wire::{Ethernet, UDP_PORT, frame};

use super::{Channel, Use, find};
use crate::backends::link_frame::LinkFrame;
use crate::error::NetError;
use crate::wrappers::pcap::Direction;

/// A capture of the RDMA packets of an Ethernet interface. It includes RoCEv2 over IPv4 and IPv6
/// with CNPs, and RoCEv1, with up to two VLAN tags.
///
/// The system passes all frames of the interface to this process, which discards the others.
pub struct LinkCapture {
    channel: Channel,
    netdev: String,
    mac: [u8; 6],
}

impl LinkCapture {
    /// Starts to capture on this interface. `buffer` is the size of the queue in bytes.
    ///
    /// # Errors
    /// The interface does not exist, is down or is not Ethernet, or this process may not receive
    /// its frames.
    pub fn open(netdev: &str, buffer: u32) -> Result<Self, NetError> {
        let interface = find(netdev)?;
        // pnet knows no flags on Windows.
        if interface.is_loopback() || interface.mac.is_none() {
            return Err(NetError::NotEthernet { netdev: netdev.into() });
        }
        if cfg!(unix) && !interface.is_up() {
            return Err(NetError::DeviceDown { netdev: netdev.into() });
        }
        let user = Use {
            wants: Box::new(is_rdma),
            #[cfg(target_os = "linux")]
            filter: None,
            wake: Box::new(|| {}),
            queue: usize::try_from(buffer).unwrap_or(usize::MAX),
        };
        let channel = Channel::open(&interface, user)?;
        let mac = interface.mac.unwrap_or_default().octets();
        Ok(Self { channel, netdev: netdev.into(), mac })
    }

    /// Waits until frames have arrived, at most for `time`.
    pub fn wait(&self, time: Duration) {
        self.channel.inbox().wait(time);
    }

    /// Hands the frames that have arrived to `sink`. Returns their number; 0 if there is none.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(&mut self, sink: &mut dyn FnMut(&LinkFrame<'_>)) -> Result<usize, NetError> {
        let failed =
            |source| NetError::Channel { netdev: self.netdev.clone(), source, opened: true };
        let mut got = 0;
        while got < BATCH
            && let Some(arrived) = self.channel.inbox().take(|| {}).map_err(failed)?
        {
            let outgoing = arrived.bytes.get(6..12) == Some(&self.mac);
            let direction = if outgoing { Direction::Outbound } else { Direction::Inbound };
            sink(&LinkFrame { at: arrived.at, direction, bytes: &arrived.bytes });
            got += 1;
        }
        Ok(got)
    }

    /// Stops capturing. Frames that have arrived already can still be received.
    ///
    /// # Errors
    /// None on this system.
    pub fn stop(&self) -> Result<(), NetError> {
        self.channel.inbox().stop();
        Ok(())
    }

    /// Returns the number of frames that were dropped because they arrived too fast.
    pub fn dropped(&self) -> u64 {
        self.channel.inbox().dropped()
    }
}

/// The most frames that are handed over in a call.
const BATCH: usize = 64;

/// Returns whether the frame carries RoCEv1 or RoCEv2.
fn is_rdma(bytes: &[u8]) -> bool {
    const ROCE_V1: u16 = 0x8915;
    match Ethernet::parse(bytes) {
        Ok((ethernet, packet)) => match ethernet.ethertype {
            ROCE_V1 => true,
            Ethernet::IPV4 | Ethernet::IPV6 => {
                frame::parse_ip(packet).is_ok_and(|datagram| datagram.dst_port == UDP_PORT)
            }
            _ => false,
        },
        Err(_) => false,
    }
}

//! Membership in multicast groups.
//!
//! Joining and leaving take the kernel's lock of all interfaces (rtnl), which others may hold for as
//! long as they configure some. So both happen without a shard's lock; under it a membership is only
//! handed in ([`Sharing::add_membership`]) and out ([`Sharing::remove_membership`]).
//!
//! [`Sharing::add_membership`]: crate::Sharing::add_membership
//! [`Sharing::remove_membership`]: crate::Sharing::remove_membership

use std::net::IpAddr;
use std::sync::Arc;

use crate::NetError;
use crate::blocking::may_block;
use crate::udp_socket::UdpSocket;

/// Joins groups for a backend that need not be locked meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Joiner(Option<On>);

#[derive(Clone, Debug)]
struct On {
    index: u32,
    netdev: Arc<str>,
    recv_buffer: usize,
}

impl Joiner {
    /// On an interface, with so many bytes of receive buffer for each group.
    pub(crate) fn on(index: u32, netdev: &str, recv_buffer: usize) -> Self {
        Self(Some(On { index, netdev: netdev.into(), recv_buffer }))
    }

    /// Joins a group. It takes effect when the backend gets the membership.
    ///
    /// # Errors
    /// The interface cannot join it.
    pub fn join(&self, group: IpAddr) -> Result<Membership, NetError> {
        let socket = match &self.0 {
            None => None,
            Some(On { index, netdev, recv_buffer }) => {
                may_block("joining a group");
                let mut socket = UdpSocket::open_group(group, *index, netdev)?;
                socket.set_buffers(*recv_buffer, 0);
                Some(socket)
            }
        };
        Ok(Membership { group, socket })
    }
}

/// The membership in a group. It ends when this is dropped, which may block.
#[derive(Debug)]
pub struct Membership {
    group: IpAddr,
    /// What the kernel delivers the group's datagrams to; `None` where it has no part in it.
    socket: Option<UdpSocket>,
}

impl Membership {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        Self { group: socket.address(), socket: Some(socket) }
    }

    /// Of a backend that hears groups without the kernel.
    pub(crate) fn without_socket(group: IpAddr) -> Self {
        Self { group, socket: None }
    }

    /// The group.
    pub fn group(&self) -> IpAddr {
        self.group
    }

    pub(crate) fn into_socket(mut self) -> Option<UdpSocket> {
        self.socket.take()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.socket.is_some() {
            may_block("leaving a group");
        }
    }
}

//! Detects changes of interfaces and addresses through the multicast groups of rtnetlink.
//! `rtnetlink(7)`, `netlink(7)`.
//!
//! A message is only a hint: the caller reads the current state anew. So no change is missed if the
//! kernel drops messages, and several changes together cost one request.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

use super::{Interface, rtnetlink};
use rxe_sys::CheckedFd;
use rxe_sys::netlink::messages;

/// A monitor of the interfaces of the network namespace in which it was opened.
#[derive(Debug)]
pub struct InterfaceMonitor {
    socket: CheckedFd,
    buffer: Vec<u8>,
}

const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;

impl InterfaceMonitor {
    /// Opens the monitor in this thread's network namespace.
    ///
    /// # Errors
    /// The kernel does not allow netlink sockets.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket: CheckedFd::internal(socket), buffer: vec![0; 32 << 10] })
    }

    /// Returns whether the interface with this index may have changed since the last call. Does not
    /// block.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub fn changed(&mut self, index: u32) -> io::Result<bool> {
        self.socket.ensure().map_err(io::Error::other)?;
        let mut changed = false;
        loop {
            match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((len, real, from)) => {
                    let from = from.and_then(|a| SocketAddrNetlink::try_from(a).ok());
                    if from.is_some_and(|a| a.pid() != 0) {
                        continue;
                    }
                    let about = |m| rtnetlink::about(&m) == Some(index);
                    changed |= real > len || messages(&self.buffer[..len]).any(about);
                }
                Err(Errno::AGAIN) => return Ok(changed),
                Err(Errno::INTR) => {}
                // The kernel dropped messages, so any interface may have changed.
                Err(Errno::NOBUFS) => changed = true,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The descriptor is readable when any interface has changed.
impl AsFd for InterfaceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Interface {
    /// Returns the current state of the interface with this index, or `None` if it is gone.
    ///
    /// # Errors
    /// As [`Interface::list`].
    pub fn by_index(index: u32) -> io::Result<Option<Self>> {
        Ok(Self::list()?.into_iter().find(|interface| interface.index == index))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::testing::in_namespace;

    #[test]
    fn changes_of_the_interface_are_noticed_and_of_others_are_not() {
        let setup = "for i in 0 1; do ip link add veth$i type veth peer name peer$i; done";
        in_namespace(setup, || {
            let all = Interface::list().unwrap();
            let index = all.iter().find(|i| i.name == "veth0").unwrap().index;
            let mut monitor = InterfaceMonitor::open().unwrap();
            assert!(!monitor.changed(index).unwrap());
            for (command, expected) in [
                ("ip address add 10.9.0.1/24 dev veth0", true),
                ("ip address add 10.9.1.1/24 dev veth1", false),
                ("ip link set veth0 up", true),
                ("ip link set veth1 up", false),
                ("ip address del 10.9.0.1/24 dev veth0", true),
                ("ip link del veth0", true),
            ] {
                assert!(Command::new("sh").args(["-c", command]).status().unwrap().success());
                let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
                let fds = &mut [PollFd::new(&monitor, PollFlags::IN)];
                assert_eq!(poll(fds, Some(&limit)).unwrap(), 1, "{command}");
                let mut changed = monitor.changed(index).unwrap();
                if !expected {
                    // Duplicate detection of link-local addresses continues in the background.
                    changed = changed
                        && Interface::by_index(index)
                            .unwrap()
                            .unwrap()
                            .addresses
                            .iter()
                            .all(|a| a.ip.is_ipv4());
                }
                assert_eq!(changed, expected, "{command}");
            }
            assert_eq!(Interface::by_index(index).unwrap(), None);
        });
    }
}

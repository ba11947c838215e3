//! Asks the kernel about the host's own devices, for programs that are shown them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, RecvFlags, SendFlags, sockopt};

use super::message::{Attributes, Part, Request};

/// How long the kernel may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of a list. A longer list is not shown.
const MOST: usize = 64 << 20;

/// Returns the messages of the kernel's answer, or its errno.
pub(super) fn answer(request: &Request<'_>) -> Result<Vec<Attributes>, i32> {
    ask(request).unwrap_or_else(|e| Err(e.raw_os_error().unwrap_or(libc::EIO)))
}

fn ask(request: &Request<'_>) -> io::Result<Result<Vec<Attributes>, i32>> {
    let socket = open()?;
    net::send(&socket, &request.to_kernel(), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    let mut total = 0;
    while total < MOST {
        // With TRUNC, a message longer than the buffer is truncated, but its full length is
        // returned.
        let (_, length) = net::recv(&socket, &mut *bytes, RecvFlags::TRUNC)?;
        let Some(datagram) = bytes.get(..length).filter(|datagram| !datagram.is_empty()) else {
            break;
        };
        total += length;
        for part in Part::all(datagram) {
            match part {
                Part::Message(attributes) => found.push(attributes),
                Part::End(0) => return Ok(Ok(found)),
                Part::End(error) => return Ok(Err(error)),
            }
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn open() -> io::Result<OwnedFd> {
    let (netlink, raw) = (net::AddressFamily::NETLINK, net::SocketType::RAW);
    // A direct system call, because the C library's function would lead back to this library.
    let socket =
        net::socket_with(netlink, raw, net::SocketFlags::CLOEXEC, Some(net::netlink::RDMA))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
    net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

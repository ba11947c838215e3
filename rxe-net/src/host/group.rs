//! How a process gets the sockets of an address's group. It asks processes that hold them, and adds
//! its own. The caller holds the address's lock.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit};
use rxe_core::wire::{QPN_BLOCK, UDP_PORT};

use super::BLOCKS;
use super::control::{ControlMessage, VERSION};
use super::deadline::{Deadline, TIMEOUT};
use super::directory::{Directory, ScopedAddr};
use crate::error::{NetError, PortOwner};
use crate::host::port_owner;
use rxe_sys::SharedFd;
use rxe_sys::sockopt::{attach_steering, get_int, namespace_cookie};
use rxe_sys::unix::{UnixSocket, exists, own_uid};

/// The location of a group: its address, and the directory in which its processes meet.
#[derive(Clone, Copy)]
pub(super) struct GroupLocation<'a> {
    pub(super) directory: &'a Directory,
    pub(super) addr: ScopedAddr,
}

/// Returns the sockets of the group up to that of `block`, which is free, or further. `have` are
/// the sockets that this process already has.
pub(super) fn enter(
    at: GroupLocation<'_>,
    block: u8,
    have: &[SharedFd],
    make: &Make<'_>,
    deadline: Deadline<'_>,
) -> Result<Vec<SharedFd>, NetError> {
    if have.len() > usize::from(block) {
        return Ok(have.to_vec());
    }
    let mut group = fetch(at, block, have, deadline)?;
    if group.len() > usize::from(block) {
        return Ok(group);
    }
    await_departed(at, &group, make, deadline)?;
    while group.len() <= usize::from(block) {
        let socket = make(at.addr.address)?;
        attach_steering(socket.as_fd(), &STEERING)
            .map_err(|e| NetError::os("attach a program to a UDP socket", e))?;
        group.push(SharedFd::once(socket));
    }
    // A process that does not see this directory may have done the same concurrently. Each adds its
    // sockets before it checks, so at least one of the two notices.
    if let Some(other) = foreign_socket(at, &group) {
        return Err(not_shared(at, other));
    }
    Ok(group)
}

/// Creates a socket for an address: bound to port 4791, with SO_REUSEPORT.
pub(super) type Make<'a> = dyn Fn(IpAddr) -> Result<OwnedFd, NetError> + 'a;

/// Selects the socket by the block of the destination QPN. Packets that are too short go to the
/// first.
#[expect(clippy::cast_possible_truncation, reason = "a place in a header")]
const STEERING: [libc::sock_filter; 2] = {
    const LD_B_ABS: u16 = 0x30;
    const RET_A: u16 = 0x16;
    [
        libc::sock_filter { code: LD_B_ABS, jt: 0, jf: 0, k: QPN_BLOCK as u32 },
        libc::sock_filter { code: RET_A, jt: 0, jf: 0, k: 0 },
    ]
};

/// A number above all blocks.
const ALL: u16 = 256;

/// Fetches the sockets up to `last` that this process lacks. Asks the process that holds most of
/// the group. Returns fewer if the group has fewer. If that process is stopped, any other that
/// holds enough will do.
fn fetch(
    at: GroupLocation<'_>,
    last: u8,
    have: &[SharedFd],
    deadline: Deadline<'_>,
) -> Result<Vec<SharedFd>, NetError> {
    let mut below = ALL;
    'anew: loop {
        let mut group = have.to_vec();
        if below < ALL && next(at, below, last).is_none_or(|(block, _)| block < last) {
            // The alternative process has gone.
            below = ALL;
        }
        // The holder of the last block holds all sockets. A block below this process's own sockets
        // has nothing that is missing here.
        let more = next(at, below, last).filter(|(block, _)| usize::from(*block) >= have.len());
        let Some((block, holder)) = more else {
            return Ok(group);
        };
        let instead = next(at, block.into(), last).filter(|(block, _)| *block > last);
        let until = deadline.anew(if instead.is_some() { TIMEOUT / 5 } else { TIMEOUT });
        loop {
            let from = u8::try_from(group.len()).unwrap_or(u8::MAX);
            let (mut fds, most) = match ask(at.addr, &holder, from, last, until) {
                Ok(Some(answer)) => answer,
                // The process died: ask the one that holds most of the rest.
                Ok(None) => continue 'anew,
                Err(NetError::NoAnswer { .. }) if instead.is_some() => {
                    below = block.into();
                    continue 'anew;
                }
                Err(e) => return Err(e),
            };
            group.extend(fds.drain(..).map(SharedFd::once));
            if group.len() > usize::from(last.min(most)) {
                return Ok(group);
            }
        }
    }
}

/// Returns the process that holds most of the group, if it is stopped. The holder of the address's
/// lock then waits for it.
pub(super) fn stopped_member(at: GroupLocation<'_>) -> Option<PortOwner> {
    let (_, holder) = next(at, ALL, 0)?;
    let owner = match UnixSocket::connect(&holder) {
        Ok(line) => owner_of(&line),
        // The queue of the listener is full, so it may be stopped.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => port_owner::of_unix(&holder),
        Err(_) => None,
    };
    owner.filter(port_owner::is_stopped)
}

/// Returns the highest leased block below `below` other than `last`, and its control socket.
fn next(at: GroupLocation<'_>, below: u16, last: u8) -> Option<(u8, PathBuf)> {
    BLOCKS.rev().filter(|b| u16::from(*b) < below && *b != last).find_map(|block| {
        let path = at.directory.control(&at.addr, block)?;
        exists(&path).unwrap_or(false).then_some((block, path))
    })
}

/// Asks for sockets and waits for the answer. Returns the sockets, and the index of the last one
/// that the holder has. Returns `None` if the holder is gone.
fn ask(
    addr: ScopedAddr,
    holder: &Path,
    from: u8,
    to: u8,
    deadline: Deadline<'_>,
) -> Result<Option<(Vec<OwnedFd>, u8)>, NetError> {
    rxe_sys::may_block("asking another process for its sockets");
    let no_answer = |owner| NetError::NoAnswer { address: addr.address, owner };
    loop {
        let line = match UnixSocket::connect(holder) {
            Ok(line) => line,
            Err(e) => match e.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => return Ok(None),
                // The queue of the listener is full: retry, because it may be stopped or just busy.
                io::ErrorKind::WouldBlock if !deadline.is_over() => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                io::ErrorKind::WouldBlock => return Err(no_answer(port_owner::of_unix(holder))),
                _ => return Err(NetError::os("ask another process for its sockets", e)),
            },
        };
        if let Some(answer) = ask_over(&line, addr, from, to, deadline)? {
            return Ok(Some(answer));
        }
        // The process may have died just now: the next attempt tells.
        if deadline.is_over() {
            return Err(no_answer(owner_of(&line)));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Asks over one connection. Returns `None` if the peer closes it or sends nonsense.
fn ask_over(
    line: &UnixSocket,
    addr: ScopedAddr,
    from: u8,
    to: u8,
    deadline: Deadline<'_>,
) -> Result<Option<(Vec<OwnedFd>, u8)>, NetError> {
    let address = addr.address;
    if line.send(&ControlMessage::Ask { address, from, to }.emit(), &[]).is_err() {
        return Ok(None);
    }
    let asked = line.peer().ok().and_then(|peer| peer.pid);
    loop {
        let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(line, PollFlags::IN)], Some(&tick));
        let mut buf = [0; 64];
        let received = match line.receive(&mut buf) {
            // The peer has closed the connection, or died, before it read the question.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            received => {
                received.map_err(|e| NetError::os("ask another process for its sockets", e))?
            }
        };
        if let Some(received) = received {
            return match ControlMessage::parse(&buf[..received.len]) {
                Some(ControlMessage::Give { count, last }) => {
                    if received.fds.len() != usize::from(count) || received.fds.is_empty() {
                        // Descriptors are missing if this process may not have that many.
                        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
                        return Err(NetError::TooManyFiles { limit });
                    }
                    if !received.fds.iter().all(|fd| is_of_group(fd.as_fd(), addr, line)) {
                        return Err(NetError::ForeignSocket { address, owner: owner_of(line) });
                    }
                    Ok(Some((received.fds, last)))
                }
                Some(ControlMessage::OtherVersion(version)) => {
                    let newer = version > VERSION;
                    Err(NetError::OtherVersion { address, owner: owner_of(line), newer })
                }
                Some(
                    ControlMessage::Ask { .. }
                    | ControlMessage::Report(_)
                    | ControlMessage::Capture,
                )
                | None => Ok(None),
            };
        }
        if deadline.is_over_for(asked) {
            return Err(NetError::NoAnswer { address, owner: owner_of(line) });
        }
    }
}

/// Returns whether a descriptor may be a socket of the address's group. It must be a UDP socket,
/// bound to the address and port 4791, in the same network namespace as `own`.
fn is_of_group(fd: BorrowedFd<'_>, addr: ScopedAddr, own: &UnixSocket) -> bool {
    let family = if addr.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = [
        (libc::SO_DOMAIN, family),
        (libc::SO_TYPE, libc::SOCK_DGRAM),
        (libc::SO_PROTOCOL, libc::IPPROTO_UDP),
    ];
    let bound = rustix::net::getsockname(fd).ok().and_then(|name| SocketAddr::try_from(name).ok());
    // Linux before 5.14 has no cookie: then both are `None`.
    let [its, here] = [namespace_cookie(fd), namespace_cookie(own.as_fd())].map(Result::ok);
    kind.iter().all(|(name, is)| get_int(fd, libc::SOL_SOCKET, *name).is_ok_and(|v| v == *is))
        && bound.is_some_and(|bound| addr.is_bound_to(bound))
        && its == here
}

/// Returns the process at the other end of a connection.
fn owner_of(line: &UnixSocket) -> Option<PortOwner> {
    line.peer().ok().and_then(|peer| port_owner::of_pid(peer.pid?))
}

/// Waits until the group holds no socket but `ours`. The kernel closes the sockets of a process
/// that has just died a moment after its control sockets.
fn await_departed(
    at: GroupLocation<'_>,
    ours: &[SharedFd],
    make: &Make<'_>,
    deadline: Deadline<'_>,
) -> Result<(), NetError> {
    let address = at.addr.address;
    // `/proc` does not show the interface of a link-local address.
    let link_local = at.addr.is_link_local();
    let time = if link_local { TIMEOUT / 50 } else { TIMEOUT / 2 };
    let mut until = deadline.anew(time);
    let mut tried = None;
    while let Some(other) = not_among(address, ours) {
        if tried != Some(other) {
            // A program that does not share the port will not go away soon, so report it now.
            drop(make(address).map_err(|e| with_owner(e, other))?);
            // The previous socket is gone. On a busy host it takes time until all are.
            until = deadline.anew(time);
            tried = Some(other);
        }
        if until.is_over() {
            return if link_local { Ok(()) } else { Err(not_shared(at, other)) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns a socket on the address that is not one of `ours`, where `/proc` can tell.
fn foreign_socket(at: GroupLocation<'_>, ours: &[SharedFd]) -> Option<port_owner::Bound> {
    if at.addr.is_link_local() { None } else { not_among(at.addr.address, ours) }
}

/// Returns a socket on the address and port 4791 that is not one of `ours`.
fn not_among(address: IpAddr, ours: &[SharedFd]) -> Option<port_owner::Bound> {
    let inode = |fd: &SharedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino);
    let ours: Vec<u64> = ours.iter().map(inode).collect();
    port_owner::bound(address, UDP_PORT).find(|bound| !ours.contains(&bound.inode))
}

/// Replaces the error "port in use" if a process of another user has the port.
fn with_owner(error: NetError, other: port_owner::Bound) -> NetError {
    match error {
        // The kernel's own socket has inode 0.
        NetError::PortInUse { address, .. } if other.inode != 0 && other.uid != own_uid() => {
            let owner = Some(port_owner::of_inode(other.inode));
            NetError::OtherUser { address, uid: other.uid, owner }
        }
        other => other,
    }
}

/// Returns the error that a process of this user could share the port, but is not in the directory.
fn not_shared(at: GroupLocation<'_>, other: port_owner::Bound) -> NetError {
    let shared = "let both see the same /dev/shm (containers: --ipc=host)";
    NetError::NotShared {
        address: at.addr.address,
        owner: Some(port_owner::of_inode(other.inode)),
        directory: at.directory.describe(),
        remedy: at.directory.remedy().unwrap_or(shared).into(),
    }
}

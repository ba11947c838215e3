//! How a process comes to the sockets of an address's group: from those who have them, and by adding
//! its own. The caller holds the address's lock.

use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::wire::UDP_PORT;

use super::BLOCKS;
use super::door::{Message, VERSION};
use super::name::Place;
use super::patience::{PATIENCE, Patience};
use crate::NetError;
use crate::sys::fork::Held;
use crate::sys::sockopt::attach_steering;
use crate::sys::unix::{UnixSocket, abstract_name, exists, own_uid};
use crate::udp::owner;

/// The sockets of the group up to the one of `block`, which is free, or further; `have` are those
/// that this process has already.
pub(super) fn enter(
    place: &Place,
    block: u8,
    have: &[Arc<Held>],
    make: &Make<'_>,
    patience: Patience<'_>,
) -> Result<Vec<Arc<Held>>, NetError> {
    if have.len() > usize::from(block) {
        return Ok(have.to_vec());
    }
    let mut group = fetch(place, block, have, patience)?;
    if group.len() <= usize::from(block) {
        settle(place, &group, make, patience)?;
    }
    while group.len() <= usize::from(block) {
        let socket = make(place.address)?;
        attach_steering(socket.as_fd(), &STEERING)
            .map_err(|e| NetError::os("attach a program to a UDP socket", e))?;
        group.push(Arc::new(Held::new(socket)));
    }
    Ok(group)
}

/// Makes a socket for an address: bound to port 4791, with SO_REUSEPORT.
pub(super) type Make<'a> = dyn Fn(IpAddr) -> Result<OwnedFd, NetError> + 'a;

/// Chooses the socket by the destination QPN's block. What is too short for that goes to the first.
const STEERING: [libc::sock_filter; 2] = {
    const LD_B_ABS: u16 = 0x30;
    const RET_A: u16 = 0x16;
    [
        libc::sock_filter { code: LD_B_ABS, jt: 0, jf: 0, k: 5 },
        libc::sock_filter { code: RET_A, jt: 0, jf: 0, k: 0 },
    ]
};

/// Asks the one who has most of the group for the sockets up to `last`, but those that this process
/// has; fewer if the group has fewer. If that one is stopped, any other that has so many will do.
fn fetch(
    place: &Place,
    last: u8,
    have: &[Arc<Held>],
    patience: Patience<'_>,
) -> Result<Vec<Arc<Held>>, NetError> {
    const ALL: u16 = 256;
    let mut below = ALL;
    'anew: loop {
        let mut group = have.to_vec();
        if below < ALL && next(place, below, last).is_none_or(|(block, _)| block < last) {
            // Who could have answered instead has gone.
            below = ALL;
        }
        // The last block is held by who holds all. Blocks below those that this process has sockets
        // up to are no better than its own.
        let more = next(place, below, last).filter(|(block, _)| usize::from(*block) >= have.len());
        let Some((block, holder)) = more else {
            return Ok(group);
        };
        let instead = next(place, block.into(), last).filter(|(block, _)| *block > last);
        let until = patience.anew(if instead.is_some() { PATIENCE / 5 } else { PATIENCE });
        loop {
            let from = u8::try_from(group.len()).unwrap_or(u8::MAX);
            let (mut fds, most) = match ask(place, &holder, from, last, until) {
                Ok(Some(answer)) => answer,
                // It died: who has most of the rest?
                Ok(None) => continue 'anew,
                Err(NetError::NoAnswer { .. }) if instead.is_some() => {
                    below = block.into();
                    continue 'anew;
                }
                Err(e) => return Err(e),
            };
            group.extend(fds.drain(..).map(|fd| Arc::new(Held::new(fd))));
            if group.len() > usize::from(last.min(most)) {
                return Ok(group);
            }
        }
    }
}

/// The highest block below this that somebody else than the holder of `last` has, and its door.
fn next(place: &Place, below: u16, last: u8) -> Option<(u8, String)> {
    BLOCKS.rev().filter(|b| u16::from(*b) < below && *b != last).find_map(|block| {
        let name = place.door(block);
        exists(&name).unwrap_or(false).then_some((block, name))
    })
}

/// Asks once and waits for the answer: sockets, and the last that the one asked has. `None` if it is
/// gone.
fn ask(
    place: &Place,
    holder: &str,
    from: u8,
    to: u8,
    patience: Patience<'_>,
) -> Result<Option<(Vec<OwnedFd>, u8)>, NetError> {
    let address = place.address;
    let os = |e| NetError::os("ask another process for its sockets", e);
    let socket = UnixSocket::anonymous().map_err(os)?;
    let name = abstract_name(holder).map_err(os)?;
    let question = Message::Ask { from, to }.emit();
    let mut asked = false;
    loop {
        if !asked {
            match socket.send(&name, &[IoSlice::new(&question)], &[]) {
                Ok(()) => asked = true,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => return Ok(None),
                // Others ask too.
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(os(e)),
            }
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&tick));
        let mut buf = [0; 64];
        while let Some(letter) = socket.receive(&mut buf).map_err(os)? {
            match Message::parse(&buf[..letter.len]) {
                // Nobody else's sockets are worth anything here.
                Some(Message::Give { count, last }) if letter.uid == Some(own_uid()) => {
                    if letter.fds.len() != usize::from(count) || letter.fds.is_empty() {
                        // This process may not have so many descriptors.
                        return Err(NetError::TooManyFiles);
                    }
                    return Ok(Some((letter.fds, last)));
                }
                Some(Message::OtherVersion(version)) => {
                    let owner = letter.pid.and_then(owner::of_pid);
                    let newer = version > VERSION;
                    return Err(NetError::OtherVersion { address, owner, newer });
                }
                Some(Message::Give { .. } | Message::OtherUser) => {
                    let owner = letter.pid.and_then(owner::of_pid);
                    return Err(NetError::OtherUser { address, owner });
                }
                Some(Message::Ask { .. }) | None => {}
            }
        }
        if !exists(holder).map_err(os)? {
            return Ok(None);
        }
        if patience.is_over() {
            let owner = owner::of_abstract(holder);
            return Err(NetError::NoAnswer { address, owner });
        }
    }
}

/// Waits until the group holds no socket but `ours`: those of processes that have just died are
/// closed a moment after their doors.
fn settle(
    place: &Place,
    ours: &[Arc<Held>],
    make: &Make<'_>,
    patience: Patience<'_>,
) -> Result<(), NetError> {
    let inode = |fd: &Arc<Held>| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino);
    let ours: Vec<u64> = ours.iter().map(inode).collect();
    // What /proc says of link-local addresses does not tell interfaces apart.
    let time = if place.is_link_local() { PATIENCE / 50 } else { PATIENCE / 2 };
    let patience = patience.anew(time);
    let mut tried = false;
    while let Some(other) = owner::inodes(place.address, UDP_PORT).find(|i| !ours.contains(i)) {
        if !tried {
            // A program that does not share the port will not go away soon: say so now.
            drop(make(place.address)?);
            tried = true;
        }
        if patience.is_over() {
            if place.is_link_local() {
                break;
            }
            let owner = Some(owner::of_inode(other));
            return Err(NetError::PortInUse { address: place.address, owner });
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

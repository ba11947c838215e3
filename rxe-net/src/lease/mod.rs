//! Several processes on one address: who has which queue pair numbers, and how they share UDP port
//! 4791. There is no daemon, and it does not matter who came first or who dies when.
//!
//! A QPN's high 8 bits are its *block*. A device leases one block, 1 to 255, on all of its
//! addresses; its QPNs are random within it. Holding a lease is having an abstract unix socket, the
//! *door*, bound to a name made of the address and the block ([`name`]). A process that dies loses
//! it in that moment.
//!
//! On each address the processes share a group of SO_REUSEPORT sockets, of which a classic BPF
//! program chooses by the block in a packet's BTH: socket `i` of the group is block `i`'s
//! ([`group`]). Block 0 has no owner: it holds QPN 1, the CM's, and whoever looks first takes what
//! comes there to whom it is for ([`post`]).
//!
//! Invariants:
//! - A socket's place in its group changes when one before it is closed. So the holder of block `b`
//!   holds the sockets 0 to `b` and keeps them open; a newcomer gets them from any such holder,
//!   through its door ([`door`]). So long as a holder of `b` lives, nothing below moves.
//! - Who adds a socket to a group holds all that are in it, and the address's lock.
//! - Who finds a door knows that its owner holds its sockets, or holds the address's lock.
//! - All have the same user: the kernel demands it of a group.

mod door;
mod group;
pub(crate) mod letter;
mod mad;
pub(crate) mod name;
mod post;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use self::door::{Door, Doors};
use self::name::Place;
pub(crate) use self::post::Post;
use crate::sys::fork::Held;
use crate::sys::unix::UnixSocket;
use crate::{NetError, udp::owner};

/// The sockets of a group up to one's own, by block.
pub(crate) type Group = Arc<[Arc<Held>]>;

/// A lease, and the sockets that come with it.
#[derive(Debug)]
pub(crate) struct Share {
    block: u8,
    scope: u32,
    doors: Doors,
}

/// A place in the group of an address.
pub(crate) struct Station {
    place: Place,
    group: Group,
    letterbox: UnixSocket,
}

impl Station {
    /// The address.
    pub(crate) fn address(&self) -> IpAddr {
        self.place.address
    }

    /// The socket that this process's packets come to.
    pub(crate) fn own(&self) -> Arc<Held> {
        Arc::clone(self.group.last().expect("a group has more sockets than a block has numbers"))
    }

    /// The socket that packets to QP1 come to.
    pub(crate) fn first(&self) -> Arc<Held> {
        Arc::clone(&self.group[0])
    }
}

/// Makes a socket for an address: bound to port 4791, with SO_REUSEPORT.
pub(crate) type Make<'a> = dyn Fn(IpAddr) -> Result<OwnedFd, NetError> + 'a;

/// The blocks there are; 0 is nobody's.
const BLOCKS: std::ops::RangeInclusive<u8> = 1..=u8::MAX;

/// How long to wait for other processes to do what takes them no time.
const PATIENCE: Duration = Duration::from_secs(5);

impl Share {
    /// Leases a block on these addresses of the interface with index `scope`, and takes part in
    /// their groups. An address that is not there is left out; the reason comes back if none is.
    ///
    /// # Errors
    /// Some address can not be shared, or none is there, or all blocks are taken.
    pub(crate) fn open(
        addresses: &[IpAddr],
        scope: u32,
        make: &Make<'_>,
    ) -> Result<(Self, Vec<Station>), NetError> {
        let mut addresses = addresses.to_vec();
        // In the same order in all processes, so that none waits for one that waits for it.
        addresses.sort_unstable();
        addresses.dedup();
        let places: Vec<_> = addresses.iter().map(|a| Place::new(*a, scope)).collect();
        let locks = places.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
        let (block, sockets) = lease(&places)?;
        let share = Self { block, scope, doors: Doors::new()? };
        let mut stations = Vec::new();
        let mut not_ready = None;
        for (place, sockets) in places.into_iter().zip(sockets) {
            match share.join(place, sockets, make) {
                Ok(station) => stations.push(station),
                Err(e @ NetError::NoSuchAddress { .. }) => not_ready = Some(e),
                Err(e) => return Err(e),
            }
        }
        drop(locks);
        match not_ready {
            Some(e) if stations.is_empty() => Err(e),
            _ => Ok((share, stations)),
        }
    }

    /// Takes part in the group of one more address.
    ///
    /// # Errors
    /// It can not be shared, or is not there, or another process has the block on it.
    pub(crate) fn enter(&self, address: IpAddr, make: &Make<'_>) -> Result<Station, NetError> {
        let place = Place::new(address, self.scope);
        let _lock = lock(&place)?;
        let sockets = Leased::bind(&place, self.block).map_err(|e| match e.kind() {
            std::io::ErrorKind::AddrInUse => NetError::BlockTaken { address, block: self.block },
            _ => NetError::os("bind a unix socket", e),
        })?;
        self.join(place, sockets, make)
    }

    fn join(&self, place: Place, leased: Leased, make: &Make<'_>) -> Result<Station, NetError> {
        let group = group::enter(&place, self.block, make)?;
        self.doors.add(Door::new(place, leased.door, Arc::clone(&group)));
        Ok(Station { place, group, letterbox: leased.letterbox })
    }

    /// Leaves the group of an address.
    pub(crate) fn leave(&self, address: IpAddr) {
        self.doors.remove(address);
    }

    /// The block of QPNs that this process alone has.
    pub(crate) fn block(&self) -> u8 {
        self.block
    }

    /// The addresses that are shared.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.doors.addresses()
    }
}

/// The sockets whose names make a lease on one address.
struct Leased {
    door: UnixSocket,
    letterbox: UnixSocket,
}

impl Leased {
    fn bind(place: &Place, block: u8) -> std::io::Result<Self> {
        let door = UnixSocket::bind(&place.door(block))?;
        Ok(Self { door, letterbox: UnixSocket::bind(&place.letterbox(block))? })
    }
}

/// Takes the lowest block that is free on all of these addresses, which are locked.
fn lease(places: &[Place]) -> Result<(u8, Vec<Leased>), NetError> {
    for block in BLOCKS {
        let leased: std::io::Result<Vec<_>> =
            places.iter().map(|place| Leased::bind(place, block)).collect();
        match leased {
            Ok(leased) => return Ok((block, leased)),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(NetError::os("bind a unix socket", e)),
        }
    }
    let address = places.first().map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |p| p.address);
    Err(NetError::TooManyProcesses { address })
}

/// Waits until nobody else is about to join this address's group.
fn lock(place: &Place) -> Result<UnixSocket, NetError> {
    let name = place.lock();
    let until = Instant::now() + 2 * PATIENCE;
    loop {
        match UnixSocket::bind(&name) {
            Ok(lock) => return Ok(lock),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(NetError::os("bind a unix socket", e)),
        }
        if Instant::now() > until {
            let owner = owner::of_abstract(&name);
            return Err(NetError::NoAnswer { address: place.address, owner });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

//! The maps of the XDP program. They hold the addresses and blocks to receive for, and the sockets
//! of each shard.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use parking_lot::Mutex;

use super::program::{MAX_QUEUES, MAX_SHARDS, MapFds};
use crate::error::NetError;
use crate::host::Blocks;
use rxe_sys::SharedFd;
use rxe_sys::bpf::{self, MapKind};

/// The maximum number of addresses to receive for.
const MAX_ADDRESSES: u32 = 1024;

/// The maps of the XDP program.
#[derive(Debug)]
pub(super) struct Maps {
    /// For each block, the index of its shard plus 1, or 0 if it has none.
    blocks: SharedFd,
    addresses: SharedFd,
    /// The sockets, by queue and shard.
    sockets: SharedFd,
    /// The contents of the first two maps, by shard.
    wanted: Mutex<Vec<Wanted>>,
}

/// The addresses and blocks that a shard receives for.
#[derive(Clone, Debug, Default)]
struct Wanted {
    addresses: HashSet<IpAddr>,
    blocks: Blocks,
}

impl Maps {
    /// Creates empty maps.
    pub(super) fn new() -> io::Result<Self> {
        let make = |kind, key, value, entries| {
            bpf::create_map(kind, key, value, entries).map(SharedFd::guarded)
        };
        Ok(Self {
            blocks: make(MapKind::Array, 4, 4, 256)?,
            addresses: make(MapKind::Hash, 16, 4, MAX_ADDRESSES)?,
            sockets: make(MapKind::Xsk, 4, 4, MAX_QUEUES * MAX_SHARDS)?,
            wanted: Mutex::new(vec![Wanted::default(); MAX_SHARDS as usize]),
        })
    }

    /// Returns the descriptors of the maps, for the program.
    pub(super) fn fds(&self) -> MapFds {
        MapFds {
            blocks: self.blocks.as_raw_fd(),
            addresses: self.addresses.as_raw_fd(),
            sockets: self.sockets.as_raw_fd(),
        }
    }

    /// Redirects the frames that arrive on a queue for a shard to a socket.
    pub(super) fn set_socket(
        &self,
        queue: u32,
        shard: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), NetError> {
        let key = queue * MAX_SHARDS + shard;
        let socket = socket.as_raw_fd().to_ne_bytes();
        // SAFETY: keys and values of this map have 4 bytes.
        unsafe { bpf::update(self.sockets.intact()?, &key.to_ne_bytes(), &socket) }
            .map_err(|e| NetError::os("enter a socket into a BPF map", e))
    }

    /// Replaces the addresses and the QPN blocks that this shard receives for. (An address is
    /// received for all shards while any shard wants it.)
    pub(super) fn listen_to(
        &self,
        shard: u32,
        addresses: &[IpAddr],
        blocks: Blocks,
    ) -> Result<(), NetError> {
        self.change(&mut self.wanted.lock(), shard, addresses, blocks)
    }

    /// Stops receiving for a shard. Does nothing if the lock is held, because in a forked child its
    /// holder may not exist; the frames then go to the kernel once the shard's sockets are closed.
    pub(super) fn forget(&self, shard: u32) {
        if let Some(mut wanted) = self.wanted.try_lock() {
            let _ = self.change(&mut wanted, shard, &[], Blocks::default());
        }
    }

    fn change(
        &self,
        wanted: &mut [Wanted],
        shard: u32,
        addresses: &[IpAddr],
        blocks: Blocks,
    ) -> Result<(), NetError> {
        self.change_blocks(&mut wanted[shard as usize].blocks, shard, blocks)?;
        self.change_addresses(wanted, shard as usize, addresses)
    }

    fn change_blocks(
        &self,
        wanted: &mut Blocks,
        shard: u32,
        blocks: Blocks,
    ) -> Result<(), NetError> {
        let map = self.blocks.intact()?;
        for block in (0..=u8::MAX).filter(|block| wanted.has(*block) != blocks.has(*block)) {
            let value = if blocks.has(block) { shard + 1 } else { 0 };
            // SAFETY: keys and values of this map have 4 bytes.
            unsafe { bpf::update(map, &u32::from(block).to_ne_bytes(), &value.to_ne_bytes()) }
                .map_err(failed)?;
        }
        *wanted = blocks;
        Ok(())
    }

    fn change_addresses(
        &self,
        wanted: &mut [Wanted],
        shard: usize,
        addresses: &[IpAddr],
    ) -> Result<(), NetError> {
        let map = self.addresses.intact()?;
        for address in addresses {
            if !is_wanted(wanted, address) {
                // SAFETY: keys of this map have 16 bytes, values 4.
                unsafe { bpf::update(map, &key(*address), &1u32.to_ne_bytes()) }.map_err(failed)?;
            }
            wanted[shard].addresses.insert(*address);
        }
        let goes = |address: &IpAddr| !addresses.contains(address);
        let gone: Vec<_> = wanted[shard].addresses.extract_if(goes).collect();
        for address in gone.iter().filter(|address| !is_wanted(wanted, address)) {
            // The key exists, because a shard wanted the address.
            // SAFETY: keys of this map have 16 bytes.
            let _ = unsafe { bpf::delete(map, &key(*address)) };
        }
        Ok(())
    }
}

/// Returns whether any shard receives for the address, so that it is in the map.
fn is_wanted(wanted: &[Wanted], address: &IpAddr) -> bool {
    wanted.iter().any(|wanted| wanted.addresses.contains(address))
}

fn failed(error: io::Error) -> NetError {
    NetError::os("change a BPF map", error)
}

/// Returns the map key of an address. Keys of IPv4 addresses begin with 12 bytes of ones, as no
/// IPv6 address of an interface does.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut key = [0xff; 16];
            key[12..].copy_from_slice(&v4.octets());
            key
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

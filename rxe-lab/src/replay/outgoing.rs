//! A recorded packet that is written anew for the live peer.

use std::time::Duration;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{NetHeader, icrc};

use super::layout::Place;
use super::recording::Packet;
use crate::frame::Icrc;

/// What packets to the peer's queue pair need to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its number.
    pub qpn: Qpn,
    /// The own queue pair number.
    pub own_qpn: Qpn,
    /// The first PSN that it expects.
    pub first_psn: Psn,
    /// The first address of its region.
    pub addr: u64,
    /// The key of its region.
    pub rkey: u32,
}

/// A packet to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The recorded frame.
    pub frame: u64,
    /// When it was sent, since the first frame.
    pub at: Duration,
    /// Its opcode, PSN and length in words.
    pub words: String,
    /// Its PSN, counted from the first.
    pub(super) psn: i32,
    /// PSNs that it takes.
    pub(super) span: i32,
    pub(super) asks: bool,
    /// Whether it is not dropped, whether the peer is to carry it out, and whether it has done so before.
    pub(super) is_met: bool,
    pub(super) is_executed: bool,
    pub(super) is_duplicate: bool,
    pub(super) packet: Packet,
    pub(super) place: Option<Place>,
    /// Whether the key that it invalidates is the peer's.
    pub(super) invalidates_right_key: bool,
    /// Whether a wrong ICRC stays wrong.
    pub(super) damaged: bool,
}

/// Makes of a region's key one that no region has: the index of a key is in its upper 24 bits.
const WRONG_KEY: u32 = 0x005a_5a00;

impl Outgoing {
    /// The bytes from BTH to ICRC.
    pub fn render(&self, net: &NetHeader, target: &Target) -> Vec<u8> {
        let mut bytes = self.packet.bytes.to_vec();
        let mut put = |at: usize, new: &[u8]| {
            if let Some(old) = bytes.get_mut(at..at + new.len()) {
                old.copy_from_slice(new);
            }
        };
        let psn = Psn::new(target.first_psn.value().wrapping_add_signed(self.psn));
        put(5, &target.qpn.value().to_be_bytes()[1..]);
        put(9, &psn.value().to_be_bytes()[1..]);
        let key = |is_right| if is_right { target.rkey } else { target.rkey ^ WRONG_KEY };
        if let (Some(at), Some(place)) = (self.packet.places.address, self.place) {
            put(at, &target.addr.wrapping_add(place.offset).to_be_bytes());
            put(at + 8, &key(place.is_key_right).to_be_bytes());
        }
        if let Some(at) = self.packet.places.ieth {
            put(at, &key(self.invalidates_right_key).to_be_bytes());
        }
        if let Some(at) = self.packet.places.deth {
            put(at + 5, &target.own_qpn.value().to_be_bytes()[1..]);
        }
        icrc::append(net, &mut bytes, 0);
        if self.damaged
            && self.packet.icrc == Icrc::Wrong
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 0x01;
        }
        bytes
    }
}

//! Rewrites a recorded packet for the live peer.

use std::time::Duration;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::{NetHeader, icrc};

use super::layout::Place;
use super::recording::Packet;
use crate::frame::Icrc;

/// The properties of the peer's queue pair that packets to it depend on.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The number of the peer's queue pair.
    pub qpn: Qpn,
    /// The number of our own queue pair.
    pub own_qpn: Qpn,
    /// The first PSN that the peer expects.
    pub first_psn: Psn,
    /// The first address of the peer's region.
    pub addr: u64,
    /// The key of the peer's region.
    pub rkey: u32,
}

/// A recorded packet to be sent.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The number of the recorded frame.
    pub frame: u64,
    /// The recorded time, since the first frame.
    pub at: Duration,
    /// The opcode, PSN and payload length in words.
    pub words: String,
    /// The PSN relative to the first.
    pub(super) psn: i32,
    /// The number of PSNs that the packet takes.
    pub(super) span: i32,
    /// Whether the packet requests an acknowledgement.
    pub(super) asks: bool,
    /// Whether the recorded responder received the packet and did not drop it.
    pub(super) is_met: bool,
    /// Whether the recorded responder executed the packet.
    pub(super) is_executed: bool,
    /// Whether the recorded responder had executed the packet before.
    pub(super) is_duplicate: bool,
    pub(super) packet: Packet,
    pub(super) place: Option<Place>,
    /// Whether the key that the packet invalidates is the peer's.
    pub(super) invalidates_right_key: bool,
    /// Whether a wrong ICRC is sent as a wrong ICRC.
    pub(super) damaged: bool,
}

/// The bits to flip in a region's key to get one that no region has.
/// They are in the upper 24 bits, which are the index of a key.
const WRONG_KEY: u32 = 0x005a_5a00;

impl Outgoing {
    /// Returns the bytes of the packet for this peer, from BTH to ICRC.
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

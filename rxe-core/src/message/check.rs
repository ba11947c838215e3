//! The checks of a request, in the order of the specification. IBTA 9.7.4.1, figure 91 and
//! following. Each check returns a [`ResponderError`]; the module `rc::errors` states the
//! reactions.

use crate::event::ResponderError;
use crate::mem::Access;
use crate::queue::Placement;
use crate::wire::{OpInfo, OpKind, Packet, Position};

/// The kind of the incomplete message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Assembling {
    /// No message is incomplete.
    #[default]
    Nothing,
    /// A SEND of several packets.
    Send,
    /// A WRITE of several packets.
    Write,
}

/// Checks the sequence: First and Only begin a message, Middle and Last continue one. C9-89 ff.
pub(crate) fn sequence(assembling: Assembling, info: &OpInfo) -> Result<(), ResponderError> {
    let fits = match info.kind {
        OpKind::Send if !info.starts => assembling == Assembling::Send,
        OpKind::Write if !info.starts => assembling == Assembling::Write,
        _ => assembling == Assembling::Nothing,
    };
    fits.then_some(()).ok_or(ResponderError::OpcodeOutOfSequence)
}

/// Checks that the operation is supported and that the QP's access flags enable it. C9-94, C9-96.
pub(crate) fn enabled(packet: &Packet<'_>, access: Access) -> Result<(), ResponderError> {
    let need = match packet.info().kind {
        OpKind::Send => Access::empty(),
        OpKind::Write | OpKind::AtomicWrite => Access::REMOTE_WRITE,
        OpKind::ReadRequest => Access::REMOTE_READ,
        OpKind::CompareSwap | OpKind::FetchAdd => Access::REMOTE_ATOMIC,
        OpKind::Flush => flush_right(packet)?,
        _ => return Err(ResponderError::OperationNotEnabled),
    };
    access.contains(need).then_some(()).ok_or(ResponderError::OperationNotEnabled)
}

/// Returns the rights that a FLUSH needs from the queue pair and from the region. A FLUSH without a
/// placement type, or with an undefined one, is invalid.
pub(crate) fn flush_right(packet: &Packet<'_>) -> Result<Access, ResponderError> {
    let placement = packet.feth().and_then(|feth| Placement::from_bits(feth.placement));
    let placement = placement
        .filter(|placement| !placement.is_empty())
        .ok_or(ResponderError::OperationNotEnabled)?;
    let mut need = Access::empty();
    need.set(Access::FLUSH_GLOBAL, placement.contains(Placement::GLOBAL));
    need.set(Access::FLUSH_PERSISTENT, placement.contains(Placement::PERSISTENT));
    Ok(need)
}

/// Checks that the payload's length fits the opcode and the path MTU. C9-103 ff.
pub(crate) fn length(packet: &Packet<'_>, mtu: usize) -> Result<(), ResponderError> {
    let info = packet.info();
    let len = packet.payload_len();
    let fits = match info.position {
        // In a coalesced segment, all packets except the last have `mtu` bytes, and the last has at
        // most `mtu`.
        _ if packet.count() > 1 => len == mtu,
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only => len <= mtu,
    };
    fits.then_some(()).ok_or(ResponderError::BadLength)
}

/// Returns the access right that a remote operation needs from the region.
pub(crate) fn right(kind: OpKind) -> Access {
    match kind {
        OpKind::Write | OpKind::AtomicWrite => Access::REMOTE_WRITE,
        OpKind::ReadRequest => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    }
}

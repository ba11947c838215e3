//! The consequences of a request that fails a check, as one table. IBTA 9.7.4.1, 9.9.3 (table 59).

use crate::event::ResponderError;
use crate::queue::Status;
use crate::types::RnrTimer;
use crate::wire::{NakCode, Syndrome};

/// The consequences of an error for the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// The syndrome sent to the peer.
    pub(super) syndrome: Syndrome,
    /// If set, the responder's queue pair enters the error state, and the receive that the message has
    /// taken completes with this status.
    pub(super) fatal: Option<Status>,
}

/// Returns the consequences of an error. `rnr` is the time that a peer must wait after "receiver not
/// ready".
pub(super) fn effect(error: ResponderError, rnr: RnrTimer) -> Effect {
    use NakCode::{InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError};
    let nak = |code, fatal| Effect { syndrome: Syndrome::Nak(code), fatal };
    match error {
        ResponderError::SequenceGap => nak(PsnSequenceError, None),
        ResponderError::ReceiverNotReady => {
            Effect { syndrome: Syndrome::RnrNak { timer: rnr }, fatal: None }
        }
        ResponderError::OpcodeOutOfSequence
        | ResponderError::OperationNotEnabled
        | ResponderError::TooManyReads
        | ResponderError::BadLength
        | ResponderError::MisalignedAtomic => {
            nak(InvalidRequest, Some(Status::RemoteInvalidRequest))
        }
        // Kernel `rdma_rxe` acknowledges the SEND and fails only its own side.
        ResponderError::InvalidateRefused => {
            nak(RemoteAccessError, Some(Status::RemoteInvalidRequest))
        }
        ResponderError::MessageTooLong => nak(InvalidRequest, Some(Status::LocalLength)),
        ResponderError::RemoteAccess(_) => nak(RemoteAccessError, Some(Status::RemoteAccess)),
        ResponderError::UnknownXrcSrq => nak(RemoteOperationalError, Some(Status::RemoteOperation)),
        ResponderError::BadReceiveBuffer(_) => {
            nak(RemoteOperationalError, Some(Status::LocalProtection))
        }
    }
}

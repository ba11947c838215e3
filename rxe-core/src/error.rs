//! Errors of verbs calls. A mistake of the program is a [`VerbsError`], which maps to the errno
//! that users of rdma-core know. A mistake of a peer is a `DropReason` or a `ResponderError`.

use std::fmt;

use crate::types::{AccessError, AttrMask, QpState};

/// The reason why a verb was refused. A refused verb changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// The QP state machine has no transition between these states.
    InvalidTransition {
        /// The current state of the QP.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// The transition needs attributes that the mask does not name.
    MissingAttributes {
        /// The current state of the QP.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attributes that must be added to the mask.
        missing: AttrMask,
    },
    /// The mask names attributes that the transition does not allow.
    UnexpectedAttributes {
        /// The current state of the QP.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The attributes that must be removed from the mask.
        unexpected: AttrMask,
    },
    /// `cur_qp_state` is not the current state of the QP.
    WrongCurrentState {
        /// The current state of the QP.
        actual: QpState,
    },
    /// An attribute's value is out of range or does not fit the device.
    InvalidAttribute {
        /// The attribute, by its verbs name.
        name: &'static str,
        /// What is wrong with the value, and which values are valid.
        why: String,
    },
    /// The operation is not allowed in this state.
    WrongState {
        /// The operation, by its verbs name.
        operation: &'static str,
        /// The current state of the QP.
        state: QpState,
    },
    /// The queue already holds as many requests as it was created for.
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// The depth of the queue, in requests.
        depth: u32,
    },
    /// More elements, bytes or objects were requested than the limit allows.
    LimitExceeded {
        /// The limited quantity.
        what: &'static str,
        /// The requested number.
        asked: u64,
        /// The largest allowed number.
        limit: u64,
    },
    /// The device already has the maximum number of objects of this kind.
    TooMany {
        /// The kind of object.
        what: &'static str,
        /// The maximum number.
        limit: u32,
    },
    /// There is not enough memory.
    NoMemory {
        /// The object that needs the memory.
        what: &'static str,
    },
    /// A work request contradicts itself.
    InvalidRequest {
        /// The contradiction.
        why: &'static str,
    },
    /// The object does not exist on this device, or was destroyed.
    UnknownObject {
        /// The object, for example "QP 17".
        what: String,
    },
    /// Other objects use this object.
    Busy {
        /// The object and its users.
        what: String,
    },
    /// The device does not support the operation.
    Unsupported {
        /// The unsupported operation.
        what: &'static str,
    },
    /// The memory cannot be registered with these arguments.
    Registration(AccessError),
    /// The memory cannot be prefetched.
    Prefetch(AccessError),
}

impl VerbsError {
    /// Returns the errno that rdma-core reports for this error.
    pub const fn errno(&self) -> i32 {
        const ENOMEM: i32 = 12;
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const EFAULT: i32 = 14;
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Self::InvalidTransition { .. }
            | Self::MissingAttributes { .. }
            | Self::UnexpectedAttributes { .. }
            | Self::WrongCurrentState { .. }
            | Self::InvalidAttribute { .. }
            | Self::WrongState { .. }
            | Self::LimitExceeded { .. }
            | Self::InvalidRequest { .. }
            | Self::UnknownObject { .. }
            | Self::Registration(_) => EINVAL,
            Self::QueueFull { .. } | Self::TooMany { .. } | Self::NoMemory { .. } => ENOMEM,
            Self::Busy { .. } => EBUSY,
            Self::Prefetch(AccessError::UnknownKey) => ENOENT,
            Self::Prefetch(AccessError::OtherPd | AccessError::NotPermitted) => EPERM,
            Self::Prefetch(_) => EFAULT,
            Self::Unsupported { .. } => EOPNOTSUPP,
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidTransition { from, to } => write!(
                f,
                "a QP cannot go from {} to {}: the order is RESET, INIT, RTR, RTS, one step per \
                 call (RESET and ERR can be reached from anywhere)",
                from.name(),
                to.name()
            ),
            Self::MissingAttributes { from, to, missing } => write!(
                f,
                "going from {} to {} also needs the attributes {}: set them and name them in the \
                 mask",
                from.name(),
                to.name(),
                missing.verbs_names()
            ),
            Self::UnexpectedAttributes { from, to, unexpected } => write!(
                f,
                "going from {} to {} does not allow the attributes {}: take them out of the mask",
                from.name(),
                to.name(),
                unexpected.verbs_names()
            ),
            Self::WrongCurrentState { actual } => {
                write!(f, "cur_qp_state is wrong: the QP is in {}", actual.name())
            }
            Self::InvalidAttribute { name, why } => write!(f, "{name}: {why}"),
            Self::WrongState { operation, state } => write!(
                f,
                "{operation} is not allowed while the QP is in {}: {}",
                state.name(),
                match state {
                    QpState::Reset if *operation == "post_recv" => "bring it to INIT first",
                    QpState::Reset | QpState::Init | QpState::Rtr => "bring it to RTS first",
                    _ => "it must be brought back to RTS first",
                }
            ),
            Self::QueueFull { queue, depth } => write!(
                f,
                "the {queue} queue is full ({depth} requests): poll for completions first, signal \
                 some of the requests, or create the QP with a larger queue"
            ),
            Self::LimitExceeded { what, asked, limit } => {
                write!(f, "{what}: {asked} asked for, at most {limit} allowed")
            }
            Self::TooMany { what, limit } => {
                write!(
                    f,
                    "the device allows {limit} {what} and has as many: end some of them first"
                )
            }
            Self::NoMemory { what } => {
                write!(f, "there is no memory for {what}: ask for a smaller one")
            }
            Self::InvalidRequest { why } => f.write_str(why),
            Self::UnknownObject { what } => {
                write!(f, "{what} does not exist on this device (destroyed, or of another device?)")
            }
            Self::Busy { what } => f.write_str(what),
            Self::Unsupported { what } => write!(f, "this device cannot do {what}"),
            Self::Registration(why) => {
                write!(f, "the memory cannot be registered: {}", registration(*why))
            }
            Self::Prefetch(why) => {
                write!(f, "the memory cannot be prefetched: {}", why.explain())?;
                match why {
                    AccessError::Faulted(fault) => write!(f, " (at or behind {:#x})", fault.addr),
                    _ => Ok(()),
                }
            }
        }
    }
}

fn registration(why: AccessError) -> &'static str {
    match why {
        AccessError::NotPermitted => {
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well: add it. If it is there, the memory was \
             registered for reading only: register it anew"
        }
        AccessError::OutOfBounds => "its addresses pass the end of the address space",
        other => other.explain(),
    }
}

impl std::error::Error for VerbsError {}

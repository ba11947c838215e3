//! Code shared by the transport services: splitting a message into packets (`segment`), checking
//! that a packet fits its message (`check`), and assembling a received message (`assemble`).

mod assemble;
pub(crate) mod check;
mod segment;

pub(crate) use assemble::{Assembly, Delivered, complete_receive, complete_receive_failed};
pub(crate) use segment::{Outgoing, Segment, packets};

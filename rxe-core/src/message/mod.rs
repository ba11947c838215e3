//! What the services share: cutting a message into packets (`segment`), checking that a packet fits
//! its message (`check`), and putting a message together (`assemble`).

mod assemble;
pub(crate) mod check;
mod segment;

pub(crate) use assemble::{Assembly, Delivered, complete_receive, complete_receive_failed};
pub(crate) use segment::{Outgoing, Segment, packets};

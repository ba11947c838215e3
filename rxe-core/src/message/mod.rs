//! What reliable and unreliable connection share: a message cut into packets (`segment`), the
//! checks that a packet fits its message (`check`), and a message put together (`assemble`).

mod assemble;
pub(crate) mod check;
mod segment;

pub(crate) use assemble::{Assembly, Delivered, complete_receive, complete_receive_failed};
pub(crate) use segment::{Outgoing, Segment, packets};

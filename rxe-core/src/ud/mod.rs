//! Unreliable datagram: each message is one packet, to any queue pair. The GRH is delivered in front
//! of the payload. IBTA 9.8.3.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(crate) use requester::Requester;
pub(crate) use responder::receive;

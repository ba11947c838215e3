//! Unreliable datagram: one packet a message, to anybody, with the GRH delivered in front of the
//! payload. IBTA 9.8.3.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(crate) use requester::Requester;
pub(crate) use responder::receive;

//! Unreliable connection: SEND and WRITE without acknowledgements. If one packet is lost, the whole
//! message is lost, without an error. IBTA 9.8.2.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

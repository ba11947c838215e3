//! Unreliable connection: SEND and WRITE without acknowledgements. A message that loses a packet is
//! lost whole and silently. IBTA 9.8.2.

mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

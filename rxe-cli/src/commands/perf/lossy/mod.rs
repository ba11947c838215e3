//! Measurements over UC and UD, which lose messages silently.
//! Neither side waits for a message that may be lost: over TCP, the sides report when they have
//! sent all messages, and how many arrived.

pub(super) mod bw;
pub(super) mod lat;

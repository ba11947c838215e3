//! Measurements over services that lose messages silently: UC and UD. Nothing here waits for a message
//! that may be lost: over TCP the sides tell each other when they have sent all, and what arrived.

pub(super) mod bw;
pub(super) mod lat;

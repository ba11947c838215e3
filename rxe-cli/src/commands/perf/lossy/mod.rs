//! Measuring over services that lose messages without a word: UC and UD. Nothing here waits for a
//! message that may be lost; that a side has sent all, and what became of it, is said over TCP.

pub(super) mod bw;
pub(super) mod lat;

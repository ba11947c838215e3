//! What a peer or a stranger can make this crate keep. Whatever is sent, no more memory is used than
//! these numbers say; `tests/tests/bounded.rs` counts it.
//!
//! A queue pair keeps of what its peer sends: the message being assembled (a few words: its bytes go
//! straight to where they belong), answers that wait to be sent, and answers kept for duplicates.
//! Requests that arrive in the wrong order are not kept. A device keeps its newest events. The
//! communication manager keeps the requests that its listeners have room for, and datagrams that
//! wait to be sent.

/// Connections and questions of a device, all states counted.
pub const MAX_CONNECTIONS: usize = 1 << 16;
/// Datagrams that wait to be sent; more are lost as in the network.
pub const MAX_OUTBOX: usize = 4096;

/// Events that nobody has taken yet: the oldest are forgotten.
pub const MAX_EVENTS: usize = 1024;

/// Answers of a responder that wait to be sent: those to READs and atomics, for the first time and
/// for another time, and an acknowledgement beside each.
pub const fn max_answers(max_dest_rd_atomic: u8) -> usize {
    4 * max_dest_rd_atomic as usize + 1
}

/// READs and atomics whose answers a responder keeps for duplicates.
pub const fn max_saved(max_dest_rd_atomic: u8) -> usize {
    if max_dest_rd_atomic == 0 { 1 } else { max_dest_rd_atomic as usize }
}

/// Bytes that a peer can make a queue pair use beyond what it uses idle.
pub const fn max_peer_bytes(max_dest_rd_atomic: u8) -> usize {
    // An answer and what is kept of one are less than 64 bytes each; the lists of them grow by
    // doubling.
    2 * 64 * (max_answers(max_dest_rd_atomic) + max_saved(max_dest_rd_atomic)) + 1024
}

/// Bytes of the events.
pub const MAX_EVENT_BYTES: usize = 80 * MAX_EVENTS;

//! Bounds on the memory that a peer or a stranger can make this crate use. Whatever they send, it
//! uses no more than these numbers say; `tests/tests/bounded.rs` checks them.
//!
//! For its peer, a queue pair keeps the state of the message being assembled (a few words: the
//! payload goes straight to its destination), responses that wait to be sent, and responses for
//! duplicates. Requests that arrive out of order are not kept. A device keeps its newest events. The
//! communication manager keeps as many requests as its listeners have room for, and datagrams that
//! wait to be sent.

/// Connections and SIDR queries of a device, in all states.
pub const MAX_CONNECTIONS: usize = 1 << 16;
/// Management datagrams that wait to be sent. More are dropped, as if the network had lost them.
pub const MAX_OUTBOX: usize = 4096;

/// Events that nobody has taken yet. When there are more, the oldest are dropped. An asynchronous event of
/// verbs is kept nevertheless, one of each kind for each object of the program.
pub const MAX_EVENTS: usize = 1024;

/// Responses of a responder that wait to be sent: first and repeated responses to READs and atomics, and
/// an acknowledgement for each.
pub const fn max_responses(max_dest_rd_atomic: u8) -> usize {
    4 * max_dest_rd_atomic as usize + 1
}

/// READs and atomics whose responses a responder keeps for duplicates.
pub const fn max_saved(max_dest_rd_atomic: u8) -> usize {
    if max_dest_rd_atomic == 0 { 1 } else { max_dest_rd_atomic as usize }
}

/// Bytes that a peer can make a queue pair use beyond what it uses idle.
pub const fn max_peer_bytes(max_dest_rd_atomic: u8) -> usize {
    // A waiting response and a kept one take less than 64 bytes each; their lists grow by doubling. Of each kind of
    // affiliated event one is kept, which takes a node of two trees.
    2 * 64 * (max_responses(max_dest_rd_atomic) + max_saved(max_dest_rd_atomic)) + 2560
}

/// Bytes of the events that a device keeps.
pub const MAX_EVENT_BYTES: usize = 80 * MAX_EVENTS;

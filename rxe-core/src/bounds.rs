//! Bounds on the memory that a peer or a stranger can make this crate use. Whatever they send, the
//! crate uses no more memory than these constants allow. `tests/tests/bounded.rs` checks the
//! bounds.
//!
//! For its peer, a queue pair stores the state of the message being assembled (a few words: the
//! payload goes directly to its destination), responses that wait to be sent, and responses for
//! duplicates. It does not store requests that arrive out of order. A device stores its newest
//! events. The communication manager stores as many requests as its listeners have room for, and
//! datagrams that wait to be sent.

/// The maximum number of connections and SIDR queries of a device, in all states.
pub const MAX_CONNECTIONS: usize = 1 << 16;
/// The maximum number of management datagrams that wait to be sent. Further datagrams are dropped,
/// as if the network had lost them.
pub const MAX_OUTBOX: usize = 4096;

/// The maximum number of events that wait to be taken. When the queue is full, the oldest event is
/// dropped; but of the affiliated asynchronous events of verbs, the newest of each kind is kept for
/// each object of the program.
pub const MAX_EVENTS: usize = 1024;

/// Returns the maximum number of responses that wait to be sent by a responder: first and repeated
/// responses to READs and atomics, and an acknowledgement for each.
pub const fn max_responses(max_dest_rd_atomic: u8) -> usize {
    4 * max_dest_rd_atomic as usize + 1
}

/// Returns the number of READs and atomics whose responses a responder keeps for duplicates.
pub const fn max_saved(max_dest_rd_atomic: u8) -> usize {
    if max_dest_rd_atomic == 0 { 1 } else { max_dest_rd_atomic as usize }
}

/// Returns the bytes that a peer can make a queue pair use, in addition to those of an idle one.
pub const fn max_peer_bytes(max_dest_rd_atomic: u8) -> usize {
    // A waiting response and a saved one take less than 64 bytes each. Their lists grow by
    // doubling, hence the factor of 2. One affiliated event of each kind is kept, which takes a
    // node of two trees.
    2 * 64 * (max_responses(max_dest_rd_atomic) + max_saved(max_dest_rd_atomic)) + 2560
}

/// The maximum size of the events that a device keeps, in bytes.
pub const MAX_EVENT_BYTES: usize = 80 * MAX_EVENTS;

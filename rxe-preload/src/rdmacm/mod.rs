//! librdmacm: identifiers and channels as programs hold them, on top of `rxe_verbs::cm`.
//!
//! - `abi`: the structures of the header. `id`: identifiers from their making to their end.
//! - `channel`: channels and events. `connect`: connecting on both sides. `qp`: queue pairs.
//! - `ep`: `rdma_create_ep` and `rdma_getaddrinfo`. `addrinfo`: the latter as an event. `multicast`, `options`: the rest.
//! - `devices`: which context an address leads to. `verbs`: what this half uses of the other.
//!
//! An identifier made without a channel is synchronous: its calls return when what they began has
//! ended. It has a channel of its own, on which [`id::Id::complete`] waits.
//!
//! rsockets need nothing here: librdmacm's own go through these functions, since the loader binds
//! its calls of itself to the preloaded ones too.

mod abi;
mod addrinfo;
#[cfg(test)]
mod asking_tests;
mod channel;
mod connect;
mod devices;
mod ep;
mod id;
#[cfg(test)]
mod layout_tests;
mod multicast;
mod options;
mod qp;
mod verbs;

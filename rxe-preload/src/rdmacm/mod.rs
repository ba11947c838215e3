//! librdmacm: identifiers and channels as programs hold them, on top of `rxe_verbs::cm`.
//!
//! - `abi`: the structures of the header. `id`: identifiers from their making to their end.
//! - `channel`, `event`: channels and events. `get_event`: how an event of `rxe_verbs::cm` becomes one of
//!   the program.
//! - `connect`: connecting on both sides. `qp`: queue pairs. `multicast`, `options`: the rest.
//! - `getaddrinfo`: names to addresses. `addrinfo`: the same as an event. `ep`: `rdma_create_ep`.
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
mod event;
mod get_event;
mod getaddrinfo;
mod id;
#[cfg(test)]
mod layout_tests;
mod multicast;
mod options;
mod qp;
mod verbs;

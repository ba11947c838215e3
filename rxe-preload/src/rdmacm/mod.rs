//! librdmacm: identifiers and channels as programs hold them, on top of `rxe_verbs::cm`.
//!
//! - `abi`: the structures of the header.
//! - `id`: creating, binding, resolving and destroying identifiers.
//! - `channel`, `event`: channels and events. `get_event`: converts an event of `rxe_verbs::cm` for the
//!   program.
//! - `connect`: connecting on both sides. `qp`: queue pairs.
//! - `multicast`, `options`: multicast groups and `rdma_set_option`.
//! - `getaddrinfo`: names to addresses. `addrinfo`: the same with an event. `ep`: `rdma_create_ep`.
//! - `devices`: the contexts of identifiers. `verbs`: the functions of `ibverbs` that are used here.
//!
//! An identifier made without a channel is synchronous: its calls return when their operation is done.
//! It has a channel of its own, on which [`id::Id::complete`] waits.
//!
//! rsockets need nothing here: those of librdmacm call these functions, because the loader binds
//! librdmacm's internal calls to the preloaded functions too.

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

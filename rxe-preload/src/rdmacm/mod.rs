//! librdmacm: identifiers and channels as programs hold them, on top of `rxe_verbs::cm`.
//!
//! - `abi`: the structures of `rdma_cma.h`.
//! - `id`: creates, binds, resolves and destroys identifiers.
//! - `channel`, `event`: channels and events.
//! - `get_event`: converts events of `rxe_verbs::cm` for the program.
//! - `connect`: connecting on both sides.
//! - `qp`: queue pairs of identifiers.
//! - `multicast`, `options`: multicast groups and `rdma_set_option`.
//! - `getaddrinfo`: resolves names to addresses. `addrinfo`: does so with an event.
//! - `ep`: `rdma_create_ep`.
//! - `devices`: the contexts of identifiers.
//! - `verbs`: the functions of `ibverbs` that are used here.
//!
//! An identifier created without a channel is synchronous: its calls return when their operation is
//! done. It has a channel of its own, on which [`id::Id::complete`] waits.
//!
//! rsockets need no code here: those of librdmacm call these functions, because the loader binds
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

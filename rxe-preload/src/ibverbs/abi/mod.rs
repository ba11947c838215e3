//! The structures of `infiniband/verbs.h`, as programs were compiled with them.
//!
//! Half of libibverbs is inline functions in that header, so these layouts are the ABI.
//! Field names and order are the header's; `layout_tests` compares every size and offset with those
//! of the C compiler.

#![allow(non_camel_case_types, reason = "the header's own names")]

mod attr;
mod context;
#[cfg(test)]
mod layout_tests;
mod object;
mod work;

pub(crate) use attr::*;
pub(crate) use context::*;
pub(crate) use object::*;
pub(crate) use work::*;

/// A GID, in network byte order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

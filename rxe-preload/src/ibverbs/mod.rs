//! libibverbs: `exports` has the functions that programs link to, `objects` the structures that
//! programs hold, and the other files the calls, one file for each kind of object. `of_host` and
//! `owner` support the host's own devices next to ours.

pub(crate) mod abi;
mod absent;
mod ah;
mod asynchronous;
mod buf;
mod builder;
mod channel;
mod completion;
mod cq;
mod cq_ex;
pub(crate) mod device;
mod dm;
mod dmabuf;
mod exports;
mod import;
mod lid;
mod mapping;
mod mr;
mod mw;
mod objects;
mod of_host;
mod open;
mod owner;
mod pages;
mod pd;
mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
mod query;
pub(crate) mod srq;
mod text;
mod wall_clock;
pub(crate) mod xrcd;

pub(crate) use objects::{Context, Unacknowledged};

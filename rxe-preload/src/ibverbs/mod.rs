//! libibverbs: one file for each kind of object that programs hold.

pub(crate) mod abi;
mod absent;
mod ah;
mod asynchronous;
mod buf;
mod builder;
mod channel;
pub(crate) mod context;
mod cq;
mod cq_ex;
pub(crate) mod device;
mod handle;
mod lid;
mod mr;
mod mw;
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

pub(crate) use asynchronous::Unacknowledged;

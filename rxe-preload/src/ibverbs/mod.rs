//! libibverbs: one file for each kind of object that programs hold.

mod abi;
mod ah;
mod asynchronous;
mod builder;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod mr;
mod mw;
mod pd;
mod post;
mod qp;
mod qp_attr;
mod query;
mod srq;
mod text;
mod xrcd;

//! The objects that programs hold: what is behind each `struct ibv_*`, how it is made for a program, and
//! how it is found by the program's pointer. The calls are in the files beside this directory.

mod ah;
mod channel;
mod context;
mod cq;
mod handle;
mod mr;
mod mw;
mod pd;
mod qp;
mod srq;
mod unacknowledged;
mod xrcd;

pub(crate) use ah::Ah;
pub(crate) use channel::Channel;
pub(crate) use context::Context;
pub(crate) use cq::Cq;
pub(crate) use handle::Handle;
pub(crate) use mr::Mr;
pub(crate) use mw::Mw;
pub(crate) use pd::Pd;
pub(crate) use qp::{Building, Qp, from_cap};
pub(crate) use srq::Srq;
pub(crate) use unacknowledged::Unacknowledged;
pub(crate) use xrcd::{FileId, Xrcd};

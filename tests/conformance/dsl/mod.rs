//! The language of the catalogue. A case is an initial state, a script and an expected result.
//! All of it is data: one runner checks every case, and one printer creates the document.

mod bystander;
pub(crate) mod case;
pub(crate) mod doc;
pub(crate) mod packet;
pub(crate) mod road;
pub(crate) mod world;

pub(crate) use case::*;
pub(crate) use packet::*;
pub(crate) use world::{
    ALL, BASE, BINDABLE, DEREGISTERED, KEY_0, KEY_ONES, LOCAL_ONLY, MEMORY, NO_ATOMIC, OTHER_PD,
    READ_ONLY, UNKNOWN, WINDOW_1, WINDOW_2, WINDOW_AT, WINDOW_OTHER_QP, WINDOW_UNBOUND, WRITE_ONLY,
    recv_at,
};

pub(crate) use rxe_core::engine::RetryCause;
pub(crate) use rxe_core::mem::Access;
pub(crate) use rxe_core::qp::QpState;
pub(crate) use rxe_core::queue::Status;
pub(crate) use rxe_core::types::{Key, Mtu};
pub(crate) use rxe_core::wire::{DropReason, NakCode, Opcode, Position, Syndrome};

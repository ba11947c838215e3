//! The objects that programs hold: what is behind each `struct ibv_*`, how it is made for a program, and
//! how it is found by the program's pointer. The calls are in the files beside this directory.

/// How the program's pointer leads to an object that begins with what the program sees.
macro_rules! found_by_pointer {
    ($object:ident, $verbs:ty) => {
        impl $object {
            /// # Safety
            /// It exists.
            pub(crate) unsafe fn of<'o>(verbs: *mut $verbs) -> &'o Self {
                // SAFETY: programs only have the address of the first field of the object.
                unsafe { &*verbs.cast() }
            }
        }
    };
}

/// The same for an object that remembers what it was made with ([`Handle`]).
macro_rules! known_by_handle {
    ($object:ident, $verbs:ty, $what:literal) => {
        impl $object {
            /// The object, if it is ours, the context and the handle are still those that it was made with, and
            /// the program has not closed the context.
            ///
            /// # Safety
            /// It exists.
            pub(crate) unsafe fn known<'o>(verbs: *mut $verbs) -> $crate::ffi::Outcome<&'o Self> {
                // SAFETY: the caller's promise.
                unsafe { $crate::ibverbs::owner::Owned::check_own(verbs, $what)? };
                // SAFETY: programs only have the address of the first field of the object.
                let this = unsafe { &*verbs.cast::<Self>() };
                // SAFETY: the caller's promise.
                let (context, handle) = unsafe { ((*verbs).context, (*verbs).handle) };
                this.made.check($what, context, handle)?;
                // SAFETY: it is the context that it was made on, whose structure stays.
                unsafe { $crate::ibverbs::objects::Context::of(context) }.check_open()?;
                Ok(this)
            }
        }
    };
}

/// What is behind an object ([`Ends`]), if that is one field, which is a `ManuallyDrop`.
macro_rules! ends_with {
    ($object:ident, $part:ident) => {
        impl $crate::ibverbs::objects::Ends for $object {
            unsafe fn end(&mut self) {
                // SAFETY: the caller's promise.
                unsafe { ManuallyDrop::drop(&mut self.$part) };
            }
        }
    };
}

mod ah;
mod channel;
mod context;
mod cq;
mod dm;
mod ends;
mod handle;
mod imports;
mod mr;
mod mw;
mod pd;
mod qp;
mod srq;
mod td;
mod unacknowledged;
mod xrcd;

pub(crate) use ah::Ah;
pub(crate) use channel::Channel;
pub(crate) use context::{Context, FileId};
pub(crate) use cq::Cq;
pub(crate) use dm::Dm;
pub(crate) use ends::{Alive, Ends};
pub(crate) use handle::Handle;
pub(crate) use imports::{Importable, Imports};
pub(crate) use mr::Mr;
pub(crate) use mw::Mw;
pub(crate) use pd::{Parent, Pd};
pub(crate) use qp::{Building, Qp, from_cap};
pub(crate) use srq::Srq;
pub(crate) use td::Td;
pub(crate) use unacknowledged::Unacknowledged;
pub(crate) use xrcd::Xrcd;

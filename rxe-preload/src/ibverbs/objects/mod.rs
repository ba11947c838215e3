//! The objects that programs hold: the structure behind each `struct ibv_*`, how it is created for
//! a program, and how the program's pointer leads to it. The calls are in the parent directory.

/// Defines how a program's pointer leads to an object that begins with its structure.
macro_rules! found_by_pointer {
    ($object:ident, $verbs:ty) => {
        impl $object {
            /// # Safety
            /// `verbs` exists.
            pub(crate) unsafe fn of<'o>(verbs: *mut $verbs) -> &'o Self {
                // SAFETY: programs only have the address of the first field of the object.
                unsafe { &*verbs.cast() }
            }
        }
    };
}

/// Defines a lookup that checks an object's context and handle ([`Handle`]).
macro_rules! known_by_handle {
    ($object:ident, $verbs:ty, $what:literal) => {
        impl $object {
            /// Returns the object, if it is ours and valid.
            /// It is valid if its context and handle have their original values, and the program
            /// has not closed the context.
            ///
            /// # Safety
            /// `verbs` exists.
            pub(crate) unsafe fn known<'o>(verbs: *mut $verbs) -> $crate::ffi::Outcome<&'o Self> {
                // SAFETY: the caller's promise.
                unsafe { $crate::ibverbs::owner::Owned::check_own(verbs, $what)? };
                // SAFETY: programs only have the address of the first field of the object.
                let this = unsafe { &*verbs.cast::<Self>() };
                // SAFETY: the caller's promise.
                let (context, handle) = unsafe { ((*verbs).context, (*verbs).handle) };
                this.made.check($what, context, handle)?;
                // SAFETY: this is the context on which it was created, whose structure stays.
                unsafe { $crate::ibverbs::objects::Context::of(context) }.check_open()?;
                Ok(this)
            }
        }
    };
}

/// Implements [`Ends`] for an object whose engine object is one `ManuallyDrop` field.
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

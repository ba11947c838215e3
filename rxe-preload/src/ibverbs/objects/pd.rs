//! The object behind a program's `struct ibv_pd`.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use rxe_verbs::ProtectionDomain;

use super::{Context, Handle, Importable};
use crate::ibverbs::abi::{ibv_context, ibv_pd};

/// A protection domain as programs hold it.
/// A parent domain (`ibv_alloc_parent_domain`) is another handle to the domain from which it was
/// created.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) verbs: ibv_pd,
    made: Handle,
    pub(crate) domain: ManuallyDrop<ProtectionDomain>,
    /// The additional state of a parent domain.
    pub(crate) parent: Option<Parent>,
}

/// The state that only a parent domain has.
pub(crate) struct Parent {
    /// A reference that the thread domain counts, if the parent domain has one.
    pub(crate) _td: Option<Arc<()>>,
}

known_by_handle!(Pd, ibv_pd, "the protection domain");
ends_with!(Pd, domain);

impl Pd {
    /// Creates a protection domain for the program, which frees it with `ibv_dealloc_pd`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        domain: ProtectionDomain,
        parent: Option<Parent>,
    ) -> *mut ibv_pd {
        let made = Handle::new(context);
        let verbs = ibv_pd { context, handle: made.number() };
        let number = made.number();
        // SAFETY: an open context.
        let owner = unsafe { Context::of(context) };
        let domain = ManuallyDrop::new(domain);
        let object = owner.alive.make(Self { verbs, made, domain, parent });
        owner.imports.made(number, Importable::Pd, object.cast());
        object.cast()
    }
}

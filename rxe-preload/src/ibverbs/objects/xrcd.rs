//! The object behind a program's `struct ibv_xrcd`.

use std::mem::ManuallyDrop;

use rxe_verbs::XrcDomain;

use super::{Context, FileId};
use crate::ibverbs::abi::{ibv_context, ibv_xrcd};

/// An XRC domain as programs hold it.
#[repr(C)]
pub(crate) struct Xrcd {
    pub(crate) verbs: ibv_xrcd,
    pub(crate) domain: ManuallyDrop<XrcDomain>,
    /// The file that identifies the domain, if any.
    pub(crate) file: Option<FileId>,
}

found_by_pointer!(Xrcd, ibv_xrcd);
ends_with!(Xrcd, domain);

impl Xrcd {
    /// Creates an XRC domain for the program, which frees it with `ibv_close_xrcd`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        domain: XrcDomain,
        file: Option<FileId>,
    ) -> *mut ibv_xrcd {
        let (verbs, domain) = (ibv_xrcd { context }, ManuallyDrop::new(domain));
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(Self { verbs, domain, file }).cast()
    }
}

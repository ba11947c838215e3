//! The object behind a program's `struct ibv_dm`.

use std::mem::ManuallyDrop;

use rxe_verbs::DeviceMemory;

use super::{Context, Handle, Importable};
use crate::ibverbs::abi::{MemcpyFromDm, MemcpyToDm, ibv_context, ibv_dm};

/// Device memory as programs hold it.
#[repr(C)]
pub(crate) struct Dm {
    pub(crate) verbs: ibv_dm,
    made: Handle,
    pub(crate) memory: ManuallyDrop<DeviceMemory>,
}

found_by_pointer!(Dm, ibv_dm);
known_by_handle!(Dm, ibv_dm, "the device memory");
ends_with!(Dm, memory);

impl Dm {
    /// Creates device memory for the program, which frees it with `ibv_free_dm`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        memory: DeviceMemory,
        memcpy_to_dm: MemcpyToDm,
        memcpy_from_dm: MemcpyFromDm,
    ) -> *mut ibv_dm {
        let made = Handle::new(context);
        let handle = made.number();
        let verbs = ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle };
        // SAFETY: an open context.
        let owner = unsafe { Context::of(context) };
        let object = owner.alive.make(Self { verbs, made, memory: ManuallyDrop::new(memory) });
        owner.imports.made(handle, Importable::Dm, object.cast());
        object.cast()
    }
}

//! Events as programs hold them.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::abi::{event_param, rdma_cm_event, rdma_cm_id};

/// An event as programs hold it, with the private data to which it points.
#[repr(C)]
pub(super) struct Event {
    verbs: rdma_cm_event,
    private_data: Vec<u8>,
}

impl Event {
    /// Creates an event for the program, which frees it with `rdma_ack_cm_event`.
    /// `param` creates the parameter from the address and the length of the private data.
    pub(super) fn into_ptr(
        ids: [*mut rdma_cm_id; 2],
        event: u32,
        status: c_int,
        private_data: Vec<u8>,
        param: impl FnOnce(*const c_void, u8) -> event_param,
    ) -> *mut rdma_cm_event {
        let data: *const c_void =
            if private_data.is_empty() { ptr::null() } else { private_data.as_ptr().cast() };
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let [id, listen_id] = ids;
        let verbs = rdma_cm_event { id, listen_id, event, status, param: param(data, len) };
        Box::into_raw(Box::new(Self { verbs, private_data })).cast()
    }

    /// Frees an event.
    /// # Safety
    /// `event` is from [`Event::into_ptr`], and is not used afterwards.
    pub(super) unsafe fn free(event: *mut rdma_cm_event) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(event.cast::<Self>()) });
    }
}

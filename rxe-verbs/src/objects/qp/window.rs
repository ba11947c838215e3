//! Requests for memory windows. They send nothing, but are executed in the order of the send queue.
//! IBTA 11.2.8.12, 11.4.1.1.

use std::ops::RangeBounds;

use rxe_core::mem::{Access, Binding, WindowType};
use rxe_core::queue::SendOp;
use rxe_core::types::Key;

use super::{QueuePair, Request};
use crate::objects::mr::MemoryRegion;
use crate::objects::mw::MemoryWindow;

impl QueuePair {
    /// Begins a bind: grants peers that name the window access to a range of a region.
    ///
    /// `access` has REMOTE_ rights, which the queue pair must allow too. With
    /// [`Access::ZERO_BASED`], addresses count from 0 at the window's start; otherwise they are the
    /// region's. The region must have [`Access::MW_BIND`]. [`Request::new_rkey`] is the window's
    /// new key. Requests posted later may rely on the bind.
    ///
    /// The request fails with [`crate::Status::MemoryWindowBind`] if a window of type 2 is already
    /// bound, or if the region no longer exists.
    pub fn bind(
        &self,
        id: u64,
        window: &MemoryWindow,
        region: &MemoryRegion,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Request<'_> {
        let (offset, len) = region.resolve(&range);
        let addr = region.addr().wrapping_add(offset as u64);
        let length = len as u64;
        let binding = Binding { region: region.lkey(), addr, length, access };
        let inside = offset.checked_add(len).is_some_and(|end| end <= region.len());
        let why = if region.pd().id() != self.pd().id() || !self.owns(region.pd()) {
            Some("the memory region belongs to another protection domain than the queue pair")
        } else if !region.access().contains(Access::MW_BIND) {
            Some("the memory region was registered without MW_BIND: add it")
        } else if region.access().contains(Access::ZERO_BASED) {
            Some("windows cannot be bound to a zero-based region")
        } else if access.intersects(WRITES) && !region.access().contains(Access::LOCAL_WRITE) {
            Some("a window for REMOTE_WRITE or REMOTE_ATOMIC needs a region with LOCAL_WRITE")
        } else if access.intersects(!ALLOWED) {
            Some("a window has only REMOTE_ rights, FLUSH_GLOBAL and ZERO_BASED")
        } else if (access & Access::FLUSH_GLOBAL).intersects(!region.access()) {
            Some("a window for FLUSH needs a region registered with FLUSH_GLOBAL")
        } else if window.kind() == WindowType::Type1 && access.contains(Access::ZERO_BASED) {
            Some("only windows of type 2 can be zero-based")
        } else if length == 0 || !inside {
            Some("the range is empty or reaches outside the memory region")
        } else {
            None
        };
        self.bind_as(id, window, binding).refused(why)
    }

    /// Begins the removal of a type 1 window's binding.
    pub fn unbind(&self, id: u64, window: &MemoryWindow) -> Request<'_> {
        let nothing = Binding { region: Key::new(0), addr: 0, length: 0, access: Access::empty() };
        let why = (window.kind() == WindowType::Type2)
            .then_some("a window of type 2 is not unbound but invalidated: local_invalidate()");
        self.bind_as(id, window, nothing).refused(why)
    }

    /// Begins the invalidation of a type 2 window that is bound to this queue pair and has this
    /// key.
    ///
    /// If there is none, the request fails with [`crate::Status::LocalQpOperation`].
    pub fn local_invalidate(&self, id: u64, rkey: Key) -> Request<'_> {
        self.without_bytes(id, SendOp::LocalInvalidate { key: rkey })
    }

    fn bind_as(&self, id: u64, window: &MemoryWindow, binding: Binding) -> Request<'_> {
        let why = (window.pd().id() != self.pd().id() || !self.owns(window.pd())).then_some(
            "the memory window belongs to another protection domain than the queue pair",
        );
        let new_key = window.next_low();
        let op = SendOp::BindWindow { window: window.id(), new_key, binding };
        self.without_bytes(id, op).refused(why)
    }

    fn owns(&self, pd: &crate::ProtectionDomain) -> bool {
        self.device().owns(pd.device(), "").is_ok()
    }
}

const WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

const ALLOWED: Access =
    WRITES.union(Access::REMOTE_READ).union(Access::ZERO_BASED).union(Access::FLUSH_GLOBAL);

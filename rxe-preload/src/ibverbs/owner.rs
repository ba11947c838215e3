//! Tells whether an object that a program holds belongs to this library or to the system's.
//!
//! Each object begins with a pointer to its context, and the context with a pointer to its device.
//! Our devices are marked.

use std::ffi::c_void;
use std::ptr;

use super::abi::{
    ibv_ah, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_dm, ibv_mr,
    ibv_mw, ibv_pd, ibv_qp, ibv_srq,
};
use crate::ffi::{Failure, Outcome};
use crate::host;

/// The variable whose address marks our devices, in a field that has long been unused.
static MARK: u8 = 0;

/// Returns the content of `ibv_device::_ops` in our devices.
pub(super) fn mark() -> [*const c_void; 2] {
    [(&raw const MARK).cast(), ptr::null()]
}

/// An object whose owner can be determined.
pub(super) trait Owned: Sized {
    /// Returns whether the object belongs to the host. Null does not.
    ///
    /// # Safety
    /// The object exists, or is null.
    unsafe fn of_host(self) -> bool;

    /// Fails if the object belongs to the host. `what` names the object in the explanation.
    ///
    /// # Safety
    /// The object exists, or is null.
    unsafe fn check_own(self, what: &str) -> Outcome {
        // SAFETY: the caller's promise.
        if !host::is_used() || !unsafe { self.of_host() } {
            return Ok(());
        }
        let why = format!(
            "{what} belongs to a device of the host, and this call is for one of rxe: use objects of one device \
             together"
        );
        Err(Failure::new(libc::EINVAL, why))
    }
}

impl Owned for *mut ibv_device {
    unsafe fn of_host(self) -> bool {
        // SAFETY: the caller's promise.
        !self.is_null() && unsafe { (*self)._ops } != mark()
    }
}

impl Owned for *mut ibv_context {
    unsafe fn of_host(self) -> bool {
        // SAFETY: the caller's promise; the device of an open context exists.
        !self.is_null() && unsafe { (*self).device.of_host() }
    }
}

macro_rules! by_context {
    ($($object:ty),*) => {
    $(
        impl Owned for *mut $object {
            unsafe fn of_host(self) -> bool {
                // SAFETY: the caller's promise; the context of an object is open.
                !self.is_null() && unsafe { (*self).context.of_host() }
            }
        }
    )*
    };
}

by_context!(ibv_ah, ibv_comp_channel, ibv_cq, ibv_dm, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq);

/// An object of a kind that this library never creates. It begins with its context.
impl Owned for *mut c_void {
    unsafe fn of_host(self) -> bool {
        // SAFETY: the caller's promise.
        !self.is_null() && unsafe { (*self.cast::<*mut ibv_context>()).of_host() }
    }
}

/// The owner of the object that the event names.
/// Events of a device or a port have no owner, and acknowledging them does nothing.
impl Owned for *mut ibv_async_event {
    unsafe fn of_host(self) -> bool {
        // The values of `ibv_event_type` with an object: CQs and QPs (0 to 7), SRQs and the last
        // WQE (14 to 16), WQs (19).
        // SAFETY: the caller's promise; all kinds of objects begin with the context.
        !self.is_null()
            && unsafe {
                matches!((*self).event_type, 0..=7 | 14..=16 | 19) && (*self).element.cq.of_host()
            }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;
    use crate::ibverbs::objects::{Cq, Pd};

    /// Objects as another library creates them, whose memory ends where the header's structure
    /// does.
    #[test]
    fn what_is_not_of_a_marked_device_is_of_the_host() {
        // SAFETY: all zeros is a value of each of these structures of C, but for the functions of a
        // context, which are then missing.
        unsafe {
            let (mut device, mut context): (ibv_device, ibv_context) = (zeroed(), zeroed());
            let device = &raw mut device;
            context.device = device;
            let (mut pd, mut cq): (ibv_pd, ibv_cq) = (zeroed(), zeroed());
            (pd.context, cq.context) = (&raw mut context, &raw mut context);
            let (pd, cq) = (&raw mut pd, &raw mut cq);
            assert!((&raw mut context).of_host() && pd.of_host() && cq.of_host());
            assert!(!ptr::null_mut::<ibv_cq>().of_host() && !ptr::null_mut::<c_void>().of_host());
            host::pretend_used();
            assert_eq!(Pd::known(pd).map(drop).unwrap_err().errno, libc::EINVAL);
            let refused = Cq::known(cq).map(drop).unwrap_err();
            assert!(
                refused
                    .text
                    .unwrap()
                    .starts_with("the completion queue belongs to a device of the host")
            );

            let mut event: ibv_async_event = zeroed();
            event.element.cq = cq;
            for (kind, expected) in [(0, true), (7, true), (16, true), (9, false), (20, false)] {
                event.event_type = kind;
                assert_eq!((&raw mut event).of_host(), expected, "event {kind}");
            }
            (*device)._ops = mark();
            event.event_type = 0;
            assert!(!pd.of_host() && !cq.of_host() && !(&raw mut event).of_host());
            assert!(cq.check_own("it").is_ok());
        }
    }
}

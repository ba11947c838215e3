//! Memory that faults on access, for x86-64.

use std::ptr::{self, NonNull};

use crate::mem::{Buffer, recovery};
use crate::types::FaultCause;

const PAGE: usize = 4096;

/// Installs a signal handler as an application does. It handles only faults of the copy routines.
pub(crate) fn handle_faults() {
    // SAFETY: the handler changes registers only where a routine of this crate has faulted.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO these two; nobody else has them.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    let registers = &mut context.uc_mcontext.gregs;
    let pc = registers[libc::REG_RIP as usize].cast_unsigned();
    let Some(to) = recovery(usize::try_from(pc).unwrap_or(0)) else {
        // SAFETY: the fault happens again, and ends the process as it would have.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    registers[libc::REG_RIP as usize] = (to as u64).cast_signed();
    registers[libc::REG_RAX as usize] = FaultCause::Unmapped as i64;
    // SAFETY: the signal is SIGSEGV, which has an address.
    registers[libc::REG_RDX as usize] = (unsafe { info.si_addr() } as u64).cast_signed();
}

/// Returns a page that faults on every access. It stays mapped until the process ends.
pub(crate) fn faulting_page() -> Buffer {
    handle_faults();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: nobody else uses the page, and the handler ends each access to it.
    unsafe { Buffer::from_raw(NonNull::new(page.cast()).unwrap(), PAGE) }
}

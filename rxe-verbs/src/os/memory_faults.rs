//! Signal handlers for faults of the program's memory. One of the few files with `unsafe` code.
//!
//! The engine copies registered memory with routines that return an error if the memory faults
//! ([`rxe_core::mem::recovery`]). A handler of SIGSEGV and SIGBUS causes the error: the handler of
//! [`handle_memory_faults`], or the program's own, which calls [`recover_from_fault`] first.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::OnceLock;

use libc::siginfo_t;
use rxe_core::mem::FaultCause;

use crate::error::{Error, Result};

type Plain = unsafe extern "C-unwind" fn(c_int);
type WithInfo = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handlers that the program had installed before.
static BEFORE: OnceLock<[(c_int, libc::sigaction); 2]> = OnceLock::new();

/// Installs a handler of SIGSEGV and SIGBUS for the whole process.
///
/// A fault of registered memory then fails only the request or queue pair that used the memory, and
/// the process goes on. Regions with [`Access::ON_DEMAND`](crate::Access::ON_DEMAND) need this
/// handler, or one that calls [`recover_from_fault`]. Other faults go to the handlers that were
/// installed before. Calls after the first have no effect.
///
/// # Errors
/// Fails if the kernel refuses the handler.
pub fn handle_memory_faults() -> Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // The previous handlers must be stored before our handler can run.
    let before = [libc::SIGSEGV, libc::SIGBUS].map(|signal| {
        // SAFETY: all zeros is a valid value.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: our own variable; nothing is changed.
        unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
        (signal, action)
    });
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    for (signal, before) in before {
        let mut ours = before;
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = before.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: our handler only changes registers where a routine of the engine has faulted, or
        // calls the handler that was there.
        if unsafe { libc::sigaction(signal, &raw const ours, ptr::null_mut()) } != 0 {
            return Err(Error::io("handle memory faults", io::Error::last_os_error()));
        }
    }
    Ok(())
}

unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the arguments are the kernel's.
    if unsafe { recover_from_fault(signal, info, context) } {
        return;
    }
    let before = BEFORE.get().and_then(|all| all.iter().find(|(of, _)| *of == signal));
    let Some((_, before)) = before else { return };
    match before.sa_sigaction {
        // The fault repeats when the handler returns, and then ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: what was there before. A signal that was sent is raised again.
            unsafe {
                libc::sigaction(signal, before, ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        // SAFETY: the program's handler, of the type that its flags say, with the kernel's arguments.
        handler => unsafe {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
            } else {
                std::mem::transmute::<usize, Plain>(handler)(signal);
            }
        },
    }
}

/// Recovers from a fault in a copy of registered memory; for a handler with SA_SIGINFO.
///
/// To be called first in a handler of SIGSEGV or SIGBUS. If it returns true, the copy will return
/// an error, and the handler must return. All other faults are the program's. Async-signal-safe.
///
/// # Safety
/// The arguments are those that the kernel gave the handler.
pub unsafe fn recover_from_fault(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) -> bool {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid pointer.
    let code = unsafe { (*info).si_code };
    // With codes up to 0, a process has sent the signal; no memory access has faulted.
    if code <= 0 {
        return false;
    }
    // SAFETY: SIGSEGV and SIGBUS from the kernel have an address; and as above.
    let (addr, context) = unsafe { ((*info).si_addr().addr(), &mut *context.cast()) };
    registers::recover(context, cause(signal, code), addr)
}

fn cause(signal: c_int, code: c_int) -> FaultCause {
    const SEGV_MAPERR: c_int = 1;
    const SEGV_ACCERR: c_int = 2;
    const SEGV_PKUERR: c_int = 4;
    const SI_KERNEL: c_int = 0x80;
    match (signal, code) {
        (libc::SIGSEGV, SEGV_MAPERR | SI_KERNEL) => FaultCause::Unmapped,
        (libc::SIGSEGV, SEGV_ACCERR | SEGV_PKUERR) => FaultCause::Protected,
        (libc::SIGBUS, libc::BUS_ADRERR) => FaultCause::BeyondFile,
        _ => FaultCause::Other,
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use rxe_core::mem::{FaultCause, recovery};

    const PC: usize = libc::REG_RIP as usize;
    const RESULT: usize = libc::REG_RAX as usize;
    const SECOND: usize = libc::REG_RDX as usize;

    /// If the fault was in a copy, makes the copy return an error. Returns whether it was in one.
    pub(super) fn recover(context: &mut libc::ucontext_t, cause: FaultCause, addr: usize) -> bool {
        let registers = &mut context.uc_mcontext.gregs;
        let Some(to) = usize::try_from(registers[PC]).ok().and_then(recovery) else { return false };
        registers[PC] = (to as u64).cast_signed();
        registers[RESULT] = (cause as usize as u64).cast_signed();
        registers[SECOND] = (addr as u64).cast_signed();
        true
    }
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use rxe_core::mem::{FaultCause, recovery};

    /// If the fault was in a copy, makes the copy return an error. Returns whether it was in one.
    pub(super) fn recover(context: &mut libc::ucontext_t, cause: FaultCause, addr: usize) -> bool {
        let registers = &mut context.uc_mcontext;
        let Some(to) = usize::try_from(registers.pc).ok().and_then(recovery) else { return false };
        registers.pc = to as u64;
        registers.regs[0] = cause as usize as u64;
        registers.regs[1] = addr as u64;
        true
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod registers {
    use rxe_core::mem::FaultCause;

    /// Returns `false`: on this architecture, copies cannot recover from faults.
    pub(super) fn recover(_: &mut libc::ucontext_t, _: FaultCause, _: usize) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_from_the_others() {
        assert_eq!(cause(libc::SIGSEGV, 1), FaultCause::Unmapped);
        assert_eq!(cause(libc::SIGSEGV, 2), FaultCause::Protected);
        assert_eq!(cause(libc::SIGBUS, libc::BUS_ADRERR), FaultCause::BeyondFile);
        assert_eq!(cause(libc::SIGBUS, libc::BUS_MCEERR_AR), FaultCause::Other);
    }
}

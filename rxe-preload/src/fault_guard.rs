//! Handles memory faults: those in the engine's copies of program memory, and the program's own.
//!
//! The engine copies registered memory with routines that return an error if the memory is not
//! mapped ([`rxe_verbs::recover_from_fault`]). The handler of SIGSEGV and SIGBUS here makes them
//! return that error. Every other fault is the program's: it goes to the handler that the program
//! installed, or ends the process as it would without this library.
//!
//! A program may install its handler before or after it opens a device. [`install`] keeps a handler
//! that is already there. `sigaction` and `signal` are overridden here, so a later handler is kept
//! too, and the program reads back the handler that it installed. The kernel always has our
//! function, with the program's mask and flags. So the program's handler runs on the stack, and
//! with the blocked signals, that it asked for.
//!
//! Limits: the kernel kills a thread that blocks SIGSEGV at its first fault, whatever handler is
//! installed. A handler installed by a direct system call is noticed only at the next [`install`],
//! which is called at each registration of memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{SIG_DFL, SIG_ERR, SIG_IGN, sighandler_t, siginfo_t};

use crate::next::Next;

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

/// The C library's `sigaction`, which changes the kernel's action.
static REAL: Next = Next::new(c"sigaction");
static REAL_SIGNAL: Next = Next::new(c"signal");
static REAL_SYSV_SIGNAL: Next = Next::new(c"__sysv_signal");

/// Looks up the C library's functions.
/// Called at load, so that no signal handler has to call `dlsym`.
pub(crate) fn resolve() {
    for function in [&REAL, &REAL_SIGNAL, &REAL_SYSV_SIGNAL] {
        function.get();
    }
}

/// Whether our handler is installed. Until then, the program's calls go to the C library.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The two signals, with the program's action for each as [`pack`] encodes it.
static ACTIONS: [(c_int, AtomicU64); 2] =
    [(libc::SIGSEGV, AtomicU64::new(0)), (libc::SIGBUS, AtomicU64::new(0))];

fn action_of(signal: c_int) -> Option<&'static AtomicU64> {
    ACTIONS.iter().find(|(of, _)| *of == signal).map(|(_, action)| action)
}

/// Installs our handler, even if the program has replaced it since the last call.
pub(crate) fn install() {
    static PINNED: Once = Once::new();
    PINNED.call_once(pin);
    INSTALLED.store(true, Ordering::SeqCst);
    for (signal, action) in &ACTIONS {
        if let Some(now) = ask(*signal)
            && !is_ours(&now)
        {
            adopt(*signal, action, &now);
        }
    }
}

/// Keeps this library loaded. The program may unload it while our handler is installed.
fn pin() {
    // SAFETY: all zeros is a valid value, which `dladdr` fills in.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: our own variable; an address in this library.
    if unsafe { libc::dladdr(on_fault as *const c_void, &raw mut found) } != 0 {
        // SAFETY: the name of a library that is loaded; the handle is never closed.
        unsafe {
            libc::dlopen(found.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_NODELETE | libc::RTLD_LAZY)
        };
    }
}

/// Returns the kernel's present action for a signal.
fn ask(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: our own variable; nothing is changed.
    (unsafe { real(signal, ptr::null(), &raw mut action) } == 0).then_some(action)
}

/// Calls the C library's `sigaction`.
/// # Safety
/// As for `sigaction`.
unsafe fn real(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(function) = REAL.get() else { return -1 };
    // SAFETY: the C library's function of this name has this type.
    let function: Sigaction = unsafe { std::mem::transmute(function) };
    // SAFETY: the caller's promise.
    unsafe { function(signal, new, old) }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Records `new` as the program's action, and installs ours with its mask and flags.
fn adopt(signal: c_int, action: &AtomicU64, new: &libc::sigaction) -> c_int {
    let mut ours = *new;
    if !is_ours(new) {
        action.store(pack(new), Ordering::SeqCst);
    }
    ours.sa_sigaction = on_fault as *const () as usize;
    // `chain` handles SA_RESETHAND.
    ours.sa_flags = (new.sa_flags & !libc::SA_RESETHAND) | libc::SA_SIGINFO;
    if matches!(new.sa_sigaction, SIG_DFL | SIG_IGN) {
        ours.sa_flags |= libc::SA_ONSTACK | libc::SA_RESTART;
    }
    // SAFETY: our handler follows the rules for handlers; the rest is what the program asked for.
    unsafe { real(signal, &raw const ours, ptr::null_mut()) }
}

/// The flags of an action that are stored in the upper bits of its packed form.
const FLAGS: [c_int; 5] =
    [libc::SA_SIGINFO, libc::SA_ONSTACK, libc::SA_RESTART, libc::SA_NODEFER, libc::SA_RESETHAND];
/// The bit where the flags begin. User-space addresses are shorter.
const FLAGS_AT: usize = 59;

/// Packs an action's handler and flags into one word, for atomic reads in a handler.
/// The mask is not stored here: the kernel has it.
fn pack(action: &libc::sigaction) -> u64 {
    let flags = FLAGS.iter().enumerate().filter(|(_, flag)| action.sa_flags & **flag != 0);
    flags.fold(action.sa_sigaction as u64, |word, (bit, _)| word | 1 << (FLAGS_AT + bit))
}

/// Returns the handler and the flags of a packed action.
fn unpack(word: u64) -> (sighandler_t, c_int) {
    let flags = FLAGS.iter().enumerate().filter(|(bit, _)| word >> (FLAGS_AT + bit) & 1 == 1);
    let address = word & ((1 << FLAGS_AT) - 1);
    let flags = flags.fold(0, |flags, (_, flag)| flags | flag);
    (usize::try_from(address).unwrap_or(SIG_DFL), flags)
}

unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments.
    if unsafe { rxe_verbs::recover_from_fault(signal, info, context) } {
        return;
    }
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid pointer.
    let code = unsafe { (*info).si_code };
    // SAFETY: the kernel's arguments.
    unsafe { chain(signal, code, info, context) };
}

/// Handles the program's own fault as it would be handled without this library.
///
/// # Safety
/// The arguments are those of a signal handler.
unsafe fn chain(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    type Plain = unsafe extern "C-unwind" fn(c_int);
    type WithInfo = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);
    let Some(action) = action_of(signal) else { return };
    let (handler, flags) = unpack(action.load(Ordering::SeqCst));
    match handler {
        SIG_IGN if code <= 0 => {}
        SIG_DFL | SIG_IGN => {
            // SAFETY: the default action. A fault happens again when the handler returns, and ends
            // the process at the instruction that made it.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = SIG_DFL;
                real(signal, &raw const default, ptr::null_mut());
                if code <= 0 {
                    // The signal was sent, so it is raised again. It arrives when the handler returns.
                    libc::raise(signal);
                }
            }
        }
        _ => {
            if flags & libc::SA_RESETHAND != 0 {
                action.store(0, Ordering::SeqCst);
            }
            // SAFETY: the program's handler, of the type that its flags say.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, Plain>(handler)(signal);
                }
            }
        }
    }
}

/// Overrides the C library's `sigaction`. Our handler stays installed.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let action = action_of(signal).filter(|_| INSTALLED.load(Ordering::SeqCst));
    let Some((action, mut before)) = action.zip(ask(signal)) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(signal, new, old) };
    };
    if is_ours(&before) {
        (before.sa_sigaction, before.sa_flags) = unpack(action.load(Ordering::SeqCst));
    }
    // SAFETY: null, or the program's structure.
    let new = unsafe { new.as_ref() };
    if let Some(new) = new
        && adopt(signal, action, new) != 0
    {
        return -1;
    }
    if !old.is_null() {
        // SAFETY: the program's structure.
        unsafe { old.write(before) };
    }
    0
}

/// Does what `signal` does with these flags, by way of [`sigaction`].
/// Returns `None` if the C library's function may be called instead.
fn signal_with(signal: c_int, handler: sighandler_t, flags: c_int) -> Option<sighandler_t> {
    action_of(signal).filter(|_| INSTALLED.load(Ordering::SeqCst))?;
    // SAFETY: all zeros is a valid value.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if flags & libc::SA_NODEFER == 0 {
        // SAFETY: our own variable.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    // SAFETY: our own variables; the handler is the program's.
    let done = unsafe { sigaction(signal, &raw const new, &raw mut old) };
    Some(if done == 0 { old.sa_sigaction } else { SIG_ERR })
}

/// Defines functions like `signal`, each with its implied flags and its C library function.
macro_rules! signals {
    ($($name:ident: $flags:expr, $real:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            if let Some(old) = signal_with(signal, handler, $flags) {
                return old;
            }
            let Some(function) = $real.get() else { return SIG_ERR };
            // SAFETY: the C library's function of this name has this type.
            let function: Signal = unsafe { std::mem::transmute(function) };
            // SAFETY: the caller's arguments.
            unsafe { function(signal, handler) }
        }
    )*};
}

signals! {
    signal: libc::SA_RESTART, REAL_SIGNAL;
    bsd_signal: libc::SA_RESTART, REAL_SIGNAL;
    ssignal: libc::SA_RESTART, REAL_SIGNAL;
    sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER, REAL_SYSV_SIGNAL;
    __sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER, REAL_SYSV_SIGNAL;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_one_word_and_back() {
        // SAFETY: all zeros is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        assert_eq!(unpack(pack(&action)), (SIG_DFL, 0));
        action.sa_sigaction = 0x7fff_1234_5678;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        assert_eq!(unpack(pack(&action)), (action.sa_sigaction, action.sa_flags));
    }
}

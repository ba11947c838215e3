//! Intercepts calls that end a process, or replace its program, without exit handlers.
//! Before they do, messages that have completed at the program are acknowledged:
//! [`rxe_verbs::flush_before_exit`].
//!
//! Calls inside the C library are not intercepted, and need not be: `exit` runs the exit handler of
//! rxe-verbs, and `system` and `posix_spawn` do not end the process. A signal that kills the
//! process calls nothing.
//!
//! Several of these functions are variadic, and some do not return. So each override consists of a
//! few instructions that preserve all arguments, call [`before_end`], and jump to the C library's
//! function. Those functions are looked up when this library is loaded: dlsym may not be called in
//! a signal handler, and `_exit` often is.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Called with all argument registers saved.
extern "C" fn before_end() {
    // Does something only if the constructor of this library has not run yet.
    look_up();
    rxe_verbs::flush_before_exit();
}

/// Looks up the C library's functions, once.
extern "C" fn look_up() {
    for (real, name) in REAL {
        if real.load(Ordering::Relaxed).is_null() {
            // SAFETY: the name ends with a zero byte; RTLD_NEXT is whatever follows this library.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            let end: extern "C" fn() -> ! = not_there;
            let found = if found.is_null() { end as *mut c_void } else { found };
            real.store(found, Ordering::Release);
        }
    }
}

/// Stands in for a function that the C library lacks. No program can be linked with that function.
extern "C" fn not_there() -> ! {
    std::process::abort()
}

/// The dynamic linker calls this function when it has loaded the library.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = look_up;

macro_rules! hooks {
    ($($name:ident $real:ident)*) => {
        static REAL: &[(&AtomicPtr<c_void>, &str)] = &[$((&$real, concat!(stringify!($name), "\0"))),*];

        $(
            static $real: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                // At entry the stack pointer is 8 off a multiple of 16; seven more words align it.
                // `al` holds the number of vector registers of a variadic call; these functions
                // take none.
                std::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "call {before_end}",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp qword ptr [rip + {real}]",
                    before_end = sym before_end,
                    real = sym $real,
                )
            }
        )*
    };
}

hooks! {
    _exit REAL_EXIT
    _Exit REAL_EXIT_C
    quick_exit REAL_QUICK_EXIT
    abort REAL_ABORT
    __assert_fail REAL_ASSERT_FAIL
    execve REAL_EXECVE
    execv REAL_EXECV
    execvp REAL_EXECVP
    execvpe REAL_EXECVPE
    execl REAL_EXECL
    execlp REAL_EXECLP
    execle REAL_EXECLE
    fexecve REAL_FEXECVE
    execveat REAL_EXECVEAT
}

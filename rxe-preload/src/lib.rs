//! The C ABI of libibverbs and librdmacm on the userspace RoCEv2 engine.
//! Preloaded, this library gives any program linked with the two working RDMA devices, without a
//! kernel module.
//!
//! - `ibverbs/abi`: the structures of `verbs.h`, as programs were compiled with them.
//! - `ibverbs`: the functions, one file for each kind of object. Each object that a program holds
//!   begins with the header's structure, followed by our fields, so a pointer to one is a pointer
//!   to the other.
//! - `rdmacm`: librdmacm, which calls `ibverbs` as a program would.
//! - `ffi`: errno, failures, thread cancellation.
//! - `explain`: explanations of mistakes.
//! - `fault_guard`: memory faults, in the engine's copies of program memory and in the program
//!   itself.
//! - `next`: the C library's versions of the functions that this library overrides.
//! - `faults`: reports what the faults injected with `rxe run --fault` did.
//! - `dlopen`: redirects `dlopen` of libibverbs and librdmacm to this library.
//! - `exits`: calls that end a process.
//! - `files`: the files that a kernel device has in sysfs and `/dev`. `tree` holds copies of them.
//! - `golang`: Go programs, which read files by direct system calls.
//! - `host`: the system's own libibverbs, for the host's devices next to ours.
//! - `netlink`: answers to `NETLINK_RDMA` requests, as the kernel gives them.
//! - `liveness`: threads that sleep in an object while another thread destroys it.
//! - `config`: the variables `RXE_…` that `rxe run` sets.
//! - `panics`: a panic ends the process with a message, and never unwinds into the program.
//!
//! Pointers come from programs, which are trusted as much as with any C library. The safety
//! condition of every function here is what verbs demands of its pointers: they were returned by
//! the right call, and the object has not been destroyed.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the contract of every function is that of the verb it implements"
)]

#[cfg(test)]
mod c_header;
mod config;
mod counters;
mod dlopen;
#[cfg(target_arch = "x86_64")]
mod exits;
mod explain;
mod fault_guard;
mod faults;
mod ffi;
mod files;
mod golang;
mod host;
mod ibverbs;
mod liveness;
mod load;
mod netlink;
mod next;
mod panics;
mod rdmacm;
mod stderr;
mod tree;

//! The C ABI of libibverbs and librdmacm on the userspace RoCEv2 engine: a library that, preloaded,
//! gives any program linked with them working RDMA devices, without a kernel module.
//!
//! - `ibverbs/abi`: the structures of the header, as programs were compiled with them.
//! - `ibverbs`: the functions, one file for each kind of object. Each object that a program holds is
//!   the header's structure with ours behind it, so that a pointer to the one is a pointer to the
//!   other.
//! - `rdmacm`: librdmacm, which uses `ibverbs` as a program would.
//! - `ffi`: errno, failures, cancellation.
//! - `explain`: explanations of mistakes.
//! - `fault_guard`: memory faults in copies of the program's memory, and the program's own. `next`:
//!   the C library's functions behind those that are defined here.
//! - `faults`: what the faults that `rxe run --fault` asks for did.
//! - `dlopen`: libibverbs and librdmacm, for programs that load them by themselves.
//! - `exits`: calls that end a process.
//! - `files`: what a kernel device shows in sysfs and `/dev`; `tree` has these files.
//! - `golang`: programs in Go, which read files by system calls of their own.
//! - `host`: the system's own libibverbs, for the host's devices beside ours.
//! - `netlink`: what a kernel answers over `NETLINK_RDMA`.
//! - `liveness`: threads that wait in an object while another thread destroys it.
//! - `config`: the variables `RXE_…` that `rxe run` sets.
//!
//! Pointers come from programs, which are trusted as much as with any C library: what verbs says of
//! them (that they were returned by the right call and not destroyed) is the safety condition of
//! every function here. `panics`: a panic ends the process with a message; no unwinding reaches a program.

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

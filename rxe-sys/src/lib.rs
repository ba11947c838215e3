//! What the operating system gives, for a library that lives inside somebody else's process.
//!
//! Such a library is loaded into programs that do not know of it, and they do what programs may do:
//!
//! - **They close descriptors that they did not open**: `close_range()`, `closefrom()`, a loop over
//!   all numbers. Then a number may stand for another file. So a descriptor here knows the file it was
//!   opened for and looks before it reads, writes or closes ([`CheckedFd`], [`SharedFd`]).
//! - **They fork.** A child has the descriptors and the memory of its parent, and none of its threads. What
//!   belongs to one process says so: [`ForkGuarded`] descriptors act only in the process that opened them,
//!   [`PerProcess`] values are made anew in a child, and [`fork_generation`] tells a child apart.
//! - **They have small stacks and signals.** Threads here block all signals and bring their own stack
//!   ([`spawn_thread`], [`on_own_stack`]).
//! - **They end in any state.** [`at_exit`] runs before what a program's own handlers tear down.
//! - **They hold locks and wait for nobody.** Whatever may sleep in the kernel says so ([`may_block`]), and a
//!   debug build panics if that happens where nothing may block ([`NonBlocking`]).
//!
//! The rest is system calls that rustix does not have. The only files with `unsafe` are `bpf`, `exit`,
//! `fork`, `fork_guarded`, `mmsg`, `per_process`, `secure`, `sockopt` and `thread`.

pub mod addr;
mod blocking;
pub mod bpf;
mod checked_fd;
pub mod cmsg;
mod epoll;
mod error;
mod event_fd;
mod exit;
mod fork;
mod fork_guarded;
pub mod mmsg;
mod netdev;
pub mod netlink;
mod per_process;
mod secure;
mod shared_fd;
pub mod sockopt;
pub mod station;
mod thread;
mod timer_fd;
mod token_fd;
pub mod unix;

pub use blocking::{NonBlocking, is_in_memory, may_block, may_block_at};
pub use checked_fd::CheckedFd;
pub use epoll::Epoll;
pub use error::Error;
pub use event_fd::EventFd;
pub use exit::at_exit;
pub use fork::fork_generation;
pub use fork_guarded::ForkGuarded;
pub use netdev::NetDev;
pub use per_process::PerProcess;
pub use secure::has_gained_rights;
pub use shared_fd::SharedFd;
pub use thread::{lower_priority, on_own_stack, spawn_and_await, spawn_thread};
pub use timer_fd::TimerFd;
pub use token_fd::TokenFd;

//! Operating-system services for a library that is loaded into another program.
//!
//! The program does not know of the library and may do anything that programs do:
//!
//! - **It closes descriptors that it did not open**: `close_range()`, `closefrom()`, a loop over
//!   all numbers. The number may then refer to another file. So a descriptor here remembers the
//!   file that it was opened for, and checks it before a read, write or close ([`CheckedFd`],
//!   [`SharedFd`]).
//! - **It forks.** A child has the descriptors and the memory of its parent, and none of its
//!   threads. A child loses [`ForkGuarded`] descriptors, cannot change its parent's [`EventFd`] and
//!   [`TimerFd`], and creates its own [`PerProcess`] values. [`fork_generation`] tells a child from
//!   its parent.
//! - **It handles signals, and has small stacks.** Threads started here block all signals except
//!   those that a faulting instruction raises ([`spawn_thread`]). Code that needs a large stack
//!   runs on a thread of its own ([`on_own_stack`]).
//! - **It exits in any state.** [`at_exit`] registers a hook that runs after the handlers that the
//!   program registers later.
//! - **Its threads call in and must not be delayed.** Every call that may sleep in the kernel
//!   declares it ([`may_block`]). A debug build panics if the calling thread holds a lock under
//!   which nothing may sleep ([`NonBlocking`]).
//!
//! The remaining modules are system calls that rustix lacks. The only files with `unsafe` outside
//! of tests are `bpf`, `checked_fd`, `exit`, `fork`, `fork_guarded`, `mmsg`, `per_process`,
//! `secure`, `sockopt` and `thread`.

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
pub mod packet_membership;
mod per_process;
mod secure;
mod shared_fd;
pub mod sockopt;
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
pub use thread::{
    is_ordinary, lower_priority, on_own_stack, set_ordinary, set_realtime, spawn_and_await,
    spawn_thread,
};
pub use timer_fd::TimerFd;
pub use token_fd::TokenFd;

//! System calls that rustix does not have: the only files with `unsafe` are `bpf`, `exit`, `fork`, `fork_guarded`,
//! `mmsg`, `per_process`, `secure`, `sockopt` and `thread`.

pub(crate) mod addr;
pub(crate) mod bpf;
pub(crate) mod checked_fd;
pub(crate) mod cmsg;
pub(crate) mod epoll;
pub(crate) mod event_fd;
pub(crate) mod exit;
pub(crate) mod fork;
pub(crate) mod fork_guarded;
pub(crate) mod mmsg;
pub(crate) mod netdev;
pub(crate) mod per_process;
pub(crate) mod secure;
pub(crate) mod shared_fd;
pub(crate) mod sockopt;
pub(crate) mod station;
pub(crate) mod thread;
pub(crate) mod timer_fd;
pub(crate) mod token_fd;
pub(crate) mod unix;

//! The backends, one module each, and how one is chosen by name.
//!
//! `udp` needs no privileges. `packet` and `xdp` need capabilities, and see the headers that a UDP
//! socket hides. `l2` is an endpoint with its own Ethernet and IP addresses. `shm` wraps another
//! backend: it carries packets to processes of this host through shared memory, and passes all
//! others to the backend inside.
//!
//! All of them are for Linux. `pnet` is no backend: it carries the frames of an interface for `l2`,
//! and on other systems for captures.

#[cfg(target_os = "linux")]
mod kind;
#[cfg(target_os = "linux")]
pub(crate) mod l2;
pub(crate) mod link_frame;
#[cfg(target_os = "linux")]
mod loss;
#[cfg(target_os = "linux")]
pub(crate) mod packet;
#[cfg(any(all(unix, feature = "pnet"), all(windows, feature = "npcap")))]
pub(crate) mod pnet;
#[cfg(target_os = "linux")]
mod poll_backoff;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
pub(crate) mod shm;
#[cfg(target_os = "linux")]
pub(crate) mod udp;
#[cfg(target_os = "linux")]
pub(crate) mod xdp;

#[cfg(target_os = "linux")]
pub use kind::{BackendKind, open};

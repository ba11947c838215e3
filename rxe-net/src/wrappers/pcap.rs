//! A wrapper that captures the packets of any backend in a pcapng file. `rxe-lab` reads these
//! files.
//!
//! Frames are complete. Headers that a backend does not see are reconstructed, so that the ICRC of
//! each packet is right for the headers in the file; a hidden IPv4 ID is recovered from the ICRC.
//! Bursts and merged frames are split into packets.
//!
//! Only its owner may read a new file (mode 0600), because it holds the contents of the traffic. A
//! path that is a symbolic link is refused, because another user may have put it there. An existing
//! file is overwritten with the first packet, not earlier: if a program fails before it sends
//! anything, the last capture remains.
//!
//! Invariants: an error of the file ends the capture, never the traffic. Packets are queued in
//! memory, and a thread writes them ([`output`]). Packets that arrive faster than it writes are
//! missing from the file, and the file says so.

#[cfg(target_os = "linux")]
mod capture;
#[cfg(target_os = "linux")]
mod handle;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod tap;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod wrapper;
mod write;

#[cfg(target_os = "linux")]
pub use self::capture::{PcapStatus, missing_before};
#[cfg(target_os = "linux")]
pub use self::handle::PcapHandle;
#[cfg(target_os = "linux")]
pub use self::live::LiveCapture;
#[cfg(target_os = "linux")]
pub use self::tap::Tap;
#[cfg(target_os = "linux")]
pub use self::wrapper::{Pcap, PcapOptions};
pub use self::write::{Direction, PacketBlock, PcapWriter};

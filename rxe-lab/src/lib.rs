//! Captures of RDMA traffic, understood: which packets a file has, what their headers say, and how
//! they follow each other. It has no sockets; `rxe-cli` prints what it finds.
//!
//! - [`capture`]: the frames of a pcap or pcapng file, one at a time.
//! - [`frame`]: a frame taken apart, from the link layer to the ICRC.
//! - [`header`]: the fields of each header, as tables.
//! - [`track`]: what is sent again, missing or late, by the PSNs of each queue pair.
//! - [`check`]: what went wrong in each connection, and why.
//! - [`ladder`]: a conversation as a sequence diagram.
//! - [`replay`]: one side of a conversation for a live peer, and how its answers differ.
//! - [`words`]: a packet in words.
//! - [`answer`]: what the peer of packets made by hand says.

pub mod answer;
pub mod capture;
pub mod check;
pub mod frame;
pub mod header;
pub mod ladder;
mod point;
pub mod replay;
pub mod scenario;
pub mod track;
pub mod words;

//! Analyses captures of RDMA traffic.
//!
//! The crate reads packet files, decodes headers, and follows each connection. It opens no sockets;
//! `rxe-cli` prints its results.
//!
//! - [`capture`]: reads the frames of a pcap or pcapng file, one at a time.
//! - [`frame`]: decodes a frame from the link layer to the ICRC.
//! - [`header`]: the fields of each header, as tables.
//! - [`track`]: finds retransmitted, missing and late packets by the PSNs of each queue pair.
//! - [`check`]: finds what went wrong in each connection, and why.
//! - [`explain`]: explains codes, messages and findings.
//! - [`packets`]: the packets of a capture one by one: filters, summary, JSON.
//! - [`report`]: the analyst's report on a file, as JSON.
//! - [`ladder`]: draws a conversation as a sequence diagram.
//! - [`replay`]: plays one side of a conversation to a live peer and compares the answers.
//! - [`scenario`]: runs hand-made packets between engines, without sockets.
//! - [`words`]: describes a packet in words.
//! - [`answer`]: describes what a peer answers to hand-made packets.

pub mod answer;
pub mod capture;
pub mod check;
pub mod explain;
pub mod frame;
pub mod header;
pub mod ladder;
pub mod packets;
mod point;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod track;
pub mod words;

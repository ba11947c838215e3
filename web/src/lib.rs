//! The laboratory in a browser: `rxe-lab` behind a C ABI, for a page without a framework.
//!
//! The page's worker writes a request into memory and calls [`abi::rxe_call`]. A request is a JSON
//! object ([`laboratory::Request`]), and so is the answer, except for files. A capture is read
//! through one imported function, so it is never in memory as a whole file. Nothing else is imported:
//! no clock, no network, no storage.
//!
//! The files of the page are in `web/page`. `cargo xtask web` puts everything in one directory.

pub mod abi;
mod conversation;
mod edit;
mod explain;
pub mod laboratory;
mod ladder;
mod list;
mod loaded;
mod store;

//! Code that the integration tests, benches and fuzz targets share.

pub mod captures;
pub mod crowd;
pub mod fuzz;
pub mod lone;
pub mod network;
pub mod scenario;
pub mod shared_memory;
pub mod sim;
pub mod stream;

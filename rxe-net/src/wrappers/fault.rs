//! A wrapper that injects faults into any backend. Rules and a seed decide which packets are lost,
//! duplicated, reordered, corrupted, marked or delayed, in either direction.

mod decide;
pub mod language;
mod path;
mod report;
mod rules;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod wrapper;

pub use self::path::{FaultPath, PathCounters};
pub use self::report::{FaultReport, FaultTally};
pub use self::rules::{
    FaultAction, FaultAmount, FaultRule, OpcodeFilter, PacketFilter, PsnFilter, QpFilter,
};
#[cfg(target_os = "linux")]
pub use self::wrapper::Fault;

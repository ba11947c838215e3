//! The safe verbs API.

pub mod device;

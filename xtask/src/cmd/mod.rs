//! One file a chore.

pub(crate) mod bench;
pub(crate) mod deps;
pub(crate) mod interop;
pub(crate) mod kernel;
pub(crate) mod libs;
pub(crate) mod pcaps;
pub(crate) mod programs;
pub(crate) mod sanitize;
pub(crate) mod test;

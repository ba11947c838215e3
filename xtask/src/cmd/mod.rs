//! One file a chore.

pub(crate) mod kernel;

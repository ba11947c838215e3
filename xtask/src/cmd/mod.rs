//! The tasks, one file for each.

pub(crate) mod conform;
pub(crate) mod deps;
pub(crate) mod dist;
pub(crate) mod docs;
mod files;
mod fresh;
pub(crate) mod install;
pub(crate) mod interop;
pub(crate) mod kernel;
pub(crate) mod layers;
pub(crate) mod libs;
pub(crate) mod pcaps;
pub(crate) mod programs;
mod quick;
pub(crate) mod sanitize;
mod side_by_side;
mod stages;
pub(crate) mod suite;
mod targets;
pub(crate) mod test;
pub(crate) mod web;

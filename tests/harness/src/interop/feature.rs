//! The definition of a feature in the interoperability table.

use super::world::{KernelFeature, Setting, World};
use crate::vm::Result;

/// A feature: its name in filters, its description, and the function that tests it.
pub(super) struct Feature {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) run: fn(&mut World<'_>, Setting) -> Result<()>,
    pub(super) needs: KernelFeature,
}

pub(super) const fn feature(
    name: &'static str,
    what: &'static str,
    run: fn(&mut World<'_>, Setting) -> Result<()>,
) -> Feature {
    Feature { name, what, run, needs: KernelFeature::Nothing }
}

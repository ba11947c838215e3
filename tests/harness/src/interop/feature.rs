//! What one feature of the interoperability table is.

use super::world::{Needs, Setting, World};
use crate::vm::Result;

/// A thing to show: its name in filters, what it is, and how it is shown.
pub(super) struct Feature {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) run: fn(&mut World<'_>, Setting) -> Result<()>,
    pub(super) needs: Needs,
}

pub(super) const fn feature(
    name: &'static str,
    what: &'static str,
    run: fn(&mut World<'_>, Setting) -> Result<()>,
) -> Feature {
    Feature { name, what, run, needs: Needs::Nothing }
}

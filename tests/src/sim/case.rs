//! A run of either kind, chosen by its number.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::plan::Plan;
use super::script::Script;
use super::world::{Failure, Report};
use super::{stage, world};

/// A run of either kind.
#[derive(Clone, Debug)]
pub enum Case {
    /// A run over reliable connections, checked to the last byte and packet.
    Plan(Box<Plan>),
    /// A run with all services and objects.
    Script(Box<Script>),
}

impl Case {
    /// Draws run number `run`.
    pub fn draw(run: u64) -> Self {
        if run % 5 < 2 {
            Self::Plan(Box::new(Plan::draw(run)))
        } else {
            Self::Script(Box::new(Script::draw(run)))
        }
    }

    /// Puts shared-memory rings between the engines and the network.
    pub fn over_rings(mut self) -> Self {
        match &mut self {
            Self::Plan(plan) => plan.network.over_rings(),
            Self::Script(script) => script.network.over_rings(),
        }
        self
    }

    /// Executes the run. `record`: write a log. A panic counts as a failure.
    ///
    /// # Errors
    /// The failure.
    pub fn run(&self, record: bool) -> Result<Report, Failure> {
        let run = || match self {
            Self::Plan(plan) => world::run(plan, record),
            Self::Script(script) => stage::run(script, record),
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            let what = format!("panic: {}", text.unwrap_or_default());
            Err(Failure { what, ladder: "(the ladder went down with the panic)".into() })
        })
    }

    /// Returns a description in one line.
    pub fn about(&self) -> String {
        match self {
            Self::Plan(plan) => {
                format!("reliable, {:?}, network {:?}", plan.family, plan.network)
            }
            Self::Script(script) => {
                let disturbed = if script.disturbed { "disturbed" } else { "undisturbed" };
                format!("script, {disturbed}, network {:?}", script.network)
            }
        }
    }
}

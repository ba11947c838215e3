//! Scenarios: descriptions of packets in TOML, with the faults of hosts in the language of `--fault`.

use rxe_lab::scenario::{self, Bounds, Generated, ScenarioError};
use rxe_net::FaultRule;
use rxe_verbs::{FaultError, FaultPlan};

/// The packets of a scenario.
///
/// # Errors
/// The scenario has a mistake, or asks for more than `bounds`.
pub fn generate(text: &str, bounds: Bounds) -> Result<Generated, ScenarioError> {
    scenario::generate(text, faults, bounds)
}

fn faults(text: &str) -> Result<Vec<FaultRule>, (usize, String)> {
    let plan = text.parse::<FaultPlan>();
    plan.map(|plan| plan.rules().to_vec()).map_err(|e: FaultError| (e.column(), e.to_string()))
}

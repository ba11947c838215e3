//! Scenarios: descriptions of packets in TOML, with the faults of hosts in the language of `--fault`.

use std::path::Path;

use rxe_lab::scenario::{self, Bounds, Generated, ScenarioError};

/// The packets of a scenario.
///
/// # Errors
/// The scenario has a mistake, or asks for more than `bounds`.
pub fn generate(text: &str, bounds: Bounds) -> Result<Generated, ScenarioError> {
    scenario::generate(text, scenario::faults, bounds)
}

/// The frames of a scenario in `pcaps/scenarios`.
///
/// # Panics
/// If there is none of this name, or it has a mistake.
pub fn frames(name: &str) -> Vec<Vec<u8>> {
    let file = format!("../pcaps/scenarios/{name}.toml");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let generated = generate(&text, Bounds::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    generated.frames.into_iter().map(|frame| frame.bytes).collect()
}

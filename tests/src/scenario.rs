//! Scenarios: descriptions of packets in TOML, with the faults in the syntax of `rxe run --fault`.

use std::path::Path;

use rxe_lab::scenario::{Bounds, generate};

/// Returns the frames of the scenario `name` in `pcaps/scenarios`.
///
/// # Panics
/// If the scenario does not exist or has a mistake.
pub fn frames(name: &str) -> Vec<Vec<u8>> {
    let file = format!("../pcaps/scenarios/{name}.toml");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let generated = generate(&text, Bounds::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    generated.frames.into_iter().map(|frame| frame.bytes).collect()
}

//! Mooncake's transfer engine in the table of [`programs`](crate::programs): a script of this
//! project writes into the memory of a server, reads it back and compares it.

use super::side::{Ends, meet};
use super::world::{Row, Sides, World};
use crate::paths;
use crate::skip::unless_missing;
use crate::vm::Result;
use crate::wheel;

/// The package, and the client's options in the table.
pub(super) const PROGRAM: (&str, &str) =
    (wheel::MOONCAKE, "tests/python/mooncake_bytes.py DEVICE OWN ADDRESS");

/// The port of the script's server.
const PORT: u16 = 4790;

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) -> Result<()> {
    let Some(line) = unless_missing(PROGRAM.0, line())? else { return Ok(()) };
    for sides in Sides::ALL {
        let what = format!("{} {}", PROGRAM.0, PROGRAM.1);
        world.row(what, sides, || play(world, &line, sides), rows);
    }
    Ok(())
}

/// Returns the client's command line.
fn line() -> Result<String> {
    let (wheel, python) = (wheel::mooncake()?, wheel::python()?);
    let script = paths::checkout().join("tests/python/mooncake_bytes.py");
    Ok(format!(
        "PYTHONPATH={} MC_GID_INDEX=GID {} {} DEVICE OWN ADDRESS",
        wheel.display(),
        python.display(),
        script.display()
    ))
}

fn play(world: &World<'_>, line: &str, sides: Sides) -> Result<()> {
    let ends = Ends::of(world, sides);
    let server = ends.serve(line.trim_end_matches("ADDRESS"))?;
    meet(world, server, PORT, || ends.ask(line))
}

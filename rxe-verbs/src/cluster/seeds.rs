//! Runs a test with many seeds.

use std::env;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The environment variable with the only seed to run.
const VARIABLE: &str = "RXE_SEED";

/// Calls `run` with each seed, or only with that of `RXE_SEED`, if it is set. So a failing seed,
/// which the panic message names, can be run again, with a debugger or a capture.
///
/// # Panics
/// At the first seed for which `run` panics or returns an error; the message names the seed. Also
/// if `RXE_SEED` is not a number.
pub fn for_each_seed<E: Debug>(seeds: Range<u64>, mut run: impl FnMut(u64) -> Result<(), E>) {
    let seeds = match env::var(VARIABLE) {
        Err(_) => seeds,
        Ok(text) => {
            let seed: u64 = text.trim().parse().unwrap_or_else(|_| {
                panic!("{VARIABLE} is \"{text}\": it must be the number of a seed")
            });
            seed..seed + 1
        }
    };
    for seed in seeds {
        let failed = match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(())) => continue,
            Ok(Err(e)) => format!("{e:?}"),
            Err(payload) => match payload.downcast::<String>() {
                Ok(text) => *text,
                Err(payload) => payload.downcast_ref::<&str>().map_or("it panicked", |t| t).into(),
            },
        };
        panic!("seed {seed}: {failed}\nto run this seed alone, set {VARIABLE}={seed}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(run: impl FnMut(u64) -> Result<(), String>) -> String {
        let failed = catch_unwind(AssertUnwindSafe(|| for_each_seed(0..10, run)));
        *failed.unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn the_first_seed_that_fails_is_named() {
        let fails = |seed| if seed < 3 { Ok(()) } else { Err("no".to_owned()) };
        let text = "seed 3: \"no\"\nto run this seed alone, set RXE_SEED=3";
        assert_eq!(message(fails), text);
        let panics = |seed| {
            assert!(seed < 4, "{seed} is too much");
            Ok(())
        };
        assert!(message(panics).starts_with("seed 4: 4 is too much\n"));
        let mut seen = Vec::new();
        for_each_seed(5..8, |seed| {
            seen.push(seed);
            Ok::<_, String>(())
        });
        assert_eq!(seen, [5, 6, 7]);
    }
}

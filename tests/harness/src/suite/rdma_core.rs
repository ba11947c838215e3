//! Runs rdma-core's tests with pyverbs, which is installed or built in the checkout.
//! The versions of tests and pyverbs must match.

use std::path::Path;

use crate::vm::{Error, Result};

use super::table::{Outcome, Outcomes};

/// Modules of tests for devices and software that neither side has.
const FOREIGN: [&str; 3] = ["test_mlx5", "test_efa", "test_cuda"];

/// The directory in which a checkout is built with cmake -DIN_PLACE=1.
const BUILT: &str = "build";

/// Returns the script that runs the tests on `$device`.
///
/// # Errors
/// The checkout does not exist.
pub fn command(source: &Path) -> Result<String> {
    let tests = source.join("tests");
    let tests = tests.canonicalize().map_err(|e| Error::io(&tests, &e))?;
    let built = tests.with_file_name(BUILT);
    let variables = if built.join("python").is_dir() {
        let built = built.display();
        format!("export PYTHONPATH={built}/python LD_LIBRARY_PATH={built}/lib; ")
    } else {
        String::new()
    };
    Ok(format!(
        "{variables}cd {}; timeout 900 /usr/bin/python3 -B run_tests.py -v --dev $device --port 1 --gid 1 2>&1",
        tests.display()
    ))
}

/// Parses the output of `unittest -v`: `NAME (tests.MODULE.CLASS.NAME)`, with a description on the
/// next line if there is one, then ` ... ` and the result. Other output may be in between.
pub fn parse(said: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut current = None;
    for line in said.lines() {
        if let Some(place) =
            line.split_once(" (tests.").and_then(|(_, rest)| rest.split(')').next())
        {
            let mut parts = place.split('.');
            let module = parts.next().unwrap_or_default().to_owned();
            current = parts.next_back().map(|name| (module, name.to_owned()));
        }
        let outcome = match line.split_once("skipped ") {
            Some((_, why)) => Some(Outcome::Skipped(why.trim_matches(['\'', '"']).to_owned())),
            None if line.ends_with("ok") => Some(Outcome::Passed),
            None if line.ends_with("FAIL") || line.ends_with("ERROR") => Some(Outcome::Failed),
            None => None,
        };
        if let Some(outcome) = outcome
            && let Some(test) = current.take()
        {
            outcomes.insert(test, outcome);
        }
        if line.starts_with("=====") {
            break;
        }
    }
    outcomes.retain(|(module, _), _| !FOREIGN.iter().any(|foreign| module.starts_with(foreign)));
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "test_a (tests.test_addr.AHTest.test_a)
Test creating an AH ... ok
test_b (tests.test_addr.AHTest.test_b) ... something is printed
ok
test_c (tests.test_qp.QPTest.test_c) ... skipped 'Create QP type 8 is not supported'
test_d (tests.test_qp.QPTest.test_d)
Test ... FAIL
test_e (tests.test_mlx5_dr.Test.test_e) ... skipped 'no card'
======================================================================
FAIL: test_d (tests.test_qp.QPTest.test_d)
";

    #[test]
    fn each_test_has_its_end_and_those_of_cards_are_left_out() {
        let outcomes = parse(SAID);
        let of = |module: &str, name: &str| outcomes[&(module.into(), name.into())].clone();
        assert_eq!(outcomes.len(), 4);
        assert_eq!(of("test_addr", "test_a"), Outcome::Passed);
        assert_eq!(of("test_addr", "test_b"), Outcome::Passed);
        assert_eq!(
            of("test_qp", "test_c"),
            Outcome::Skipped("Create QP type 8 is not supported".into())
        );
        assert_eq!(of("test_qp", "test_d"), Outcome::Failed);
    }
}

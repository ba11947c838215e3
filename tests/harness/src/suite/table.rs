//! The results of a suite's tests, and the table of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It failed, or ended its process.
    Failed,
    /// It was skipped, for this reason.
    Skipped(String),
}

/// The results of tests, by module and name.
pub type Outcomes = BTreeMap<(String, String), Outcome>;

/// Returns the table of passed tests by module, with rxe and with a kernel.
/// A second table has the reasons why tests with rxe did not pass.
pub fn table(ours: &Outcomes, theirs: Option<(&str, &Outcomes)>) -> String {
    let passed = |outcomes: &Outcomes, module: Option<&str>| {
        let of = |test: &&String| module.is_none_or(|module| module == **test);
        let passed =
            outcomes.iter().filter(|((m, _), outcome)| of(&m) && **outcome == Outcome::Passed);
        passed.count()
    };
    // Returns the cell for the kernel, if there is a kernel.
    let cell = |of: &dyn Fn(&str, &Outcomes) -> String| {
        theirs.map_or_else(String::new, |(kernel, outcomes)| format!(" {} |", of(kernel, outcomes)))
    };
    let mut out = "| module | tests | pass with rxe |".to_owned();
    out += &cell(&|kernel, _| format!("pass with kernel {kernel}"));
    out += "\n| --- | --- | --- |";
    out += &cell(&|_, _| "---".into());
    out += "\n";
    let mut modules: Vec<&str> = ours.keys().map(|(module, _)| module.as_str()).collect();
    modules.dedup();
    for module in modules {
        let count = ours.keys().filter(|(m, _)| m == module).count();
        let b = cell(&|_, outcomes| passed(outcomes, Some(module)).to_string());
        let _ = writeln!(out, "| {module} | {count} | {} |{b}", passed(ours, Some(module)));
    }
    let b = cell(&|_, outcomes| passed(outcomes, None).to_string());
    let _ = writeln!(out, "| all | {} | {} |{b}\n", ours.len(), passed(ours, None));
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (test @ (_, name), outcome) in ours {
        match outcome {
            Outcome::Passed => {}
            Outcome::Failed => {
                let why = match theirs.map(|(_, outcomes)| outcomes.get(test)) {
                    None => "fails",
                    Some(Some(Outcome::Passed)) => "fails; with the kernel it passes",
                    Some(Some(Outcome::Failed)) => "fails; with the kernel it fails too",
                    Some(Some(Outcome::Skipped(_)) | None) => {
                        "fails; with the kernel it is not run"
                    }
                };
                let why = why.to_owned();
                reasons.entry(why).or_default().push(name);
            }
            Outcome::Skipped(why) => {
                reasons.entry(format!("skipped: {why}")).or_default().push(name);
            }
        }
    }
    if reasons.is_empty() {
        return out;
    }
    out += "| with rxe | tests |\n| --- | --- |\n";
    for (why, names) in reasons {
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(out, "| {why} | {} |", names.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_pass_are_counted_and_the_others_have_a_reason() {
        let outcome =
            |module: &str, name: &str, outcome| ((module.to_owned(), name.to_owned()), outcome);
        let outcomes = Outcomes::from([
            outcome("test_addr", "test_a", Outcome::Passed),
            outcome("test_addr", "test_b", Outcome::Passed),
            outcome("test_qp", "test_c", Outcome::Skipped("no".into())),
            outcome("test_qp", "test_d", Outcome::Failed),
        ]);
        let theirs = Outcomes::from([outcome("test_qp", "test_d", Outcome::Passed)]);
        let alone = table(&outcomes, None);
        assert!(alone.contains("| test_qp | 2 | 0 |\n| all | 4 | 2 |\n"), "{alone}");
        assert!(alone.contains("| fails | `test_d` |"), "{alone}");
        let table = table(&outcomes, Some(("7.2", &theirs)));
        assert!(
            table.contains(
                "| test_addr | 2 | 2 | 0 |\n| test_qp | 2 | 0 | 1 |\n| all | 4 | 2 | 1 |"
            )
        );
        assert!(table.contains("| fails; with the kernel it passes | `test_d` |"), "{table}");
        assert!(table.contains("| skipped: no | `test_c` |"), "{table}");
    }
}

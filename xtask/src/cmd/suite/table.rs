//! What became of the tests of a suite.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    Failed,
    Skipped(String),
}

/// Tests by module and name.
pub(super) type Ends = BTreeMap<(String, String), End>;

/// The tests of each module that passed, and why ours did not.
pub(super) fn table(ours: &Ends, theirs: &Ends, kernel: &str) -> String {
    let passed = |ends: &Ends, module: Option<&str>| {
        let of = |test: &&String| module.is_none_or(|module| module == **test);
        let passed = ends.iter().filter(|((m, _), end)| of(&m) && **end == End::Passed);
        passed.count()
    };
    let mut out = format!(
        "| module | tests | pass with rxe | pass with kernel {kernel} |\n| --- | --- | --- | --- |\n"
    );
    let mut modules: Vec<&str> = ours.keys().map(|(module, _)| module.as_str()).collect();
    modules.dedup();
    for module in modules {
        let count = ours.keys().filter(|(m, _)| m == module).count();
        let (a, b) = (passed(ours, Some(module)), passed(theirs, Some(module)));
        let _ = writeln!(out, "| {module} | {count} | {a} | {b} |");
    }
    let (a, b) = (passed(ours, None), passed(theirs, None));
    let _ = writeln!(out, "| all | {} | {a} | {b} |\n", ours.len());
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (test @ (_, name), end) in ours {
        match end {
            End::Passed => {}
            End::Failed => {
                let other = match theirs.get(test) {
                    Some(End::Passed) => "passes",
                    Some(End::Failed) => "fails too",
                    Some(End::Skipped(_)) | None => "is not run",
                };
                let why = format!("fails; with the kernel it {other}");
                reasons.entry(why).or_default().push(name);
            }
            End::Skipped(why) => {
                reasons.entry(format!("skipped: {why}")).or_default().push(name);
            }
        }
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
        let end = |module: &str, name: &str, end| ((module.to_owned(), name.to_owned()), end);
        let ends = Ends::from([
            end("test_addr", "test_a", End::Passed),
            end("test_addr", "test_b", End::Passed),
            end("test_qp", "test_c", End::Skipped("no".into())),
            end("test_qp", "test_d", End::Failed),
        ]);
        let theirs = Ends::from([end("test_qp", "test_d", End::Passed)]);
        let table = table(&ends, &theirs, "7.2");
        assert!(
            table.contains(
                "| test_addr | 2 | 2 | 0 |\n| test_qp | 2 | 0 | 1 |\n| all | 4 | 2 | 1 |"
            )
        );
        assert!(table.contains("| fails; with the kernel it passes | `test_d` |"), "{table}");
        assert!(table.contains("| skipped: no | `test_c` |"), "{table}");
    }
}

//! For tests: evaluates C expressions against a header that programs include, with the C compiler.

use std::process::Command;
use std::{env, fs, process};

use rxe_test_support::skipped;

/// Returns the values of C expressions.
/// If there is no C compiler, or the header is not installed, prints that the test is skipped and
/// returns `None`.
pub(crate) fn values_in_c(
    header: &str,
    expressions: impl IntoIterator<Item = String>,
) -> Option<Vec<usize>> {
    let mut code = format!("#include <{header}>\n#include <stdio.h>\nint main(void) {{\n");
    for expression in expressions {
        code += &format!("    printf(\"%zu\\n\", (size_t){expression});\n");
    }
    code += "    return 0;\n}\n";
    let name = header.replace('/', "-");
    let dir = env::temp_dir().join(format!("rxe-layout-{name}-{}", process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    fs::write(&source, code).unwrap();
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).output();
    let output = match compiled {
        Ok(out) if out.status.success() => Command::new(&program).output().unwrap(),
        Ok(out)
            if !String::from_utf8_lossy(&out.stderr).contains(&format!("{header}: No such")) =>
        {
            panic!("{}", String::from_utf8_lossy(&out.stderr))
        }
        _ => {
            skipped("the layouts", format_args!("no C compiler, or no {header}"));
            return None;
        }
    };
    fs::remove_dir_all(&dir).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    Some(said.lines().map(|line| line.parse().unwrap()).collect())
}

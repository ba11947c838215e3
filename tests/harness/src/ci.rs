//! The action for GitHub and the template for GitLab, read as the services read them. Their steps
//! are returned as a shell script.

use crate::vm::{Error, Result};
use saphyr::{LoadableYamlNode, Yaml};

/// A file with the steps of a composite action, or with the scripts of jobs.
pub struct File<'a>(Yaml<'a>);

/// The environment that a runner provides for steps and updates between them.
const RUNNER: &str = r#"
export RUNNER_TEMP="$PWD/runner" GITHUB_ENV="$PWD/runner/env" GITHUB_PATH="$PWD/runner/path"
mkdir -p "$RUNNER_TEMP"
: > "$GITHUB_ENV"; : > "$GITHUB_PATH"
between_steps() {
    while IFS= read -r line; do export "$line"; done < "$GITHUB_ENV"
    while IFS= read -r dir; do PATH=$dir:$PATH; done < "$GITHUB_PATH"
    : > "$GITHUB_ENV"; : > "$GITHUB_PATH"
}
"#;

impl<'a> File<'a> {
    /// Parses a YAML file.
    ///
    /// # Errors
    /// The text is not YAML, or is empty.
    pub fn read(text: &'a str) -> Result<Self> {
        let documents = Yaml::load_from_str(text).map_err(|e| Error::Failed(e.to_string()))?;
        let first = documents.into_iter().next();
        first.map(Self).ok_or_else(|| Error::Failed("an empty file".into()))
    }

    /// Returns the value at these keys; a number is an index in a list.
    pub fn get(&self, keys: &[&str]) -> Option<&Yaml<'a>> {
        keys.iter().try_fold(&self.0, |at, key| match key.parse() {
            Ok(number) => at.as_vec()?.get::<usize>(number),
            Err(_) => at.as_mapping_get(key),
        })
    }

    /// Returns the text at these keys.
    pub fn text(&self, keys: &[&str]) -> Option<&str> {
        self.get(keys)?.as_str()
    }

    /// Returns the keys of the mapping at these keys.
    pub fn names(&self, keys: &[&str]) -> Vec<String> {
        let mapping = self.get(keys).and_then(|at| at.as_mapping());
        let names = mapping.into_iter().flatten().filter_map(|(name, _)| name.as_str());
        names.map(str::to_owned).collect()
    }

    /// Returns the shell steps of a composite action with these inputs, and defaults for the
    /// others.
    ///
    /// # Errors
    /// A step has no shell, or names an input that the action does not have.
    pub fn steps(&self, inputs: &[(&str, &str)]) -> Result<String> {
        let wrong = |why: String| Error::Failed(format!("an action: {why}"));
        let steps = self.get(&["runs", "steps"]).and_then(|steps| steps.as_vec());
        let mut script = RUNNER.to_owned();
        for number in (0..steps.map_or(0, Vec::len)).map(|number| number.to_string()) {
            let step = |key| ["runs", "steps", &number, key];
            let Some(run) = self.text(&step("run")) else { continue };
            if self.text(&step("shell")) != Some("bash") {
                return Err(wrong(format!(
                    "its step {number} does not say that its shell is bash"
                )));
            }
            if run.contains("${{") {
                return Err(wrong(format!("its step {number} pastes an input into a script")));
            }
            let mut variables = String::new();
            for name in self.names(&step("env")) {
                let keys = [&step("env")[..], &[&name]].concat();
                let value = self.text(&keys).unwrap_or_default();
                let input = value.strip_prefix("${{ inputs.").and_then(|s| s.strip_suffix(" }}"));
                let input = input.ok_or_else(|| wrong(format!("{name} is {value}")))?;
                let default = self.text(&["inputs", input, "default"]);
                let given = inputs.iter().find(|(name, _)| *name == input).map(|(_, value)| *value);
                let value = given.or(default).ok_or_else(|| wrong(format!("no input {input}")))?;
                variables += &format!("{name}={} ", quoted(value));
            }
            // The command line with which a runner starts the shell.
            let shell = "bash --noprofile --norc -eo pipefail";
            let file = format!("\"$RUNNER_TEMP\"/step.{number}");
            let run = run.trim_end();
            script += &format!("cat > {file} <<'END OF STEP'\n{run}\nEND OF STEP\n");
            script += &format!("{variables}{shell} {file}\nbetween_steps\n");
        }
        Ok(script)
    }

    /// Returns the lines below `section` of a job, as one script.
    ///
    /// # Errors
    /// The section does not exist.
    pub fn lines(&self, job: &str, section: &str) -> Result<String> {
        let lines = self.get(&[job, section]).and_then(|lines| lines.as_vec());
        let lines = lines.ok_or_else(|| Error::Failed(format!("{job} has no {section}")))?;
        Ok(lines.iter().filter_map(|line| line.as_str()).collect::<Vec<_>>().join("\n"))
    }
}

/// Quotes a word for a shell.
pub fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

//! The checkout that this program was built from, and clones of it.

use crate::vm::{Error, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the root directory of the checkout.
pub fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::canonicalize(&root).map_err(|e| Error::Failed(format!("{}: {e}", root.display())))
}

/// Returns the full name of a commit.
pub fn commit(root: &Path, revision: &str) -> Result<String> {
    git(root, &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])
        .map_err(|_| Error::Failed(format!("{revision} is no directory and no revision of git")))
}

/// Clones `root` at `commit`, without uncommitted changes.
pub fn clone(root: &Path, clone: &Path, commit: &str) -> Result<()> {
    let (from, to) = (root.to_string_lossy(), clone.to_string_lossy());
    git(root, &["clone", "--quiet", "--no-checkout", &from, &to])?;
    git(clone, &["checkout", "--quiet", "--detach", commit]).map(drop)
}

/// Runs a git command and returns its output.
pub fn git(dir: &Path, args: &[&str]) -> Result<String> {
    // Root may test a checkout that belongs to another user.
    let safe = ["-c", "safe.directory=*", "-C"];
    let out = Command::new("git").args(safe).arg(dir).args(args).output();
    let out = out.map_err(|e| Error::Missing(format!("git: {e}")))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ");
    Err(Error::Failed(format!("git {}: {said}", args[0])))
}

/// Builds `packages` of a checkout in release mode, in the checkout's own target directory. Returns
/// the path of the first program.
pub fn build(checkout: &Path, packages: &[&str]) -> Result<PathBuf> {
    let place = checkout.display();
    let failed = |what: &str| Error::Failed(format!("cargo build in {place}: {what}"));
    let mut cargo = cargo();
    cargo.args(["build", "--release"]).args(packages).arg("--target-dir");
    cargo.arg(checkout.join("target")).current_dir(checkout);
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let out = cargo.output().map_err(|e| failed(&e.to_string()))?;
    if !out.status.success() {
        return Err(failed("see above"));
    }
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .find(|path| path.exists())
        .ok_or_else(|| failed("it made no program"))
}

/// Returns the cargo that runs this program, or the one in PATH.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_has_the_last_commit_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, copy) = (dir.path().join("root"), dir.path().join("copy"));
        fs::create_dir(&root).unwrap();
        if let Err(Error::Missing(why)) = git(&root, &["init", "--quiet"]) {
            return crate::skipped("checkout::clone", &why);
        }
        fs::write(root.join("kept"), "1").unwrap();
        git(&root, &["add", "kept"]).unwrap();
        let who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"];
        git(&root, &[&who[..], &["commit", "--quiet", "-m", "m"]].concat()).unwrap();
        fs::write(root.join("kept"), "2").unwrap();
        fs::write(root.join("new"), "").unwrap();
        clone(&root, &copy, &commit(&root, "HEAD").unwrap()).unwrap();
        assert_eq!(fs::read_to_string(copy.join("kept")).unwrap(), "1");
        assert!(!copy.join("new").exists());
        assert!(commit(&root, "no-such-branch").is_err());
    }
}

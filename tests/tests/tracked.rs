//! The files that git tracks.

use std::path::Path;
use std::process::Command;

/// Files that tests leave behind are ignored, so that they cannot be committed by accident.
#[test]
fn no_file_that_git_ignores_is_tracked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "ls-files", "--cached", "--ignored", "--exclude-standard"])
        .current_dir(root);
    match git.output() {
        Ok(out) if out.status.success() => {
            assert_eq!(String::from_utf8_lossy(&out.stdout), "");
        }
        _ => {
            rxe_harness::skipped("no_file_that_git_ignores_is_tracked", "not in a checkout of git")
        }
    }
}

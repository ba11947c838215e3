//! Checks the Dockerfiles of the documents without a container engine: the files that they copy
//! from the image of `rxe` are copied from its layer into a clean Debian, and used there. `RUN`
//! lines need a network and are skipped.

use super::image::name;
use super::roots::enter;
use super::systems::{System, unpacked};
use crate::vm::{Error, Result};
use std::path::Path;
use std::process::Command;

/// Debian 13, the base image of the Dockerfiles.
const FROM: (&str, &str) = ("debian:13", "trixie");

/// The test script: the last line of the Dockerfile, with a program that the system has.
const SCRIPT: &str = "cd /tmp; rxe run -- ibv_devices | grep rxe_lo; rxe demo > demo";

/// Returns the source and destination of each copy from the image in a page's Dockerfile.
///
/// # Errors
/// The page has no Dockerfile, or its Dockerfile has another base image or another version of
/// `rxe`.
fn copies(page: &str) -> Result<Vec<(String, String)>> {
    let wrong = |why: String| Error::Failed(format!("a Dockerfile in the documents: {why}"));
    let file = page.split("```dockerfile\n").nth(1).and_then(|rest| rest.split("```").next());
    let file = file.ok_or_else(|| wrong("there is none".into()))?;
    if !file.starts_with(&format!("FROM {}\n", FROM.0)) {
        return Err(wrong(format!("it does not begin with FROM {}", FROM.0)));
    }
    let from = format!("COPY --from={} ", name());
    let mut found = Vec::new();
    for line in file.lines().filter(|line| line.starts_with("COPY")) {
        let paths = line.strip_prefix(&from).and_then(|rest| rest.split_once(' '));
        let (source, to) = paths.ok_or_else(|| wrong(format!("not of {}: {line}", name())))?;
        found.push((source.to_owned(), to.to_owned()));
    }
    Ok(found)
}

/// Builds the system that the page's Dockerfile describes, and runs programs in it.
///
/// # Errors
/// As for [`check`](super::check), and if the page has no Dockerfile of this version.
pub fn check_dockerfile(page: &str, layer: &Path) -> Result<()> {
    let (image, root) = (unpacked(layer)?, unpacked(&System::USER.archive(FROM.1)?)?);
    let below = |root: &Path, path: &str| root.join(path.trim_start_matches('/'));
    for (source, to) in copies(page)? {
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(below(image.path(), &source)).arg(below(root.path(), &to));
        super::systems::succeed("cp", &mut copy)?;
    }
    enter("the Dockerfile's system", root.path(), layer.parent().unwrap_or(layer), SCRIPT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_with_a_dockerfile_copies_the_same_from_this_version() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let of = |page: &str| copies(&std::fs::read_to_string(root.join(page)).unwrap()).unwrap();
        let first = of("en/do/install.md");
        assert_eq!(first.len(), 2);
        for page in ["zh/do/install.md", "en/do/containers.md", "zh/do/containers.md"] {
            assert_eq!(of(page), first, "{page}");
        }
        assert!(copies("```dockerfile\nFROM debian:13\nCOPY --from=rxe:9.9.9 a b\n```").is_err());
        assert!(copies("```dockerfile\nFROM other\n```").is_err() && copies("").is_err());
    }
}

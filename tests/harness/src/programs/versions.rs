//! The versions of the Debian packages of the programs.

use std::process::Command;

/// Debian's packages with programs of the page.
const PACKAGES: [&str; 10] = [
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "qperf",
    "ucx-utils",
    "libfabric-bin",
    "openmpi-bin",
    "fio",
    "iperf",
    "netcat-traditional",
];

/// Returns a line with the versions of the installed packages; the VMs have the same. Returns
/// `None` on a machine without dpkg.
pub fn versions() -> Option<String> {
    let mut query = Command::new("dpkg-query");
    // dpkg-query fails if a package is not installed, but still prints the others.
    let out = query.args(["-W", "-f", "${db:Status-Abbrev}${Package} ${Version}\n"]).args(PACKAGES);
    line(&String::from_utf8_lossy(&out.output().ok()?.stdout))
}

/// Returns the line for the output of dpkg-query, which has a status, a package and its version in
/// each line.
fn line(printed: &str) -> Option<String> {
    let installed: Vec<&str> =
        printed.lines().filter_map(|line| line.strip_prefix("ii ")).map(str::trim).collect();
    let version = |package: &str| {
        installed.iter().find(|one| one.split(' ').next() == Some(package)).copied()
    };
    let all: Vec<&str> = PACKAGES.into_iter().filter_map(version).collect();
    (!all.is_empty()).then(|| format!("Versions of Debian's packages: {}\n", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_packages_are_named_with_their_versions() {
        let printed = "ii fio 3.33-3\nun iperf \nii ibverbs-utils 44.0-2\nrc qperf 0.4.11-3\n";
        let line = line(printed).unwrap();
        assert_eq!(line, "Versions of Debian's packages: ibverbs-utils 44.0-2, fio 3.33-3\n");
        assert_eq!(super::line("un iperf \n"), None);
    }

    #[test]
    fn the_tables_of_programs_stand_below_the_versions() {
        let page =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/en/reference/programs-tried.md");
        let page = std::fs::read_to_string(page).unwrap();
        for command in ["programs", "programs --backend packet", "programs --backend xdp"] {
            let begin = crate::pages::begin(command);
            let text = page.split_once(&begin).unwrap().1.trim_start();
            let line = text.lines().next().unwrap();
            assert!(line.starts_with("Versions of Debian's packages: ibverbs-utils "), "{line}");
        }
    }
}

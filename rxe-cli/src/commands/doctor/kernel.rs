//! The kernel's own RDMA devices. Kernel rxe has UDP port 4791 on all addresses of its interface's
//! network; siw uses TCP.

use std::fs;
use std::path::Path;

use rxe_verbs::device::DeviceInfo;

use super::finding::Finding;

const CHECK: &str = "kernel devices";

pub(super) fn check(offered: &[DeviceInfo]) -> Vec<Finding> {
    let netdevs: Vec<_> = offered.iter().map(|d| d.interface().name.as_str()).collect();
    findings(Path::new("/sys/class/infiniband"), &netdevs)
}

fn findings(class: &Path, netdevs: &[&str]) -> Vec<Finding> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut others = Vec::new();
    let mut found = Vec::new();
    for name in names {
        // Only kernel rxe has this file. It holds the interface's name.
        let parent = fs::read_to_string(class.join(&name).join("parent"));
        let parent = parent.unwrap_or_default();
        match parent.trim() {
            netdev if netdevs.contains(&netdev) => {
                let text = format!("kernel rxe {name} on {netdev} uses the same UDP port");
                let todo = format!("`sudo rdma link delete {name}`, or use another interface");
                found.push(Finding::note(CHECK, text, todo));
            }
            _ => others.push(name),
        }
    }
    if !others.is_empty() {
        let text = format!("{}: not shown to programs under `rxe run`", others.join(", "));
        found.push(Finding::ok(CHECK, text));
    } else if found.is_empty() {
        found.push(Finding::ok(CHECK, "none"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_rxe_on_the_same_interface_is_noted_and_others_are_not_in_the_way() {
        let class = tempfile::tempdir().unwrap();
        for (name, parent) in [("rxe0", Some("eth0\n")), ("rxe1", Some("eth1\n")), ("siw0", None)] {
            fs::create_dir(class.path().join(name)).unwrap();
            if let Some(parent) = parent {
                fs::write(class.path().join(name).join("parent"), parent).unwrap();
            }
        }
        let found = findings(class.path(), &["eth0", "lo"]);
        let texts: Vec<_> = found.iter().map(|f| f.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "kernel rxe rxe0 on eth0 uses the same UDP port",
                "rxe1, siw0: not shown to programs under `rxe run`"
            ]
        );
        assert_eq!(findings(&class.path().join("none"), &["eth0"])[0].text, "none");
    }
}

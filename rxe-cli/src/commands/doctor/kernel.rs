//! Checks the kernel's RDMA devices. Kernel `rdma_rxe` holds UDP port 4791 on all addresses; siw
//! uses TCP.

use std::fs;
use std::path::Path;

use super::finding::Finding;

const CHECK: &str = "kernel devices";

pub(super) fn check() -> Vec<Finding> {
    findings(Path::new("/sys/class/infiniband"), Path::new("/sys/module/rdma_rxe").exists())
}

/// Judges the devices in `class`. `module` says whether `rdma_rxe` is loaded.
fn findings(class: &Path, module: bool) -> Vec<Finding> {
    let entries = fs::read_dir(class).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    // Only devices of `rdma_rxe` have the file `parent`, which holds the interface's name.
    let (rxe, others): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| class.join(name).join("parent").exists());
    let mut found = Vec::new();
    let unload = "sudo modprobe -r rdma_rxe";
    if !rxe.is_empty() {
        let devices = rxe.join(", ");
        let text =
            format!("the kernel's rdma_rxe ({devices}) holds UDP port 4791 on all addresses");
        let delete: String =
            rxe.iter().map(|name| format!("sudo rdma link delete {name}; ")).collect();
        found.push(Finding::note(CHECK, text, format!("`{delete}{unload}`")));
    } else if module {
        let text = "the kernel's module rdma_rxe is loaded: many kernels hold UDP port 4791 \
                    then, also without a device";
        found.push(Finding::note(CHECK, text, format!("`{unload}`")));
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

    fn texts(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|f| f.text.as_str()).collect()
    }

    #[test]
    fn rdma_rxe_holds_the_port_and_other_devices_do_not() {
        let class = tempfile::tempdir().unwrap();
        for (name, parent) in [("rxe0", Some("eth0\n")), ("rxe1", Some("eth1\n")), ("siw0", None)] {
            fs::create_dir(class.path().join(name)).unwrap();
            if let Some(parent) = parent {
                fs::write(class.path().join(name).join("parent"), parent).unwrap();
            }
        }
        let found = findings(class.path(), true);
        assert_eq!(
            texts(&found),
            [
                "the kernel's rdma_rxe (rxe0, rxe1) holds UDP port 4791 on all addresses",
                "siw0: not shown to programs under `rxe run`"
            ]
        );
        assert_eq!(
            found[0].remedy.as_deref(),
            Some(
                "`sudo rdma link delete rxe0; sudo rdma link delete rxe1; sudo modprobe -r rdma_rxe`"
            )
        );
    }

    #[test]
    fn the_module_is_noted_also_without_a_device() {
        let none = Path::new("/nonexistent");
        let found = findings(none, true);
        assert!(found[0].text.contains("rdma_rxe is loaded"), "{:?}", texts(&found));
        assert_eq!(found[0].remedy.as_deref(), Some("`sudo modprobe -r rdma_rxe`"));
        assert_eq!(texts(&findings(none, false)), ["none"]);
    }
}

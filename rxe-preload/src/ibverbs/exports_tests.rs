use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::EXPORTS;

/// The functions whose arguments include no object of a device.
const OF_NO_OBJECT: [&str; 17] = [
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_sysfs_path",
    "ibv_read_sysfs_file",
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    "ibv_dontfork_range",
    "ibv_dofork_range",
    "ibv_import_device",
    "ibv_wc_status_str",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_event_type_str",
    "ibv_rate_to_mult",
    "mult_to_ibv_rate",
    "ibv_rate_to_mbps",
    "mbps_to_ibv_rate",
];

#[test]
fn the_owner_of_its_object_decides_on_every_function() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(crate_dir.join("symbols/libibverbs")).unwrap();
    let lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let public: BTreeSet<&str> = lines
        .filter_map(|words| match words[..] {
            // Functions that rdma-core's own libraries share, and functions for programs from
            // before 2007.
            ["#", ..] => None,
            [version, name, ..] if version.contains("PRIVATE") || name.contains("ibv_copy_") => {
                None
            }
            [_, _, "old", ..] => None,
            [_, name, ..] => Some(name),
            _ => None,
        })
        .chain(["ibv_query_gid_type"])
        .collect();
    let names: BTreeSet<&str> = EXPORTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, public);
    assert_eq!(names.len(), EXPORTS.len(), "each once");
    let without: BTreeSet<&str> =
        EXPORTS.iter().filter(|(_, of)| of.is_empty()).map(|(name, _)| *name).collect();
    assert_eq!(without, BTreeSet::from(OF_NO_OBJECT));
}

#[test]
fn no_function_of_libibverbs_is_exported_elsewhere() {
    fn sources(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 50);
    for path in found {
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut after = text.split("#[unsafe(no_mangle)]").skip(1);
        let ibv = after.any(|item| {
            let name = item.split_once("fn ").map_or("", |(_, name)| name);
            ["ibv_", "_ibv_", "mult_to_ibv", "mbps_to_ibv"]
                .iter()
                .any(|start| name.starts_with(start))
        });
        assert!(!ibv, "{}: belongs into the table of ibverbs/exports.rs", path.display());
    }
}

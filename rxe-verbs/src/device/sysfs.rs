//! Writes a tree with the sysfs and `/dev` files that kernel devices have. The preloaded library
//! redirects programs to the tree.
//!
//! The name of a tree is a hash of its contents, which never change. Programs that see the same
//! devices share a tree. If devices have changed, the library continues with another tree. It
//! supplies the present values of counters itself.

use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{io, process};

use super::links::runtime_dir;
use super::{DeviceInfo, Identity};
use crate::observe::PORT_COUNTERS;
use crate::os::random_u32;

/// Writes the tree for these devices and returns its path.
///
/// With `host`, the tree includes the host's own devices. `programs` are names and texts of
/// executable files, for [`programs`].
///
/// # Errors
/// Fails if the tree cannot be written.
pub fn tree(
    devices: &[DeviceInfo],
    identity: Option<Identity>,
    host: bool,
    programs: &[(&str, String)],
) -> io::Result<PathBuf> {
    let first = if host { DeviceInfo::FIRST_BESIDE_HOST } else { 0 };
    let mut files = files(devices, identity, first);
    if host {
        add_host(&mut files, Path::new("/"));
    }
    let programs = programs.iter();
    files.extend(programs.map(|(name, text)| (format!("{PROGRAMS}{name}"), text.clone())));
    write(&runtime_dir()?, &files)
}

/// Returns the directory of a tree whose programs precede those of the host in PATH.
pub fn programs(tree: &Path) -> PathBuf {
    tree.join(PROGRAMS)
}

/// Returns whether a path belongs to a tree, and not to a directory that the user has made.
pub fn is_tree(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TREE))
}

/// The directory of executable files.
const PROGRAMS: &str = "bin/";

/// Paths and texts of files.
type Files = Vec<(String, String)>;

/// The directory of character devices. Programs only check that such a file is a character device
/// that they may open; only the verbs library reads or writes it.
const CHARACTER_DEVICES: &str = "dev/infiniband/";

/// The prefix of a text that stands for a symbolic link; the target follows.
const LINK: &str = "-> ";

fn write(root: &Path, files: &Files) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let done = root.join(format!("{TREE}{:016x}", hasher.finish()));
    remove_old(root);
    if done.is_dir() {
        // The tree is in use again, so its age restarts. If the time cannot be set, the tree is
        // removed earlier and then written again.
        let _ = File::open(&done).and_then(|dir| dir.set_modified(SystemTime::now()));
        return Ok(done);
    }
    let new = root.join(format!("{NEW}{}-{:08x}", process::id(), random_u32().unwrap_or(0)));
    // Programs of other users may read the tree, if they may enter `root`.
    DirBuilder::new().mode(0o755).create(&new)?;
    for (name, text) in files {
        let path = new.join(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        if let Some(target) = text.strip_prefix(LINK) {
            symlink(target.trim_end(), path)?;
        } else if name.starts_with(CHARACTER_DEVICES) {
            symlink("/dev/null", path)?;
        } else {
            fs::write(&path, text)?;
            if name.starts_with(PROGRAMS) {
                fs::set_permissions(path, Permissions::from_mode(0o755))?;
            }
        }
    }
    fs::rename(&new, &done).or_else(|e| {
        let _ = fs::remove_dir_all(&new);
        // Another process may have written the tree meanwhile.
        if done.is_dir() { Ok(()) } else { Err(e) }
    })?;
    Ok(done)
}

/// The prefix of the names of trees.
const TREE: &str = "sys-";

/// The prefix of the names of trees that are being written. An old one was left by a process that
/// was killed.
const NEW: &str = "new-";

/// How long a tree is kept after the last program was started with it. Programs read the tree when
/// they start.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Removes old trees, including those that killed processes have left.
fn remove_old(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_tree = [TREE, NEW].iter().any(|start| name.to_string_lossy().starts_with(start));
        let modified = entry.metadata().and_then(|meta| meta.modified());
        let age = modified.ok().and_then(|then| then.elapsed().ok());
        if is_tree && age.is_some_and(|age| age > KEPT) {
            // Another process may remove the same tree, so errors are ignored.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Adds links to the files of the host's own devices, unless one of our devices has the name.
fn add_host(files: &mut Files, root: &Path) {
    let classes = fs::read_dir(root.join("sys/class")).into_iter().flatten().flatten();
    let classes = classes
        .filter_map(|class| class.file_name().into_string().ok())
        .filter(|class| class.starts_with("infiniband"))
        .map(|class| (format!("sys/class/{class}"), format!("class/{class}")));
    for (from, to) in classes.chain([("dev/infiniband".into(), "dev/infiniband".into())]) {
        for entry in fs::read_dir(root.join(from)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{to}/{name}");
            let is_there = |known: &str| {
                known
                    .strip_prefix(&*path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            // The link leads to the final target, because programs resolve links.
            let Ok(target) = entry.path().canonicalize() else { continue };
            if !files.iter().any(|(known, _)| is_there(known)) {
                files.push((path, format!("{LINK}{}\n", target.display())));
            }
        }
    }
}

/// Returns the files of these devices. `first` is the number of the first device.
fn files(devices: &[DeviceInfo], identity: Option<Identity>, first: usize) -> Files {
    let mut files = Files::new();
    let mut file = |path: String, text: String| files.push((path, text + "\n"));
    file("class/infiniband_verbs/abi_version".into(), "6".into());
    for (number, device) in devices.iter().enumerate() {
        let (own, netdev) = (device.name(), &device.interface().name);
        let verbs = first + number;
        let name = &identity.map_or_else(|| own.to_owned(), |identity| identity.device(number));
        let (attr, port) = (device.attr(), device.port_attr());
        file(format!("{CHARACTER_DEVICES}uverbs{verbs}"), String::new());
        // 231 and 192 are the kernel's IB_UVERBS_MAJOR and IB_UVERBS_BASE_MINOR.
        let minor = 192 + verbs;
        let verbs = format!("class/infiniband_verbs/uverbs{verbs}");
        file(format!("{verbs}/ibdev"), name.clone());
        file(format!("{verbs}/abi_version"), "2".into());
        file(format!("{verbs}/dev"), format!("231:{minor}"));
        let base = format!("class/infiniband/{name}");
        file(format!("{base}/node_type"), "1: CA".into());
        file(format!("{base}/node_guid"), attr.node_guid.to_string());
        file(format!("{base}/sys_image_guid"), attr.sys_image_guid.to_string());
        file(format!("{base}/node_desc"), name.clone());
        file(format!("{base}/fw_ver"), attr.fw_ver.into());
        file(format!("{base}/parent"), netdev.clone());
        let mut place = format!("{base}/device");
        if let Some(identity) = identity {
            file(format!("names/{name}"), own.into());
            let address = identity.pci_address(number);
            let bus = format!("devices/pci{}:00", Identity::PCI_DOMAIN);
            file(place, format!("{LINK}../../../{bus}/{address}"));
            file(format!("bus/pci/devices/{address}"), format!("{LINK}../../../{bus}/{address}"));
            place = format!("{bus}/{address}");
            file(format!("{place}/infiniband/{name}"), format!("{LINK}../../../../{base}"));
            let (vendor, id) = identity.pci_ids();
            for (attribute, text) in [
                ("vendor", format!("{vendor:#06x}")),
                ("device", format!("{id:#06x}")),
                ("class", "0x020000".into()),
                ("numa_node", "-1".into()),
                ("uevent", format!("DRIVER={}_core\nPCI_SLOT_NAME={address}", identity.name())),
            ] {
                file(format!("{place}/{attribute}"), text);
            }
        }
        let net = format!("{place}/net/{netdev}");
        file(format!("{net}/ifindex"), device.interface().index.to_string());
        file(format!("{net}/dev_id"), "0x0".into());
        file(format!("{net}/dev_port"), "0".into());
        file(format!("{net}/mtu"), device.interface().mtu.to_string());
        let base = format!("{base}/ports/{}", DeviceInfo::PORT);
        let (state, phys) = (port.state.to_string(), port.phys_state.to_string());
        let state = state.trim_start_matches("PORT_");
        let phys = match phys.as_str() {
            "LINK_UP" => "LinkUp",
            "POLLING" => "Polling",
            _ => "Disabled",
        };
        file(format!("{base}/state"), format!("{}: {state}", port.state as u8));
        file(format!("{base}/phys_state"), format!("{}: {phys}", port.phys_state as u8));
        file(format!("{base}/link_layer"), "Ethernet".into());
        file(format!("{base}/rate"), "2.5 Gb/sec (1X SDR)".into());
        file(format!("{base}/cap_mask"), format!("0x{:08x}", port.port_cap_flags));
        file(format!("{base}/lid"), format!("0x{:x}", port.lid));
        file(format!("{base}/lid_mask_count"), port.lmc.to_string());
        file(format!("{base}/sm_lid"), format!("0x{:x}", port.sm_lid));
        file(format!("{base}/sm_sl"), port.sm_sl.to_string());
        file(format!("{base}/pkeys/0"), "0xffff".into());
        // Programs that read a counter get the present value from the library.
        for (directory, counter) in PORT_COUNTERS {
            file(format!("{base}/{directory}/{counter}"), "0".into());
        }
        file(format!("{base}/hw_counters/lifespan"), "10".into());
        for (index, entry) in device.gids().iter().enumerate().filter(|(_, e)| !e.gid.is_zero()) {
            file(format!("{base}/gids/{index}"), entry.gid.to_string());
            file(format!("{base}/gid_attrs/types/{index}"), "RoCE v2".into());
            file(format!("{base}/gid_attrs/ndevs/{index}"), netdev.clone());
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_written_once_and_shared() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let files = vec![("a/b".to_owned(), "text\n".to_owned())];
        let first = write(root, &files).unwrap();
        assert_eq!(fs::read_to_string(first.join("a/b")).unwrap(), "text\n");
        assert_eq!(write(root, &files).unwrap(), first);
        let other = write(root, &vec![("a/b".to_owned(), "other\n".to_owned())]).unwrap();
        assert_ne!(other, first);
        let long_ago = SystemTime::now() - KEPT - Duration::from_secs(60);
        for tree in [&first, &other] {
            File::open(tree).unwrap().set_modified(long_ago).unwrap();
        }
        assert!(write(root, &files).unwrap().is_dir(), "what is used is there");
        assert!(!other.exists(), "what nobody used for long is removed");
        let own = fs::metadata(&first).unwrap().permissions().mode();
        assert_eq!(own & 0o055, 0o055, "others may read it");
        let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(names.eq([first.file_name().unwrap()]), "nothing else is left");
    }

    #[test]
    fn what_a_killed_process_left_is_not_in_the_way_and_goes_later() {
        let root = tempfile::tempdir().unwrap();
        let files = vec![("a/link".to_owned(), format!("{LINK}/dev/null\n"))];
        // Left by a process that had this process's ID.
        let left = root.path().join(format!("new-{}", process::id()));
        fs::create_dir_all(left.join("a")).unwrap();
        symlink("/dev/null", left.join("a/link")).unwrap();
        write(root.path(), &files).unwrap();
        assert!(left.exists(), "it may be of a process that still writes it");
        let long_ago = SystemTime::now() - KEPT - Duration::from_secs(60);
        File::open(&left).unwrap().set_modified(long_ago).unwrap();
        write(root.path(), &files).unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn devices_of_the_host_are_links_beside_ours() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let real = root.join("sys/devices/infiniband");
        for dir in ["rxe0", "mlx5_0"] {
            fs::create_dir_all(real.join(dir)).unwrap();
        }
        for class in ["infiniband", "infiniband_mad", "net"] {
            fs::create_dir_all(root.join("sys/class").join(class)).unwrap();
            symlink(real.join("mlx5_0"), root.join("sys/class").join(class).join("mlx5_0"))
                .unwrap();
        }
        symlink(real.join("rxe0"), root.join("sys/class/infiniband/rxe0")).unwrap();
        let ours = ("class/infiniband/rxe0/node_type".to_owned(), "1: CA\n".to_owned());
        let mut files = vec![ours.clone()];
        add_host(&mut files, &root);
        files.sort();
        let link = format!("{LINK}{}\n", real.join("mlx5_0").display());
        let at = |class: &str| (format!("class/{class}/mlx5_0"), link.clone());
        assert_eq!(files, [at("infiniband"), ours, at("infiniband_mad")]);
    }
}

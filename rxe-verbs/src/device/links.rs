//! The names that a user gives to devices, as `rdma link add NAME type rxe netdev NETDEV` does for
//! kernel devices.
//!
//! The names are kept in a small file for each user and network namespace, among the user's runtime
//! files. They are lost with these files: at the end of the session or when the host restarts.
//!
//! An endpoint with addresses of its own (`rxe link add NAME type rxe l2 LINK …`) is kept in the
//! same file, with its configuration. It is defined nowhere else.
//!
//! Invariants: a name stands for one endpoint, or for one interface, which is identified by its
//! number, so that the name survives a renaming of the interface. An interface has at most one
//! name. The file is replaced as a whole, by one process at a time.

mod error;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{env, process};

use rustix::fs::{Access, FlockOperation, access, flock};
use rustix::process::geteuid;
use rxe_net::{Interface, L2Config};

pub use self::error::LinkError;
use super::endpoints::EndpointLink;

/// Names the device on the interface `netdev`.
///
/// # Errors
/// Fails with a [`LinkError`] that says what to do instead.
pub fn add(name: &str, netdev: &str) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.add(name, netdev, &interfaces)
    })
}

/// Adds an endpoint with addresses of its own as a device with this name.
///
/// # Errors
/// Fails with a [`LinkError`] that says what to do instead.
pub fn add_endpoint(name: &str, config: L2Config) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.add_endpoint(name, config, &interfaces)
    })
}

/// Removes a name or an endpoint. A device on an interface is then called `rxe_NETDEV` again.
///
/// # Errors
/// Fails with a [`LinkError`] if the name was not added.
pub fn delete(name: &str) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.delete(name, &interfaces)
    })
}

/// Returns the directory for this user's runtime files, which only this user can write to.
///
/// The directory is created if necessary: below XDG_RUNTIME_DIR, below the directory for temporary
/// files, or in shared memory if the file system is read-only.
///
/// # Errors
/// Fails if the directory cannot be created or belongs to another user.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let given = env::var_os("XDG_RUNTIME_DIR");
    let mut first = None;
    for dir in runtime_paths(given) {
        match private_dir(dir) {
            Ok(dir) => return Ok(dir),
            Err(e) => first = first.or(Some(e)),
        }
    }
    let first = first.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    let todo = "set XDG_RUNTIME_DIR to a directory of your own";
    Err(io::Error::new(first.kind(), format!("{first}: {todo}")))
}

/// Creates a directory that only this user can write to, unless it exists.
fn private_dir(dir: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(named(&dir, &e)),
        _ => {}
    }
    // In a directory that everyone can write to, another user may have created it first.
    let why = match fs::symlink_metadata(&dir) {
        Ok(meta) if !meta.is_dir() => "it is not a directory",
        Ok(meta) if meta.uid() != geteuid().as_raw() => "it belongs to another user",
        // The directory may exist on a file system that has since become read-only.
        Ok(_) => match access(&dir, Access::WRITE_OK) {
            Ok(()) => return Ok(dir),
            Err(e) => return Err(named(&dir, &e.into())),
        },
        Err(e) => return Err(named(&dir, &e)),
    };
    Err(named(&dir, &io::Error::other(why)))
}

/// The names and endpoints of this network namespace.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The names, by the number of the interface.
    names: BTreeMap<u32, String>,
    endpoints: Vec<EndpointLink>,
}

impl Links {
    /// Reads the present names and endpoints. If they cannot be read, there are none.
    pub(super) fn read() -> Self {
        let Ok(number) = Interface::namespace() else { return Self::default() };
        // This is the directory that `runtime_dir` finds or would create. A file of another user is
        // ignored, because that user would choose the names.
        let dir = runtime_paths(env::var_os("XDG_RUNTIME_DIR")).into_iter().find(|dir| is_own(dir));
        let path = dir.map(|dir| dir.join(file_name(number)));
        let Some(path) = path.filter(|path| is_own(path)) else { return Self::default() };
        let mut links = Self::read_from(&path);
        links.endpoints.iter_mut().for_each(|endpoint| endpoint.lock_beside(&path));
        links
    }

    /// Parses the file: each line is an interface's number and a name, or an endpoint.
    pub(super) fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (index, name) = line.split_once(' ')?;
            check_name(name).ok()?;
            Some((index.parse().ok()?, name.to_owned()))
        };
        let names = text.lines().filter_map(line).collect();
        let endpoints = text.lines().filter_map(EndpointLink::parse);
        let endpoints = endpoints.filter(|e| check_name(&e.name).is_ok()).collect();
        Self { names, endpoints }
    }

    /// Returns the endpoints with addresses of their own.
    pub(super) fn endpoints(&self) -> &[EndpointLink] {
        &self.endpoints
    }

    /// Returns the name given to the device on the interface with this number.
    pub(super) fn name_of(&self, index: u32) -> Option<&str> {
        self.names.get(&index).map(String::as_str)
    }

    /// Returns whether this name was given to a device or an endpoint.
    pub(super) fn has(&self, name: &str) -> bool {
        self.index_of(name).is_some() || self.endpoint(name).is_some()
    }

    fn endpoint(&self, name: &str) -> Option<&EndpointLink> {
        self.endpoints.iter().find(|e| e.name == name)
    }

    fn read_from(path: &Path) -> Self {
        rxe_sys::may_block("reading a file");
        fs::read_to_string(path).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn index_of(&self, name: &str) -> Option<u32> {
        self.names.iter().find(|(_, n)| *n == name).map(|(index, _)| *index)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (index, name) in &self.names {
            let _ = writeln!(text, "{index} {name}");
        }
        for endpoint in &self.endpoints {
            let _ = writeln!(text, "{endpoint}");
        }
        text
    }

    /// Removes the names of interfaces that no longer exist.
    fn forget_all_but(&mut self, interfaces: &[Interface]) {
        self.names.retain(|index, _| interfaces.iter().any(|i| i.index == *index));
    }

    fn add(&mut self, name: &str, netdev: &str, all: &[Interface]) -> Result<(), LinkError> {
        check_name(name).map_err(|why| LinkError::Name { name: name.into(), why })?;
        let Some(interface) = all.iter().find(|i| i.name == netdev) else {
            let interfaces = all.iter().map(|i| i.name.clone()).collect();
            return Err(LinkError::NoInterface { netdev: netdev.into(), interfaces });
        };
        self.check_free(name, all, Some(interface))?;
        if let Some(has) = self.name_of(interface.index) {
            return Err(LinkError::HasName { netdev: netdev.into(), name: has.into() });
        }
        if interface.addresses.is_empty() {
            return Err(LinkError::NoAddress { netdev: netdev.into() });
        }
        self.names.insert(interface.index, name.into());
        Ok(())
    }

    fn add_endpoint(
        &mut self,
        name: &str,
        config: L2Config,
        all: &[Interface],
    ) -> Result<(), LinkError> {
        check_name(name).map_err(|why| LinkError::Name { name: name.into(), why })?;
        self.check_free(name, all, None)?;
        let index = EndpointLink::free_index(&self.endpoints);
        self.endpoints.push(EndpointLink { name: name.into(), index, config });
        Ok(())
    }

    /// Fails if a device has this name, unless it is the device on the interface `except`.
    fn check_free(
        &self,
        name: &str,
        all: &[Interface],
        except: Option<&Interface>,
    ) -> Result<(), LinkError> {
        let taken = |by: &str, given| LinkError::Taken { name: name.into(), by: by.into(), given };
        if let Some(endpoint) = self.endpoint(name) {
            return Err(taken(&endpoint.config.link.to_string(), true));
        }
        if let Some(index) = self.index_of(name) {
            let by = all.iter().find(|i| i.index == index).map_or("", |i| &i.name);
            return Err(taken(by, true));
        }
        for other in all.iter().filter(|i| except.is_none_or(|e| i.index != e.index)) {
            if other.name == name || default_name(&other.name) == name {
                return Err(taken(&other.name, false));
            }
        }
        Ok(())
    }

    fn delete(&mut self, name: &str, all: &[Interface]) -> Result<(), LinkError> {
        if let Some(index) = self.index_of(name) {
            self.names.remove(&index);
            return Ok(());
        }
        if self.endpoint(name).is_some() {
            self.endpoints.retain(|e| e.name != name);
            return Ok(());
        }
        match all.iter().find(|i| default_name(&i.name) == name && !i.addresses.is_empty()) {
            Some(interface) if self.name_of(interface.index).is_none() => {
                let netdev = interface.name.clone();
                Err(LinkError::NotGiven { name: name.into(), netdev })
            }
            _ => {
                let endpoints = self.endpoints.iter().map(|e| e.name.clone());
                let links = self.names.values().cloned().chain(endpoints).collect();
                Err(LinkError::NoSuch { name: name.into(), links })
            }
        }
    }
}

/// Changes the file of names, unless `f` fails.
fn change(f: impl FnOnce(&mut Links) -> Result<(), LinkError>) -> Result<(), LinkError> {
    let number = Interface::namespace().map_err(LinkError::os("tell network namespaces apart"))?;
    let keep = || LinkError::os("keep the names of links");
    let dir = runtime_dir().map_err(keep())?;
    rxe_sys::may_block("writing a file");
    let lock = File::create(dir.join("links.lock")).map_err(keep())?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| keep()(e.into()))?;
    let path = dir.join(file_name(number));
    let mut links = Links::read_from(&path);
    f(&mut links)?;
    replace(&path, &links.text()).map_err(keep())
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    if text.is_empty() {
        return match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
    }
    let new = path.with_extension(format!("new-{}", process::id()));
    fs::write(&new, text)?;
    fs::rename(new, path)
}

/// Returns the name of the file. It includes the boot ID, because namespace numbers restart at each
/// boot and `/tmp` may survive it.
fn file_name(namespace: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.split('-').next().unwrap_or_default();
    format!("links-{boot}-{namespace}")
}

/// Returns the possible paths of the directory, the best one first. `given` is XDG_RUNTIME_DIR.
/// After `su` or `sudo` it may belong to the previous user, and files of this user would remain
/// there. A program with more rights than its user ignores the environment.
fn runtime_paths(given: Option<OsString>) -> Vec<PathBuf> {
    let own = format!("rxe-{}", geteuid().as_raw());
    if rxe_sys::has_gained_rights() {
        return vec![Path::new("/tmp").join(&own), Path::new("/dev/shm").join(&own)];
    }
    match given.map(PathBuf::from).filter(|dir| dir.is_dir() && is_own(dir)) {
        Some(dir) => vec![dir.join("rxe")],
        None => vec![env::temp_dir().join(&own), Path::new("/dev/shm").join(&own)],
    }
}

fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == geteuid().as_raw())
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Checks that the kernel would accept the name, and that it is unambiguous in lists of devices and
/// paths.
fn check_name(name: &str) -> Result<(), &'static str> {
    /// IB_DEVICE_NAME_MAX, in bytes, including the terminating zero.
    const NAME_CAPACITY: usize = 64;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() {
        Err("it is empty")
    } else if name.len() >= NAME_CAPACITY {
        Err("it has more than 63 characters")
    } else if !name.chars().all(fits) {
        Err("it may have letters, digits, '_', '-' and '.'")
    } else if name.starts_with(['-', '.']) {
        Err("it begins with '-' or '.'")
    } else if name.chars().all(|c| c.is_ascii_digit()) {
        Err("it is a number")
    } else {
        Ok(())
    }
}

pub(super) const PREFIX: &str = "rxe_";

/// Returns the name of an interface's device to which no name was given.
pub(super) fn default_name(netdev: &str) -> String {
    format!("{PREFIX}{netdev}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_net::{Address, MacAddr, Scope};

    fn interface(index: u32, name: &str) -> Interface {
        Interface {
            name: name.into(),
            index,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: 1500,
            up: true,
            running: true,
            loopback: false,
            addresses: vec![Address {
                ip: "10.0.0.1".parse().unwrap(),
                prefix_len: 24,
                scope: Scope::Global,
                tentative: false,
                duplicate: false,
            }],
        }
    }

    fn host() -> Vec<Interface> {
        let bare = Interface { addresses: Vec::new(), ..interface(4, "eth2") };
        vec![interface(2, "eth0"), interface(3, "eth1"), bare]
    }

    #[test]
    fn names_are_given_and_taken_away() {
        let mut links = Links::default();
        links.add("rxe0", "eth0", &host()).unwrap();
        links.add("rxe_eth1", "eth1", &host()).unwrap();
        assert_eq!(links.text(), "2 rxe0\n3 rxe_eth1\n");
        let mut links = Links::parse(&links.text());
        assert_eq!(links.name_of(2), Some("rxe0"));
        links.delete("rxe0", &host()).unwrap();
        assert_eq!(links.text(), "3 rxe_eth1\n");
    }

    #[test]
    fn endpoints_are_kept_beside_names() {
        let config = |text: &str| L2Config::from_words(text.split(' ')).unwrap();
        let mut links = Links::parse("2 rxe0\n");
        links.add_endpoint("vm0", config("qemu:/tmp/a address 10.0.0.2/24"), &host()).unwrap();
        links.add_endpoint("vm1", config("qemu:/tmp/b dhcp"), &host()).unwrap();
        let again = Links::parse(&links.text());
        assert_eq!(again.endpoints(), links.endpoints());
        let [a, b] = again.endpoints() else { panic!("two endpoints: {again:?}") };
        assert!(a.name == "vm0" && b.name == "vm1" && a.index != b.index, "{again:?}");
        let mut links = again;
        let mut refused = |name: &str| {
            links.add_endpoint(name, config("qemu:/tmp/c"), &host()).unwrap_err().to_string()
        };
        assert!(refused("vm0").starts_with("vm0 exists already, on qemu:/tmp/a: choose"));
        assert!(refused("rxe0").starts_with("rxe0 exists already, on eth0: choose"));
        assert!(refused("rxe_eth1").starts_with("rxe_eth1 is a name of eth1"));
        assert!(refused("a/b").contains("cannot be a device's name"));
        assert!(links.add("vm0", "eth1", &host()).is_err());
        links.forget_all_but(&host());
        links.delete("vm0", &host()).unwrap();
        assert_eq!(links.endpoints().len(), 1);
        links.delete("vm1", &host()).unwrap();
        assert_eq!(links.text(), "2 rxe0\n");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_do() {
        let mut links = Links::parse("2 rxe0\n");
        let mut add = |name, netdev| links.add(name, netdev, &host()).unwrap_err().to_string();
        let delete = "`rxe link delete rxe0` first";
        let again = format!("rxe0 exists already, on eth0: choose another name, or {delete}");
        assert_eq!(add("rxe0", "eth1"), again);
        assert_eq!(add("rxe0", "eth0"), again);
        assert_eq!(add("rxe1", "eth0"), format!("eth0 has the device rxe0: {delete}"));
        assert_eq!(add("rxe_eth0", "eth1"), "rxe_eth0 is a name of eth0: choose another name");
        assert_eq!(add("eth0", "eth1"), "eth0 is a name of eth0: choose another name");
        assert_eq!(add("rxe1", "eth7"), "no interface \"eth7\": use eth0, eth1 or eth2");
        assert!(add("rxe1", "eth2").contains("`ip address add ADDRESS/LENGTH dev eth2`"));
        let mut delete = |name| links.delete(name, &host()).unwrap_err().to_string();
        assert_eq!(delete("rxe5"), "no link \"rxe5\": those added are rxe0");
        assert!(delete("rxe_eth1").starts_with("rxe_eth1 was not added: "));
    }

    #[test]
    fn a_name_is_one_that_every_list_and_path_can_hold() {
        let long = "x".repeat(63);
        for name in ["rxe0", "rxe_eth0.5", "a-b", &long] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let longer = "x".repeat(64);
        for name in ["", "7", "a b", "a/b", "a,b", "a:1", "rxe%d", "..", "-d", "ü", &longer] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_name_of_an_interface_that_is_gone_is_free() {
        let mut links = Links::parse("2 rxe0\n9 rxe9\nnonsense\n5 ../x\n");
        links.forget_all_but(&host());
        assert_eq!(links.text(), "2 rxe0\n");
        links.add("rxe9", "eth1", &host()).unwrap();
    }

    #[test]
    fn a_runtime_directory_of_another_user_is_left_alone() {
        let own = env::temp_dir().join(format!("rxe-runtime-{}", process::id()));
        fs::create_dir_all(&own).unwrap();
        assert_eq!(runtime_paths(Some(own.clone().into())), [own.join("rxe")]);
        let not = |dir: &Path| {
            let paths = runtime_paths(Some(dir.into()));
            assert!(
                paths.len() == 2 && !paths.iter().any(|path| path.starts_with(dir)),
                "{paths:?}"
            );
        };
        if geteuid().is_root() {
            if std::os::unix::fs::chown(&own, Some(1), None).is_ok() {
                not(&own);
            }
        } else {
            not(Path::new("/"));
        }
        not(Path::new("/nonexistent"));
        fs::remove_dir_all(own).unwrap();
    }
}

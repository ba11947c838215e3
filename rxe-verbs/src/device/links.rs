//! The names that a user gives to devices, as `rdma link add NAME type rxe netdev NETDEV` gives them
//! to a kernel's.
//!
//! They are kept in one small file for each user and network namespace, among the runtime files of
//! the user, and are gone when these are: with the session, or when the system restarts.
//!
//! An endpoint with addresses of its own (`rxe link add NAME type rxe l2 LINK …`) is in the same file,
//! with its configuration: it is a device only there.
//!
//! Invariants: a name stands for one interface, known by its number, so that it keeps the name when
//! it is itself renamed, or for one endpoint; an interface has one name at most. The file is replaced whole, by one at a
//! time.

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

/// Gives the device on the interface `netdev` the name `name`.
///
/// # Errors
/// [`LinkError`], which says what to do instead.
pub fn add(name: &str, netdev: &str) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.add(name, netdev, &interfaces)
    })
}

/// Makes a device `name` of an endpoint with addresses of its own.
///
/// # Errors
/// [`LinkError`], which says what to do instead.
pub fn add_endpoint(name: &str, config: L2Config) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.add_endpoint(name, config, &interfaces)
    })
}

/// Takes the name `name` away again: its device has the name `rxe_NETDEV` then.
///
/// # Errors
/// [`LinkError`]: nobody has given this name.
pub fn delete(name: &str) -> Result<(), LinkError> {
    let interfaces = Interface::list().map_err(LinkError::os("list the interfaces"))?;
    change(|links| {
        links.forget_all_but(&interfaces);
        links.delete(name, &interfaces)
    })
}

/// The directory for this user's runtime files, which nobody else can write to. It is made if need
/// be: below XDG_RUNTIME_DIR, for temporary files, or in shared memory where the file system is
/// read-only.
///
/// # Errors
/// It cannot be made, or belongs to another user.
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

/// Makes a directory that only this user can write to, unless it is there.
fn private_dir(dir: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(named(&dir, &e)),
        _ => {}
    }
    // In a directory for everybody somebody else may have been first.
    let why = match fs::symlink_metadata(&dir) {
        Ok(meta) if !meta.is_dir() => "it is not a directory",
        Ok(meta) if meta.uid() != geteuid().as_raw() => "it belongs to another user",
        // It may be there, on a file system that has become read-only since.
        Ok(_) => match access(&dir, Access::WRITE_OK) {
            Ok(()) => return Ok(dir),
            Err(e) => return Err(named(&dir, &e.into())),
        },
        Err(e) => return Err(named(&dir, &e)),
    };
    Err(named(&dir, &io::Error::other(why)))
}

/// The names given in this network namespace.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// By the number of the interface.
    names: BTreeMap<u32, String>,
    endpoints: Vec<EndpointLink>,
}

impl Links {
    /// As they are now. None where they cannot be read.
    pub(super) fn read() -> Self {
        let Ok(number) = Interface::namespace() else { return Self::default() };
        // The directory that `runtime_dir` finds or would make. Names from another user's file would
        // be that user's choice.
        let dir = runtime_paths(env::var_os("XDG_RUNTIME_DIR")).into_iter().find(|dir| is_own(dir));
        let path = dir.map(|dir| dir.join(file_name(number)));
        let Some(path) = path.filter(|path| is_own(path)) else { return Self::default() };
        let mut links = Self::read_from(&path);
        links.endpoints.iter_mut().for_each(|endpoint| endpoint.lock_beside(&path));
        links
    }

    /// A line for each: the interface's number, and the name; or an endpoint.
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

    /// The endpoints with addresses of their own.
    pub(super) fn endpoints(&self) -> &[EndpointLink] {
        &self.endpoints
    }

    /// The name of the device on the interface of this number, if it was given one.
    pub(super) fn name_of(&self, index: u32) -> Option<&str> {
        self.names.get(&index).map(String::as_str)
    }

    /// Whether this name was given.
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

    /// Names of interfaces that are gone are free again.
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

    /// Fails if a device has this name, unless it is that of the interface `except`.
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

/// Changes the file, unless `f` fails.
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

/// Numbers of namespaces begin anew when the system does, and `/tmp` may stay.
fn file_name(namespace: u64) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.split('-').next().unwrap_or_default();
    format!("links-{boot}-{namespace}")
}

/// Where the directory may be, the best place first. `given` is XDG_RUNTIME_DIR, which may still be
/// that of the user before `su` or `sudo`: what this user made there would stay there. In a program
/// with more rights than its user, no variable counts.
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

/// What a kernel takes, less what lists of devices and paths could not tell apart.
fn check_name(name: &str) -> Result<(), &'static str> {
    /// IB_DEVICE_NAME_MAX, with the zero at the end.
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

/// What the device of an interface is called that nobody has given a name to.
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

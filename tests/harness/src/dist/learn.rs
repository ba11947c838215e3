//! Runs the pages of Learn, in their order, on a clean system. The reader has installed only the
//! `.deb`. Packages that a page names are installed as the page says, and every command is run by
//! an unprivileged user.

use super::roots::namespaces_for;
use super::systems::{Rust, System, succeed, unpacked};
use crate::book::{self, Block};
use crate::vm::{Error, Result};
use std::fs;
use std::path::Path;

/// The words with which a page tells its reader to install packages.
const INSTALL: &str = "sudo apt-get install ";

/// Enters the root `$1` and runs `$5` there. `$2` is the packages' directory; `$3` and `$4`, if
/// given, are Rust and its registry. The reader's machine has an interface with the usual MTU.
const ENTER: &str = r#"
    ip link set lo up
    ip link add eth0 type veth peer name far
    echo 1 > /proc/sys/net/ipv6/conf/far/disable_ipv6
    ip address add 10.9.0.1/24 dev eth0
    ip link set eth0 up; ip link set far up
    mkdir -p "$1/packages" "$1/rust" "$1/home/reader/.cargo/registry"
    mount --bind "$2" "$1/packages"
    if [ -n "$3" ]; then
        mount --bind "$3" "$1/rust"
        mount --bind "$4" "$1/home/reader/.cargo/registry"
        mount -o remount,bind,ro "$1/home/reader/.cargo/registry"
    fi
    mount --rbind /dev "$1/dev"
    mount -t tmpfs none "$1/dev/shm"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    exec chroot "$1" /usr/bin/env -i HOME=/home/reader LC_ALL=C.UTF-8 COLUMNS=80 \
        DEBIAN_FRONTEND=noninteractive CARGO_NET_OFFLINE=true \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/rust/bin sh -c "$5"
"#;

/// The script before the commands of the pages. The user has no privileges, unless this machine's
/// user has none to drop.
const READER: &str = r#"
    apt-get install --yes /packages/rxe_*.deb > /tmp/said 2>&1 || { cat /tmp/said; exit 1; }
    echo 'APT::Get::Assume-Yes "true";' > /etc/apt/apt.conf.d/90yes
    printf '#!/bin/sh\nexec "$@"\n' > /usr/local/bin/sudo
    chmod 755 /usr/local/bin/sudo
    echo 'reader:x:1000:1000::/home/reader:/bin/sh' >> /etc/passwd
    mkdir /home/reader/here
    chown 1000:1000 /home/reader /home/reader/here /home/reader/.cargo
    user='setpriv --reuid=1000 --regid=1000 --clear-groups'
    $user true 2> /dev/null || user=
    cd /home/reader/here
    listeners() { cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A ' || true; }
"#;

/// The commands of the pages of Learn, and their expected outputs.
pub struct Learn {
    /// The name and the blocks of each page.
    pages: Vec<(String, Vec<Block>)>,
}

impl Learn {
    /// Reads the pages of a checkout.
    ///
    /// # Errors
    /// A page cannot be read.
    pub fn read(checkout: &Path) -> Result<Self> {
        let dir = checkout.join("docs/en/learn");
        let failed = |e: std::io::Error| Error::Failed(format!("{}: {e}", dir.display()));
        let mut pages = Vec::new();
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pages.push((name, book::blocks(&fs::read_to_string(&path).map_err(failed)?)));
        }
        // File names begin with the number of the step.
        let step = |name: &str| name.split_once('-').and_then(|(step, _)| step.parse::<u32>().ok());
        pages.sort_by_key(|(name, _)| step(name));
        Ok(Self { pages })
    }

    /// Returns the packages that the pages tell their reader to install.
    pub fn packages(&self) -> Vec<&str> {
        let blocks = self.pages.iter().flat_map(|(_, blocks)| blocks);
        let lines = blocks.filter(|block| block.says("install")).flat_map(|b| b.text.lines());
        lines
            .filter_map(|line| line.strip_prefix(INSTALL))
            .flat_map(str::split_whitespace)
            .collect()
    }

    /// Returns the blocks of all pages. The page with a program in Rust is included only if `rust`.
    fn blocks(&self, rust: bool) -> Vec<Block> {
        let needs_rust = |blocks: &[Block]| {
            blocks.iter().any(|b| b.value("run").is_some() && b.text.contains("cargo "))
        };
        let pages = self.pages.iter().filter(|(_, blocks)| rust || !needs_rust(blocks));
        pages.flat_map(|(_, blocks)| blocks).cloned().collect()
    }
}

/// Installs the package in `packages` on a clean `release` and follows the pages there. The page
/// with a program in Rust is skipped without `rust`.
///
/// # Errors
/// As for [`super::check`]; also [`Error::Failed`] with the differences between a page and the
/// output.
pub fn check_learn(
    release: &str,
    packages: &Path,
    learn: &Learn,
    rust: Option<&Rust<'_>>,
) -> Result<()> {
    let system = System { name: "learn", packages: &[], later: &learn.packages() };
    let root = unpacked(&system.archive(release)?)?;
    if let Some(rust) = rust {
        (rust.clone)(&root.path().join("home/reader/rxe"))?;
    }
    let blocks = learn.blocks(rust.is_some());
    let script = format!("{READER}\n{}", book::script(&blocks, Some("$user")));
    let mut enter = namespaces_for("2400");
    enter.args(["sh", "-ec", ENTER, "sh"]).arg(root.path()).arg(packages);
    let none = Path::new("");
    enter.arg(rust.map_or(none, |rust| &rust.toolchain));
    enter.arg(rust.map_or(none, |rust| &rust.registry)).arg(script);
    let printed = succeed(&format!("{release}, Learn"), &mut enter)?;
    match book::wrong(&blocks, true, &printed) {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(Error::Failed(format!("{release}, Learn:\n{wrong}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_first_page_of_the_book_names_the_packages_of_all_steps() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let learn = Learn::read(&checkout).unwrap();
        assert_eq!(learn.pages.len(), 14);
        assert!(learn.pages[0].0.starts_with("0-") && learn.pages[13].0.starts_with("13-"));
        let steps: BTreeSet<_> = learn.packages().into_iter().collect();
        let first = fs::read_to_string(checkout.join("docs/en/README.md")).unwrap();
        let line = first.lines().find_map(|line| line.strip_prefix(INSTALL)).unwrap();
        assert_eq!(steps, line.split_whitespace().collect());
    }

    #[test]
    fn the_page_with_a_program_in_rust_needs_rust() {
        let learn = Learn::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
        let uses = |rust| learn.blocks(rust).iter().any(|b| b.text.contains("hello-rust"));
        assert!(uses(true) && !uses(false));
        assert!(learn.blocks(false).len() > 50, "{}", learn.blocks(false).len());
    }
}

//! The processors that packages are made for.

use std::path::Path;
use std::process::Command;

/// A processor, by the names that tools have for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// As on the command line, and as Rust and qemu name it.
    pub name: &'static str,
    /// Debian's name, which is also that of container images.
    pub debian: &'static str,
    /// The target of Rust.
    pub target: &'static str,
    /// The directory of its libraries, and what cross compilers begin with.
    pub triplet: &'static str,
    /// The loader, where programs expect it.
    pub loader: &'static str,
    /// The machine that QEMU emulates, and what Linux calls its serial port.
    pub machine: &'static str,
    /// See `machine`.
    pub console: &'static str,
}

/// All of them.
pub static ALL: [Arch; 2] = [
    Arch {
        name: "x86_64",
        debian: "amd64",
        target: "x86_64-unknown-linux-gnu",
        triplet: "x86_64-linux-gnu",
        loader: "lib64/ld-linux-x86-64.so.2",
        machine: "q35",
        console: "ttyS0",
    },
    Arch {
        name: "aarch64",
        debian: "arm64",
        target: "aarch64-unknown-linux-gnu",
        triplet: "aarch64-linux-gnu",
        loader: "lib/ld-linux-aarch64.so.1",
        machine: "virt",
        console: "ttyAMA0",
    },
];

impl Arch {
    /// The one with this name.
    ///
    /// # Errors
    /// What there is.
    pub fn of_name(name: &str) -> Result<&'static Self, String> {
        let found = ALL.iter().find(|arch| arch.name == name);
        found.ok_or_else(|| ALL.iter().map(|arch| arch.name).collect::<Vec<_>>().join(" or "))
    }

    /// That of this machine.
    ///
    /// # Errors
    /// There are no packages for it: what there is.
    pub fn own() -> Result<&'static Self, String> {
        Self::of_name(std::env::consts::ARCH)
    }

    /// Whether it is this machine's.
    pub fn is_own(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    /// A program of the compiler's kind, such as `gcc` or `objcopy`.
    pub(super) fn tool(&self, name: &str) -> String {
        match self.is_own() {
            true => name.to_owned(),
            false => format!("{}-{name}", self.triplet),
        }
    }

    /// The C compiler.
    pub fn compiler(&self) -> String {
        if self.is_own() { "cc".to_owned() } else { self.tool("gcc") }
    }

    /// The variable by which cargo is told of this target's `what`, such as `LINKER`.
    pub fn variable(&self, what: &str) -> String {
        format!("CARGO_TARGET_{}_{what}", self.target.to_uppercase().replace('-', "_"))
    }

    /// What runs a program of this processor with the libraries below `root`: qemu-user, on a machine of
    /// another.
    pub fn command(&self, program: &Path, root: Option<&Path>) -> Command {
        if self.is_own() {
            return Command::new(program);
        }
        let mut qemu = Command::new(format!("qemu-{}", self.name));
        if let Some(root) = root {
            qemu.arg("-L").arg(root);
        }
        qemu.arg(program);
        qemu
    }

    /// Debian's packages that make and run its programs here.
    pub fn packages(&self) -> String {
        match self.is_own() {
            true => "gcc".to_owned(),
            false => format!("gcc-{} qemu-user", self.triplet),
        }
    }
}

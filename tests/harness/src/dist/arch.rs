//! The processor architectures that packages are built for.

use std::path::Path;
use std::process::Command;

/// A processor architecture, with its names in various tools.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// The name on the command line, in Rust and in QEMU.
    pub name: &'static str,
    /// The name in Debian and in container images.
    pub debian: &'static str,
    /// The Rust target.
    pub target: &'static str,
    /// The multiarch directory of libraries, and the prefix of cross compilers.
    pub triplet: &'static str,
    /// The path of the dynamic loader.
    pub loader: &'static str,
    /// The machine that QEMU emulates.
    pub machine: &'static str,
    /// The name of that machine's serial port in Linux.
    pub console: &'static str,
}

/// All architectures.
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
    /// Returns the architecture with this name.
    ///
    /// # Errors
    /// The names of all architectures, if there is none with this name.
    pub fn of_name(name: &str) -> Result<&'static Self, String> {
        let found = ALL.iter().find(|arch| arch.name == name);
        found.ok_or_else(|| ALL.iter().map(|arch| arch.name).collect::<Vec<_>>().join(" or "))
    }

    /// Returns the architecture of this machine.
    ///
    /// # Errors
    /// The names of all architectures, if there are no packages for this machine.
    pub fn own() -> Result<&'static Self, String> {
        Self::of_name(std::env::consts::ARCH)
    }

    /// Returns whether this is the architecture of this machine.
    pub fn is_own(&self) -> bool {
        self.name == std::env::consts::ARCH
    }

    /// Returns the name of a compiler tool, such as `gcc` or `objcopy`.
    pub(super) fn tool(&self, name: &str) -> String {
        match self.is_own() {
            true => name.to_owned(),
            false => format!("{}-{name}", self.triplet),
        }
    }

    /// Returns the name of the C compiler.
    pub fn compiler(&self) -> String {
        if self.is_own() { "cc".to_owned() } else { self.tool("gcc") }
    }

    /// Returns the variable that sets `what`, such as `LINKER`, of this target for cargo.
    pub fn variable(&self, what: &str) -> String {
        format!("CARGO_TARGET_{}_{what}", self.target.to_uppercase().replace('-', "_"))
    }

    /// Returns a command that runs a program of this architecture. On a machine of another
    /// architecture it uses qemu-user with the libraries below `root`.
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

    /// Returns the Debian packages that build and run programs of this architecture here.
    pub fn packages(&self) -> String {
        match self.is_own() {
            true => "gcc".to_owned(),
            false => format!("gcc-{} qemu-user", self.triplet),
        }
    }
}

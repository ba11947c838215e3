//! `cargo xtask dist` and `cargo xtask install`: the packages for users without a checkout.
//!
//! [`build`] compiles, [`files`] collects all installed files in one [`Tree`], and the archive, the
//! Debian package, the wheel and the image are built from that tree. Their contents depend neither
//! on the time nor on the directory of the build.

pub mod arch;
mod build;
mod deb;
mod dockerfile;
mod documents;
mod elf;
mod files;
mod image;
mod learn;
mod licences;
mod machine;
mod roots;
mod sysroot;
mod systems;
mod tree;
mod wheel;

pub use arch::Arch;
pub use build::{Build, build};
pub use deb::{DEBUG, Package, RXE, package};
pub use dockerfile::check_dockerfile;
pub use elf::{glibc, split};
pub use files::files;
pub use image::{digest, image, layer_of};
pub use learn::{Learn, check_learn};
pub use licences::licences;
pub use machine::check_machine;
pub use roots::{blocks, check, check_image, check_source, checkout_commands, commands};
pub use sysroot::{GLIBC, sysroot};
pub use systems::{RELEASES, RUST_ON, Rust};
pub use tree::{Tree, gzip};
pub use wheel::wheel;

/// The version of all crates of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

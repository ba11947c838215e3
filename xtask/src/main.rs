//! `cargo xtask …`: the project's development tasks.

mod cmd;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run a command in a VM with a real kernel's rxe0, on a link to its own network namespace
    Kernel(cmd::kernel::Args),
    /// Measure bandwidth, latency and message rate compared with others, and write
    /// docs/en/project/performance.md
    Bench(rxe_bench::Args),
    /// Play the cases of `rxe conform` with real kernels, and write docs/en/reference/conformance-report.md
    Conform(cmd::conform::Args),
    /// Install the Debian packages that the outer tests need, or say what to install
    Deps(cmd::deps::Args),
    /// Make the archive, the Debian package and the container image of this commit
    Dist(cmd::dist::Args),
    /// Build the book, in English and Chinese, as web pages in target/book
    Docs(cmd::docs::Args),
    /// Build rxe and install it for this user, or below another directory
    Install(cmd::install::Args),
    /// Create the captures in pcaps/ again: two kernels, one capture for each operation or fault
    Pcaps(cmd::pcaps::Args),
    /// Show what works between our engine and real kernels, and write docs/en/reference/interop.md
    Interop(cmd::interop::Args),
    /// Show which modules of a crate use which, and check them against the layers
    Layers(cmd::layers::Args),
    /// Create versioned libraries next to rxe, for programs that load libibverbs by themselves
    Libs(cmd::libs::Args),
    /// Show which unmodified programs run, with themselves and with real kernels, and write
    /// docs/en/reference/programs-tried.md
    Programs(cmd::programs::Args),
    /// Run the tests of unsafe and concurrent code under AddressSanitizer, ThreadSanitizer,
    /// valgrind and loom
    Sanitize(cmd::sanitize::Args),
    /// Run a third-party test suite with our devices and with a kernel's, and write
    /// docs/en/reference/programs-tried.md
    Suite(cmd::suite::Args),
    /// Run everything: formatting, lints, unit tests, and the outer tests with real kernels
    Test(cmd::test::Args),
    /// Build the laboratory's page for browsers in target/web
    Web(cmd::web::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().chore {
        Chore::Kernel(args) => cmd::kernel::run(&args),
        Chore::Bench(args) => rxe_bench::run(&args),
        Chore::Conform(args) => cmd::conform::run(&args),
        Chore::Deps(args) => cmd::deps::run(&args),
        Chore::Dist(args) => cmd::dist::run(&args),
        Chore::Docs(args) => cmd::docs::run(&args),
        Chore::Install(args) => cmd::install::run(&args),
        Chore::Pcaps(args) => cmd::pcaps::run(&args),
        Chore::Interop(args) => cmd::interop::run(&args),
        Chore::Layers(args) => cmd::layers::run(&args),
        Chore::Libs(args) => cmd::libs::run(&args),
        Chore::Programs(args) => cmd::programs::run(&args),
        Chore::Sanitize(args) => cmd::sanitize::run(&args),
        Chore::Suite(args) => cmd::suite::run(&args),
        Chore::Test(args) => cmd::test::run(&args),
        Chore::Web(args) => cmd::web::run(&args),
    };
    done.unwrap_or_else(|why| {
        eprintln!("xtask: {why}");
        ExitCode::FAILURE
    })
}

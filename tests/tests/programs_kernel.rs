//! Unmodified programs with the preloaded library: the rows of
//! `docs/en/reference/programs-tried.md`. They run between two of our processes, and with a real
//! kernel's `rdma_rxe` in both roles. `cargo xtask programs` writes the page. Each row with a
//! kernel is run once, with the kernel's roles alternating between the two kernels. `cargo xtask
//! test --all` runs each row with both kernels, also the rows that take an emulated VM long, and
//! those with both sides ours, which other tests run with fewer options.

mod common;

use std::env;

use rxe_harness::programs::{self, Options, Which};
use rxe_harness::{everything, or_skip};

#[test]
fn kernel_6_1() {
    every_program("6.1", Which::Even, Which::All);
}

#[test]
fn kernel_7_2() {
    every_program("7.2", Which::Odd, Which::WithKernel);
}

/// Runs the rows `which`, or `all` with `--all`.
fn every_program(kernel: &str, which: Which, all: Which) {
    let options = Options {
        filter: env::var("RXE_PROGRAMS_FILTER").ok(),
        which: if everything() { all } else { which },
        backend: None,
        rxe: common::rxe().into(),
        verbose: true,
    };
    let Some(rows) = or_skip(programs::run(kernel, &options)) else { return };
    let failed: Vec<String> = rows
        .iter()
        .filter_map(|r| Some(format!("{}, {}: {}", r.what, r.sides.name(), r.failed.as_ref()?)))
        .collect();
    assert!(failed.is_empty(), "kernel {kernel}:\n{}", failed.join("\n"));
    assert!(!rows.is_empty() || options.filter.is_some());
}

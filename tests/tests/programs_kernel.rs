//! Unmodified programs over the preloaded library, with themselves and with the same programs on a
//! real kernel's rdma_rxe in both roles: every row of `docs/programs.md`, which
//! `cargo xtask programs` writes.

mod common;

use std::env;

use xtask::or_skip;
use xtask::programs::{self, Options};

#[test]
fn kernel_6_1() {
    every_program("6.1");
}

#[test]
fn kernel_7_2() {
    every_program("7.2");
}

fn every_program(kernel: &str) {
    let options = Options {
        filter: env::var("RXE_PROGRAMS_FILTER").ok(),
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

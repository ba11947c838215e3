//! This engine and real kernels, each as requester and as responder: every cell of
//! `docs/en/reference/interop.md`.
//!
//! Each kernel has one test and one VM. With --all, each backend runs every cell in both roles with
//! all kernels. Otherwise a combination of backend and role is run completely with one kernel only,
//! and a few of its cells with the other:
//!
//! | | our engine asks | the kernel asks |
//! | --- | --- | --- |
//! | udp | whole with 6.1 | whole with 7.2 |
//! | packet | whole with 7.2 | whole with 6.1 |
//! | xdp | a few cells with 7.2 | a few cells with 7.2 |
//! | if | a few cells with 7.2 | a few cells with 7.2 |
//! | guest | a few cells with 6.1 and 7.2 | |
//!
//! `cargo xtask interop` runs every cell; `--filter` selects cells.

mod common;

use std::env;

use rxe_harness::interop::{self, Backend, Options, Requester};
use rxe_harness::{everything, or_skip, skipped};

#[test]
fn kernel_5_10() {
    if everything() {
        play_host("5.10");
    } else {
        skipped("kernel_5_10", "only with --all");
    }
}

#[test]
fn kernel_6_1() {
    play_host("6.1");
}

#[test]
fn kernel_6_12() {
    if everything() {
        play_host("6.12");
    } else {
        skipped("kernel_6_12", "only with --all");
    }
}

#[test]
fn kernel_7_2() {
    play_host("7.2");
}

/// An endpoint with addresses of its own at the other end of QEMU's socket.
#[test]
fn kernel_6_1_without_namespaces() {
    // Each kind of operation, and the cells that depend on the link.
    let cells = "/SEND/1025$,/WRITE/65536$,/READ/65536$,/CAS/8$,/mtu/4096$,ours/ipv6$,kernel/ipv6$";
    play("6.1", &[Backend::L2], Some(cells.into()));
}

fn play_host(kernel: &str) {
    let mut backends = Vec::from(Backend::OF_HOST);
    if kernel == "7.2" {
        backends.extend([Backend::Interface, Backend::Pnet]);
    }
    if !everything() && kernel != "7.2" {
        backends.retain(|backend| *backend != Backend::Xdp);
    }
    if interop::KERNELS.contains(&kernel) {
        // This must be the last backend: it removes the kernel's device.
        backends.push(Backend::Guest);
    }
    play(kernel, &backends, env::var("RXE_INTEROP_FILTER").ok());
}

fn play(kernel: &str, backends: &[Backend], filter: Option<String>) {
    let options = Options {
        backends: backends.into(),
        brief: if everything() { Vec::new() } else { interop::brief(kernel) },
        requesters: Requester::BOTH.into(),
        filter,
        verbose: true,
        capture: None,
        peer: env!("CARGO_BIN_EXE_rxe-peer").into(),
        rxe: common::rxe().into(),
    };
    let Some(report) = or_skip(interop::run(kernel, &options)) else { return };
    for row in report.skipped() {
        skipped(&format!("kernel {kernel}"), &row.to_string());
    }
    let failed: Vec<String> = report.failed().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "kernel {}:\n{}", report.release, failed.join("\n"));
    assert!(!report.rows.is_empty() || options.filter.is_some());
}

//! The rows of libfabric and qperf in the table of [`programs`](crate::programs): their ends meet
//! over TCP, and then choose devices and connect by themselves.

use super::side::{Ends, both, meet};
use super::world::{Row, Sides, TIMEOUT, World, installed};
use crate::skipped;
use crate::vm::Result;
use std::time::{Duration, Instant};

/// A program and its client's options, in which `ADDRESS` stands for the server's address.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) options: &'static str,
}

const fn fabric(options: &'static str) -> Program {
    Program { name: FABRIC, options }
}

const fn qperf(options: &'static str) -> Program {
    Program { name: QPERF, options }
}

const FABRIC: &str = "fi_pingpong";
const QPERF: &str = "qperf";

/// fi_pingpong sends messages of up to 1 MiB and compares every byte. qperf runs several tests, but
/// none of UC and UD: for these it does not use rdma_cm and names peers by LID, which RoCE devices
/// of a kernel refuse, as ours do.
pub(super) const ALL: &[Program] = &[
    fabric("-p verbs -e msg -c -I 20 ADDRESS"),
    fabric("-p verbs -e rdm -c -I 20 ADDRESS"),
    fabric("-p verbs -e dgram -c -I 20 ADDRESS"),
    qperf("ADDRESS -cm1 -t 1 rc_bw rc_bi_bw rc_lat"),
    qperf("ADDRESS -cm1 -t 1 rc_rdma_read_bw rc_rdma_read_lat"),
    qperf("ADDRESS -cm1 -t 1 rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat"),
    qperf("ADDRESS -cm1 -t 1 rc_compare_swap_mr rc_fetch_add_mr"),
    qperf("ADDRESS -cm1 -t 1 ver_rc_compare_swap ver_rc_fetch_add"),
];

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) {
    for program in ALL {
        let what = program.what();
        if !installed(program.name) {
            skipped(&what, &format!("{} is not installed", program.name));
            continue;
        }
        for sides in Sides::ALL {
            let play = || match program.name {
                FABRIC => pingpong(world, program, sides),
                _ => measure(world, program, sides),
            };
            world.row(what.clone(), sides, play, rows);
        }
    }
}

impl Program {
    fn what(&self) -> String {
        format!("{} {}", self.name, self.options)
    }

    /// Returns the arguments of `env`.
    fn line(&self) -> String {
        format!("{SETTINGS} {}", self.what())
    }
}

/// The rdm endpoint of libfabric 1.17 has a bug at its end: if it learns that the peer has left
/// before it has read the last completions, it reports them as flushed, or posts a receive to a
/// closed connection. If both ends have completed all sizes, this result is reported and counts as
/// a success.
fn pingpong(world: &World<'_>, program: &Program, sides: Sides) -> Result<()> {
    let result = pingpong_once(world, program, sides);
    let Err(e) = &result else { return result };
    if !program.options.contains("-e rdm") || !is_known_end(&e.to_string()) {
        return result;
    }
    eprintln!("{}: all sizes passed; then libfabric met its own fault", program.what());
    Ok(())
}

/// Returns whether both ends have completed the largest size, and one of them shows the bug.
fn is_known_end(said: &str) -> bool {
    let faults = ["terminated with signal 11", "Work Request Flushed Error"];
    said.matches("| 1m ").count() == 2 && faults.iter().any(|fault| said.contains(fault))
}

fn pingpong_once(world: &World<'_>, program: &Program, sides: Sides) -> Result<()> {
    let ends = Ends::of(world, sides);
    let server = ends.serve(program.line().trim_end_matches("ADDRESS"))?;
    meet(world, server, 47592, || ends.ask(&program.line()))
}

/// Runs qperf, whose server runs until it is killed.
fn measure(world: &World<'_>, program: &Program, sides: Sides) -> Result<()> {
    let ends = Ends::of(world, sides);
    let mut server = ends.serve(QPERF)?;
    world.listening(19765, &mut server)?;
    let mut client = (false, String::new());
    // The server tells its client the port before it listens there, so a fast client is refused.
    let end = Instant::now() + TIMEOUT;
    for _ in 0..20 {
        client = ends.ask(&program.line())?.end_with(&mut server, TIMEOUT)?;
        if !client.1.contains("Event rejected") || Instant::now() > end {
            break;
        }
    }
    let quit = ends.ask(&format!("{QPERF} ADDRESS quit"))?.end(TIMEOUT)?;
    let left = if quit.0 { TIMEOUT } else { Duration::ZERO };
    both(server.end(left)?, client)
}

/// The settings of libfabric. By default it requests a completion queue with more entries than
/// kernel `rdma_rxe` allows, and tries all of its providers.
const SETTINGS: &str = "FI_UNIVERSE_SIZE=8 FI_PROVIDER=verbs,ofi_rxm";

#[cfg(test)]
mod tests {
    use super::is_known_end;

    #[test]
    fn only_an_end_after_all_sizes_is_known() {
        let whole = "bytes #sent | 64 20 =20 | 1m 20 =20 |";
        let fault = "cq_readerr: Work Request Flushed Error";
        assert!(is_known_end(&format!("server: {whole} {fault} ; client: {whole}")));
        assert!(!is_known_end(&format!("server: {whole} {fault} ; client: bytes | 64 20 =20 |")));
        assert!(!is_known_end(&format!("server: {whole} ; client: {whole}")));
    }
}

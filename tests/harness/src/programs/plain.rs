//! Programs whose arguments are the server's address and a GID index: the pingpongs, perftest, the
//! tutorials.

use super::side::meet;
use super::watch::KERNEL;
use super::world::{ACK_TIMEOUT, Row, Running, Sides, World};
use crate::c::TUTORIALS;
use crate::vm::Result;

/// A program and its options.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) options: &'static str,
    peer: Peer,
}

/// The kernels with whose devices a program is run.
#[derive(Clone, Copy)]
enum Peer {
    /// All kernels.
    Any,
    /// Kernels whose `rdma_rxe` supports on-demand paging.
    OnDemand,
    /// No kernel, usually because kernel `rdma_rxe` does not support the operation.
    Ours,
}

impl Peer {
    fn may_be(self, kernel: &str) -> bool {
        let major = kernel.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match self {
            Self::Any => true,
            Self::OnDemand => major.is_some_and(|major| major >= 7),
            Self::Ours => false,
        }
    }
}

const fn with(name: &'static str, options: &'static str) -> Program {
    Program { name, options, peer: Peer::Any }
}

const fn on_demand(name: &'static str, options: &'static str) -> Program {
    Program { name, options, peer: Peer::OnDemand }
}

const fn ours(name: &'static str, options: &'static str) -> Program {
    Program { name, options, peer: Peer::Ours }
}

pub(super) const ALL: &[Program] = &[
    with("ibv_rc_pingpong", "-n 200 -c"),
    with("ibv_rc_pingpong", "-n 200 -c -e"),
    ours("ibv_rc_pingpong", "-n 200 -c -t"),
    on_demand("ibv_rc_pingpong", "-n 200 -c -o -P"),
    // Kernel `rdma_rxe` does not support implicit regions.
    ours("ibv_rc_pingpong", "-n 200 -c -O -P"),
    with("ibv_uc_pingpong", "-n 200"),
    with("ibv_uc_pingpong", "-n 200 -e"),
    with("ibv_ud_pingpong", "-n 200 -s 1024"),
    with("ibv_ud_pingpong", "-n 200 -s 1024 -e"),
    with("ibv_srq_pingpong", "-n 200"),
    with("ibv_srq_pingpong", "-n 200 -e"),
    ours("ibv_xsrq_pingpong", "-n 200"),
    ours("ib_send_bw", "-n 100 -c XRC"),
    ours("ib_send_lat", "-n 100 -c XRC"),
    ours("ib_write_bw", "-n 100 -c XRC"),
    ours("ib_write_lat", "-n 100 -c XRC"),
    ours("ib_read_bw", "-n 100 -c XRC"),
    ours("ib_read_lat", "-n 100 -c XRC"),
    ours("ib_atomic_bw", "-n 100 -c XRC"),
    ours("ib_atomic_lat", "-n 100 -c XRC"),
    ours("ib_write_bw", "-n 100 -c XRC -q 8"),
    with("ib_send_bw", "-n 100"),
    with("ib_send_bw", "-n 100 -s 1024 -c UC -r 200"),
    with("ib_send_bw", "-n 100 -c UD -r 200"),
    with("ib_send_bw", "-n 100 -b"),
    with("ib_send_bw", "-n 100 -e"),
    with("ib_send_bw", "-n 100 --use-srq"),
    with("ib_send_bw", "-n 100 -q 8"),
    with("ib_send_bw", "-D 2"),
    on_demand("ib_send_bw", "-n 100 --odp"),
    with("ib_send_lat", "-n 100"),
    // It hangs with a 7.2 kernel, and also between two 7.2 kernels.
    ours("ib_send_lat", "-n 100 -e"),
    with("ib_send_lat", "-n 100 -I 64 -s 64"),
    with("ib_send_lat", "-n 100 -c UC"),
    with("ib_send_lat", "-n 100 -c UD"),
    with("ib_write_bw", "-n 100"),
    with("ib_write_bw", "-n 100 -c UC"),
    with("ib_write_bw", "-n 100 -b"),
    with("ib_write_bw", "-n 100 -q 8"),
    with("ib_write_bw", "-n 100 -s 1"),
    with("ib_write_bw", "-n 10 -s 1048576"),
    with("ib_write_bw", "-n 5 -a"),
    with("ib_write_bw", "-D 2"),
    on_demand("ib_write_bw", "-n 100 --odp"),
    with("ib_write_lat", "-n 100"),
    with("ib_write_lat", "-n 100 -c UC"),
    with("ib_write_lat", "-n 100 -I 64 -s 64"),
    with("ib_read_bw", "-n 100"),
    with("ib_read_bw", "-n 100 -b"),
    with("ib_read_bw", "-n 100 -e"),
    with("ib_read_bw", "-n 100 -q 8"),
    with("ib_read_bw", "-D 2"),
    on_demand("ib_read_bw", "-n 100 --odp"),
    with("ib_read_lat", "-n 100"),
    with("ib_atomic_bw", "-n 100"),
    with("ib_atomic_bw", "-n 100 -b"),
    with("ib_atomic_bw", "-n 100 -q 8"),
    with("ib_atomic_bw", "-D 2"),
    with("ib_atomic_lat", "-n 100"),
    with(TUTORIALS[0], "-p 18515"),
];

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) {
    for program in ALL {
        for sides in Sides::ALL {
            let what = format!("{} {}", program.name, program.options);
            if sides == Sides::OursOurs || program.peer.may_be(world.kernel) {
                world.row(what, sides, || world.play(program, sides), rows);
            }
        }
    }
}

impl World<'_> {
    fn play(&self, program: &Program, sides: Sides) -> Result<()> {
        let server_is_ours = sides != Sides::KernelOurs;
        let client_is_ours = sides != Sides::OursKernel;
        let address = self.address(server_is_ours).to_string();
        let server = self.start(program, server_is_ours, None)?;
        meet(self, server, PORT, || self.start(program, client_is_ours, Some(&address)))
    }

    fn start(&self, program: &Program, ours: bool, server: Option<&str>) -> Result<Running> {
        let gid = self.gid(ours).to_string();
        let is_perftest = !(program.name.starts_with("ibv_") || program.name.ends_with(".c"));
        let mut args = vec![if is_perftest { "-x" } else { "-g" }, &gid];
        if is_perftest {
            // Suppresses warnings about the CPU's frequency.
            args.push("-F");
            if !ours && self.kernel == KERNEL {
                // This kernel sometimes retransmits wrongly: see `watch`.
                args.extend(["-u", ACK_TIMEOUT]);
            }
        }
        args.extend(program.options.split(' '));
        args.extend(server);
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        self.spawn(program.name, &args, ours)
    }
}

/// The TCP port of the pingpongs and perftest.
const PORT: u16 = 18515;

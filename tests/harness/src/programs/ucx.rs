//! UCX in the table of [`programs`](crate::programs): its `ucx_perftest` finds its devices by
//! itself and gets the transports to use in variables.

use super::side::meet;
use super::world::{Row, Sides, World, installed};
use crate::skipped;
use crate::vm::Result;

/// A row of the table: variables, and options from the first `-` on.
struct Program(&'static str);

const NAME: &str = "ucx_perftest";

/// Tag matching, puts, gets and active messages. A connection of rc_verbs begins with datagrams.
const ALL: &[Program] = &[
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t tag_bw -s 5000"),
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t tag_lat -s 200000"),
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t ucp_put_bw -s 5000"),
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t ucp_get -s 5000"),
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t ucp_fadd -s 8"),
    Program("UCX_TLS=rc_verbs,ud_verbs:aux -t ucp_am_bw -s 5000"),
    Program("UCX_TLS=ud_verbs -t tag_bw -s 5000"),
    Program("UCX_TLS=ud_verbs -t ucp_put_bw -s 5000"),
    Program("UCX_TLS=ud_verbs -t ucp_get -s 5000"),
    Program("UCX_TLS=ud_verbs -t ucp_am_bw -s 5000"),
];

/// The numbers of iterations with and without measuring: few, because an emulated machine is slow.
const TIMES: [&str; 4] = ["-n", "100", "-w", "10"];

/// A variable that UCX needs only on a kernel's device. UCX reads from the service level of a
/// completion whether a datagram came over IPv4. Kernel `rdma_rxe` does not set it, so UCX would
/// drop all datagrams.
const ON_KERNEL: &str = "UCX_UD_VERBS_ETH_DGID_CHECK=n";

const PORT: u16 = 13337;

/// Returns the programs and options of the rows.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|program| (NAME, program.0))
}

pub(super) fn run(world: &World<'_>, rows: &mut Vec<Row>) {
    if !installed(NAME) {
        skipped(&format!("{NAME} with kernel {}", world.kernel), "it is not installed");
        return;
    }
    for program in ALL {
        for sides in Sides::ALL {
            let what = format!("{NAME} {}", program.0);
            world.row(what, sides, || program.play(world, sides), rows);
        }
    }
}

impl Program {
    fn play(&self, world: &World<'_>, sides: Sides) -> Result<()> {
        let server_is_ours = sides != Sides::KernelOurs;
        let address = world.address(server_is_ours).to_string();
        let client_is_ours = sides != Sides::OursKernel;
        let start = |ours, server| world.spawn("env", &self.words(ours, server), ours);
        meet(world, start(server_is_ours, None)?, PORT, || start(client_is_ours, Some(&address)))
    }

    /// Returns the arguments of `env`: variables, the program, its options.
    fn words(&self, ours: bool, server: Option<&str>) -> Vec<String> {
        let (variables, options) = self.0.split_at(self.0.find('-').unwrap_or(0));
        let on_kernel = (!ours).then_some(ON_KERNEL);
        let variables = variables.split_whitespace().chain(on_kernel);
        let options = options.split_whitespace().chain(TIMES).chain(server);
        variables.chain([NAME]).chain(options).map(str::to_owned).collect()
    }
}

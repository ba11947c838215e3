//! Programs of librdmacm in the table of [`programs`](crate::programs): their servers and clients
//! have different options, or different names, and find each other by address and port.

use crate::programs::{PATIENCE, Row, Sides, World, failed};
use crate::vm::{HOST_V4, HOST_V6, Result};
use std::thread;
use std::time::Duration;

/// A server and its client. `ADDRESS` in their options stands for the server's.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) options: &'static str,
    server: (&'static str, &'static str),
    client: (&'static str, &'static str),
    v6: bool,
}

const fn with(name: &'static str, server: &'static str, client: &'static str) -> Program {
    Program { name, options: client, server: (name, server), client: (name, client), v6: false }
}

const fn pair(
    server: (&'static str, &'static str),
    client: (&'static str, &'static str),
) -> Program {
    Program { name: client.0, options: client.1, server, client, v6: false }
}

/// perftest's `-R` is not among them: a client of it that is refused, because its server does not
/// listen yet, goes on with an identifier that it has destroyed, and leaves its server waiting for
/// the rest of a conversation. `tests/tests/rdmacm.rs` runs it where the server can be waited for.
pub(crate) const ALL: &[Program] = &[
    with("rping", "-s -a ADDRESS -C 10 -V", "-c -a ADDRESS -C 10 -V"),
    Program {
        v6: true,
        options: "-c -a IPV6 -C 3 -V -S 20000",
        ..with("rping", "-s -a ADDRESS -C 3 -V -S 20000", "-c -a ADDRESS -C 3 -V -S 20000")
    },
    with("ucmatose", "-b ADDRESS -c 5 -C 5", "-s ADDRESS -c 5 -C 5"),
    with("ucmatose", "-b ADDRESS -c 2 -m", "-s ADDRESS -c 2 -m"),
    with("udaddy", "-b ADDRESS -c 3 -C 5", "-s ADDRESS -c 3 -C 5"),
    pair(("rdma_server", ""), ("rdma_client", "-s ADDRESS")),
    pair(("rdma_xserver", "-c r"), ("rdma_xclient", "-c r -s ADDRESS")),
    with("riostream", "-b ADDRESS -S 1000 -I 3", "-s ADDRESS -S 1000 -I 3"),
];

/// What clients say where nobody listens yet.
const TOO_EARLY: [&str; 6] = [
    "REJECTED",
    "UNREACHABLE",
    "refused",
    "Unexpected CM event",
    "endpoint is not connected",
    "rpoll: Operation now in progress",
];

pub(crate) fn run(world: &World<'_>, rows: &mut Vec<Row>) {
    for program in ALL {
        for sides in Sides::ALL {
            let what = format!("{} {}", program.name, program.options);
            world.row(what, sides, || program.play(world, sides), rows);
        }
    }
}

impl Program {
    fn play(&self, world: &World<'_>, sides: Sides) -> Result<()> {
        let server_is_ours = sides != Sides::KernelOurs;
        let address = match (server_is_ours, self.v6) {
            (true, false) => HOST_V4.to_string(),
            (true, true) => HOST_V6.to_string(),
            (false, false) => world.vm.v4().to_string(),
            (false, true) => world.vm.v6().to_string(),
        };
        let words = |options: &str| -> Vec<String> {
            options.split_whitespace().map(|word| word.replace("ADDRESS", &address)).collect()
        };
        let mut server = world.spawn(self.server.0, &words(self.server.1), server_is_ours)?;
        // In an emulated VM it takes its time to listen, and not every client survives a refusal.
        if !server_is_ours {
            thread::sleep(Duration::from_secs(2));
        }
        let mut client = (false, String::new());
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(400));
            let ours = sides != Sides::OursKernel;
            client = world.spawn(self.client.0, &words(self.client.1), ours)?.end(PATIENCE)?;
            let early = TOO_EARLY.iter().any(|word| client.1.contains(word));
            if !early || server.has_ended()? {
                break;
            }
        }
        // A server whose client has failed may wait for ever.
        let left = if client.0 { PATIENCE } else { Duration::from_secs(2) };
        let server = server.end(left)?;
        if client.0 && server.0 {
            return Ok(());
        }
        let both = format!("server: {}; client: {}", server.1, client.1);
        Err(failed(both.replace('\n', " | ")))
    }
}

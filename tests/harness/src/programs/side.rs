//! The two ends of a row, one of which may be in the VM.

use super::world::{Running, Sides, TIMEOUT, World, failed};
use crate::vm::Result;
use std::time::Duration;

/// Starts a server and its clients. In their command lines `ADDRESS` stands for the server's
/// address, and `OWN`, `DEVICE` and `GID` for the address, the device and the GID index of the
/// program's own side.
pub(super) struct Ends<'a> {
    world: &'a World<'a>,
    server_is_ours: bool,
    client_is_ours: bool,
}

impl<'a> Ends<'a> {
    pub(super) fn of(world: &'a World<'a>, sides: Sides) -> Self {
        let server_is_ours = sides != Sides::KernelOurs;
        let client_is_ours = sides != Sides::OursKernel;
        Self { world, server_is_ours, client_is_ours }
    }

    /// Starts the server. `line` has the arguments of `env`: variables, the program, its options.
    pub(super) fn serve(&self, line: &str) -> Result<Running> {
        self.spawn(line, self.server_is_ours)
    }

    /// Starts a client. `line` has the arguments of `env`.
    pub(super) fn ask(&self, line: &str) -> Result<Running> {
        self.spawn(line, self.client_is_ours)
    }

    fn spawn(&self, line: &str, ours: bool) -> Result<Running> {
        let address = self.world.address(self.server_is_ours).to_string();
        let own = self.world.address(ours).to_string();
        let gid = self.world.gid(ours).to_string();
        let put = |word: &str| {
            let word = word.replace("ADDRESS", &address).replace("OWN", &own);
            word.replace("DEVICE", World::device(ours)).replace("GID", &gid)
        };
        let words: Vec<_> = line.split_whitespace().map(put).collect();
        self.world.spawn("env", &words, ours)
    }
}

/// Starts a client when its server listens on a TCP port, and waits for both.
pub(super) fn meet(
    world: &World<'_>,
    mut server: Running,
    port: u16,
    ask: impl FnOnce() -> Result<Running>,
) -> Result<()> {
    world.listening(port, &mut server)?;
    let client = ask()?.end_with(&mut server, TIMEOUT)?;
    // If the client failed, the server may wait forever.
    let left = if client.0 { TIMEOUT } else { Duration::from_secs(2) };
    both(server.end(left)?, client)
}

/// Returns an error with the output of both, unless both succeeded.
pub(super) fn both(server: (bool, String), client: (bool, String)) -> Result<()> {
    if server.0 && client.0 {
        return Ok(());
    }
    let said = format!("server: {}; client: {}", server.1, client.1);
    Err(failed(said.replace('\n', " | ")))
}

//! An endpoint of layer 2 on the interface of the kernel's own device in the VM: each serves a program of the
//! host while the other is there.

use super::end::failed;
use super::world::World;
use crate::vm::{Cmd, Error, LINK, Result};
use std::net::Ipv4Addr;

/// The endpoint's address in the VM.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 47, 91, 77);

pub(super) fn play(world: &mut World<'_>) -> Result<()> {
    let (rxe, kernel, mtu) = (world.options.rxe.display(), world.vm.v4(), world.net.mtu());
    let missing = world.vm.run(Cmd::sh("command -v rping"))?.ok().is_err();
    if missing {
        return Err(Error::Missing("rping is not installed".into()));
    }
    // The clients come from the host's own address.
    world.stop_ours();
    let servers = world.vm.spawn(Cmd::sh(format!(
        "mkdir -p -m 700 /run/own; export XDG_RUNTIME_DIR=/run/own
        {rxe} link add own0 type rxe l2 if:eth0 address {OWN}/24 mtu {mtu} || exit 1
        timeout 60 {rxe} run --device own0 -- rping -s -a {OWN} -C 50 -S 20000 -V & own=$!
        timeout 60 rping -s -a {kernel} -C 50 -S 20000 -V || exit 2
        wait $own"
    )))?;
    // A client that comes before its server is refused.
    let mut clients = world.net.command("sh");
    clients.arg("-c").arg(format!(
        "client() {{
            for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
                timeout 30 {rxe} run --device {LINK} -- rping -c -a $1 -C 50 -S 20000 -V && return
                sleep 0.3
            done
            return 1
        }}
        client {OWN} & own=$!
        client {kernel} && wait $own"
    ));
    let clients = clients.output().map_err(|e| failed(format!("sh: {e}")))?;
    let said = String::from_utf8_lossy(&clients.stderr).into_owned();
    let served = servers.output()?.ok();
    match served {
        Ok(_) if clients.status.success() => Ok(()),
        Ok(_) => Err(failed(said.trim())),
        Err(e) => Err(failed(format!("{e}; the clients: {}", said.trim()))),
    }
}

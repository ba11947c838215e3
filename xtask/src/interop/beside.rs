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
        timeout 240 {rxe} run --device own0 -- rping -s -a {OWN} -C 50 -S 20000 -V & own=$!
        timeout 240 rping -s -a {kernel} -C 50 -S 20000 -V || exit 2
        wait $own"
    )))?;
    // A client that comes before its server is refused, and comes again. No other does: rping's server takes a
    // second request for the end of the first.
    let mut clients = world.net.command("sh");
    clients.arg("-c").arg(format!(
        "client() {{
            for try in $(seq 40); do
                said=$(timeout 240 {rxe} run --device {LINK} -- rping -c -a $1 -C 50 -S 20000 -V 2>&1) && return
                case $said in
                    *RDMA_CM_EVENT_REJECTED*|*RDMA_CM_EVENT_UNREACHABLE*|*RDMA_CM_EVENT_ADDR_ERROR*) ;;
                    *) break ;;
                esac
                sleep 0.3
            done
            echo \"$said\" >&2
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
        Ok(_) => Err(in_a_line(&said)),
        Err(e) => Err(in_a_line(&format!("{e}; the clients: {said}"))),
    }
}

/// The page has a line for each failure.
fn in_a_line(said: &str) -> Error {
    failed(said.trim().replace('\n', " | "))
}

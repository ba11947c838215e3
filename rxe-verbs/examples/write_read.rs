//! One-sided operations: a program writes and reads another's memory, whose owner does nothing.
//!
//! Run it: `cargo run -p rxe-verbs --example write_read`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{Access, ConnectOptions, Device, Result, Status};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(client: IpAddr, server: IpAddr) -> Result<()> {
    // The server has memory that its peer may write and read, and a connected queue pair. From then
    // on the server's program may sleep or compute; its device answers alone.
    let server = Device::options("lo").address(server).open()?;
    let pd = server.create_pd()?;
    let cq = server.create_cq(16)?;
    let server_qp = pd.qp(&cq).build()?;
    let everything = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let shared = pd.register(1 << 20, everything)?;

    // The client.
    let client = Device::options("lo").address(client).open()?;
    let client_pd = client.create_pd()?;
    let client_cq = client.create_cq(16)?;
    let client_qp = client_pd.qp(&client_cq).build()?;
    let local = client_pd.register(2 << 20, Access::LOCAL_WRITE)?;

    client_qp.connect(&server_qp.endpoint(), &ConnectOptions::default())?;
    server_qp.connect(&client_qp.endpoint(), &ConnectOptions::default())?;

    // To use the server's memory the client must know its address and its key.
    let remote = shared.remote(0);
    println!("the server's memory is at {:#x} with key {}", remote.addr, remote.rkey);

    // WRITE a megabyte, then READ it back into the other half of the client's memory. The requests
    // of one queue pair take effect in order, so the READ may be posted immediately.
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    local.write_at(0, &bytes)?;
    client_qp.write(1, &[local.slice(..1 << 20)], remote).post()?;
    client_qp.read(2, &[local.slice(1 << 20..)], remote).post()?;
    for _ in 0..2 {
        let done = client_cq.wait_one(TIMEOUT)?;
        println!("{:?}: {}", done.op, done.status);
    }
    let same = local.to_vec(1 << 20..)? == bytes;
    println!("what was read is {} what was written", if same { "exactly" } else { "NOT" });
    println!("the server saw {:?}", cq.poll_one()?);

    // The server's device rejects access beyond the end of the region, and reports it to both sides.
    client_qp.write(3, &[local.slice(..2)], shared.remote((1 << 20) - 1)).post()?;
    let refused = client_cq.wait_one(TIMEOUT)?;
    println!("a write across the end: {}", refused.status);
    println!("    which means: {}", refused.status.meaning());
    for line in server.explain() {
        println!("    the server's device: {line}");
    }
    assert!(same && refused.status == Status::RemoteAccess);
    Ok(())
}

//! A server posts its receives to one queue that all its connections share (SRQ).
//! Without it, each connection would need enough receives for the worst case. An event tells when
//! few receives are left.
//!
//! Run it: `cargo run -p rxe-verbs --example shared_receive_queue`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{Access, AsyncKind, ConnectOptions, Device, Result};

const TIMEOUT: Duration = Duration::from_secs(10);
const CLIENTS: u64 = 3;
const SIZE: usize = 256;

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(server: IpAddr, clients: IpAddr) -> Result<()> {
    let server = Device::options("lo").address(server).open()?;
    let clients = Device::options("lo").address(clients).open()?;
    let (server_pd, clients_pd) = (server.create_pd()?, clients.create_pd()?);
    let (server_cq, clients_cq) = (server.create_cq(16)?, clients.create_cq(16)?);

    // Four receives for all clients, and an event when fewer than two are left.
    let srq = server_pd.create_srq(4, 1)?;
    let inbox = server_pd.register(4 * SIZE, Access::LOCAL_WRITE)?;
    for (id, start) in (0..4).zip((0..).step_by(SIZE)) {
        srq.recv(id, &[inbox.slice(start..start + SIZE)])?;
    }
    srq.set_limit(2)?;

    // One connection to each client. All of them take receives from the shared queue.
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let ours = server_pd.qp(&server_cq).srq(&srq).build()?;
        let theirs = clients_pd.qp(&clients_cq).build()?;
        ours.connect(&theirs.endpoint(), &ConnectOptions::default())?;
        theirs.connect(&ours.endpoint(), &ConnectOptions::default())?;
        connections.push((ours, theirs));
    }

    for (number, (_, client)) in (0..).zip(&connections) {
        client.send_bytes(number, format!("greetings from client {number}").as_bytes()).post()?;
    }
    for _ in 0..CLIENTS {
        let done = server_cq.wait_one(TIMEOUT)?;
        let start = usize::try_from(done.id).unwrap_or(0) * SIZE;
        let text = inbox.to_vec(start..start + done.byte_len as usize)?;
        // The completion names the receive and the connection.
        println!("QP {}, receive {}: {:?}", done.qpn, done.id, String::from_utf8_lossy(&text));
    }

    // One receive of four is left. A server would now post more and arm the limit again. (A program
    // with an event loop would wait until `Device::async_fd` is readable.)
    let event = loop {
        match server.poll_async_event() {
            Some(event) if event.kind == AsyncKind::SrqLimitReached => break event,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    println!("{} left; {event}", srq.len());
    Ok(())
}

//! Two programs exchange messages.
//! Here both are in one process, on two addresses of loopback. On two hosts, each program would run
//! one half, and they would exchange their endpoints by any means.
//!
//! Run it: `cargo run -p rxe-verbs --example send_receive`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{Access, ConnectOptions, Device, Result};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(alice: IpAddr, bob: IpAddr) -> Result<()> {
    // A device is a network interface with its addresses. Opening it needs no set-up and no privileges.
    let alice = Device::options("lo").address(alice).open()?;
    let bob = Device::options("lo").address(bob).open()?;

    // Objects that are used together belong to one protection domain. Requests are posted to a
    // queue pair, and a completion queue reports those that have ended.
    let (alice_pd, bob_pd) = (alice.create_pd()?, bob.create_pd()?);
    let (alice_cq, bob_cq) = (alice.create_cq(16)?, bob.create_cq(16)?);
    let alice_qp = alice_pd.qp(&alice_cq).build()?;
    let bob_qp = bob_pd.qp(&bob_cq).build()?;

    // Each side must know the other's endpoint: queue pair number, first PSN, address.
    println!("alice is at {}", alice_qp.endpoint());
    println!("bob   is at {}", bob_qp.endpoint());
    alice_qp.connect(&bob_qp.endpoint(), &ConnectOptions::default())?;
    bob_qp.connect(&alice_qp.endpoint(), &ConnectOptions::default())?;

    // A message is written to memory that the receiver has posted before. The memory must be
    // registered, with the right of local write.
    let inbox = bob_pd.register(4096, Access::LOCAL_WRITE)?;
    bob_qp.recv(1, &[inbox.slice(..2048)])?;
    bob_qp.recv(2, &[inbox.slice(2048..)])?;

    // Alice sends from registered memory. The completion carries the ID 10.
    let outbox = alice_pd.register(4096, Access::empty())?;
    let text = b"Hello Bob, this is Alice.";
    outbox.write_at(0, text)?;
    alice_qp.send(10, &[outbox.slice(..text.len())]).post()?;

    // A short message can be copied into the request itself. Immediate data may accompany it.
    alice_qp.send_bytes(11, b"And one more.").imm(42).post()?;

    // Completions tell both sides which requests have ended. Sleeping is one way to wait for them.
    for _ in 0..2 {
        let done = bob_cq.wait_one(TIMEOUT)?;
        let start = if done.id == 1 { 0 } else { 2048 };
        let message = inbox.to_vec(start..start + done.byte_len as usize)?;
        println!("bob received {:?} with {:?}", String::from_utf8_lossy(&message), done.imm);
    }
    for _ in 0..2 {
        let done = alice_cq.wait_one(TIMEOUT)?;
        println!("alice's request {} ended with {}", done.id, done.status);
    }
    Ok(())
}

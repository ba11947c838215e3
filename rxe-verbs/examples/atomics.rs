//! Atomic operations on another program's memory: several clients share a counter and compete for a lock.
//!
//! Run it: `cargo run -p rxe-verbs --example atomics`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{Access, ConnectOptions, Device, Result};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(clients: IpAddr, server: IpAddr) -> Result<()> {
    // The server holds two words: a counter at 0 and a lock at 8.
    let server = Device::options("lo").address(server).open()?;
    let server_pd = server.create_pd()?;
    let server_cq = server.create_cq(16)?;
    let words = server_pd.register(16, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let (counter, lock) = (words.remote(0), words.remote(8));

    // Three clients. Each has its own queue pair, connected to one of the server's.
    let device = Device::options("lo").address(clients).open()?;
    let pd = device.create_pd()?;
    let mut connections = Vec::new();
    for name in ["ann", "ben", "cem"] {
        let cq = device.create_cq(16)?;
        let (near, far) = (pd.qp(&cq).build()?, server_pd.qp(&server_cq).build()?);
        near.connect(&far.endpoint(), &ConnectOptions::default())?;
        far.connect(&near.endpoint(), &ConnectOptions::default())?;
        // The previous value of the word is written to this local memory.
        let before = pd.register(8, Access::LOCAL_WRITE)?;
        connections.push((name, cq, near, far, before));
    }

    // FETCH AND ADD: all clients count simultaneously, and no count is lost.
    std::thread::scope(|scope| {
        let clients: Vec<_> = connections
            .iter()
            .map(|(_, cq, qp, _, before)| {
                scope.spawn(move || -> Result<()> {
                    for i in 0..1000 {
                        qp.fetch_add(i, before.slice(..), counter, 1).post()?;
                        cq.wait_one(TIMEOUT)?;
                    }
                    Ok(())
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })?;
    let total = words.load_u64(0)?;
    println!("three clients added 1 a thousand times each: {total}");

    // COMPARE AND SWAP: the client that changes the lock from 0 to its number holds the lock.
    let mut owners = Vec::new();
    for (number, (name, cq, qp, _, before)) in (1..).zip(&connections) {
        qp.compare_swap(number, before.slice(..), lock, 0, number).post()?;
        cq.wait_one(TIMEOUT)?;
        match before.load_u64(0)? {
            0 => {
                println!("{name} has the lock");
                owners.push(number);
            }
            owner => println!("{name} does not get the lock: {owner} has it"),
        }
    }
    assert!(total == 3000 && owners == [words.load_u64(8)?]);
    Ok(())
}

//! A server whose workers have their own receives and memory, and a client that reaches them all
//! over one connection (XRC).
//! Each request names the shared receive queue of a worker.
//!
//! Run it: `cargo run -p rxe-verbs --example xrc`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, QpType, Result,
    SharedReceiveQueue, Status, XrcDomain,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const WORKERS: u64 = 3;

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// The objects of a worker. Workers share only the connection.
struct Worker {
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    inbox: MemoryRegion,
}

impl Worker {
    fn hire(server: &Device, domain: &XrcDomain) -> Result<Self> {
        let pd = server.create_pd()?;
        let cq = server.create_cq(16)?;
        let srq = pd.create_xrc_srq(domain, &cq, 16, 1)?;
        let inbox = pd.register(256, Access::LOCAL_WRITE)?;
        srq.recv(1, &[inbox.slice(..)])?;
        Ok(Self { cq, srq, inbox })
    }
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(server: IpAddr, client: IpAddr) -> Result<()> {
    let server = Device::options("lo").address(server).open()?;
    let client = Device::options("lo").address(client).open()?;

    let domain = server.create_xrc_domain()?;
    let workers: Vec<_> =
        (0..WORKERS).map(|_| Worker::hire(&server, &domain)).collect::<Result<_>>()?;

    // One connection: an initiator at the client, a target at the server.
    let client_cq = client.create_cq(16)?;
    let initiator = client.create_pd()?.qp(&client_cq).service(QpType::XrcSend).build()?;
    let target = domain.qp().build()?;
    initiator.connect(&target.endpoint(), &ConnectOptions::default())?;
    target.connect(&initiator.endpoint(), &ConnectOptions::default())?;

    // The client knows the numbers of the queues in the same way as the endpoint: the server told it.
    for (id, worker) in (0..).zip(&workers) {
        let text = format!("a job for worker {id}");
        initiator.send_bytes(id, text.as_bytes()).to_srq(worker.srq.number()).post()?;
    }
    for (id, worker) in workers.iter().enumerate() {
        let done = worker.cq.wait_one(TIMEOUT)?;
        let text = worker.inbox.to_vec(..done.byte_len as usize)?;
        println!("worker {id}, over QP {}: {:?}", done.qpn, String::from_utf8_lossy(&text));
    }
    for _ in 0..WORKERS {
        assert_eq!(client_cq.wait_one(TIMEOUT)?.status, Status::Success);
    }
    Ok(())
}

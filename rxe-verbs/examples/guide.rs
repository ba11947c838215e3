//! The program of the guide to this API (docs/en/do/rust.md).
//! It opens devices, registers memory, sends a message, WRITEs, and shows how errors are reported.
//!
//! Run it: `cargo run -p rxe-verbs --example guide`

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use rxe_verbs::{
    Access, AsyncKind, CompletionQueue, ConnectOptions, Device, Endpoint, Error, Key, MemoryRegion,
    QueuePair, Remote, Result, Status,
};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// One end: a device and the objects created on it.
struct End {
    device: Device,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn open(interface: &str, address: IpAddr) -> Result<Self> {
        let device = Device::options(interface).address(address).open()?;
        let pd = device.create_pd()?;
        let cq = device.create_cq(16)?;
        let qp = pd.qp(&cq).build()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = pd.register(4096, rights)?;
        Ok(Self { device, cq, qp, memory })
    }
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(alice: IpAddr, bob: IpAddr) -> Result<()> {
    for device in rxe_verbs::devices()? {
        println!("{}, on {}", device.name(), device.interface().name);
    }
    let (alice, bob) = (End::open("lo", alice)?, End::open("lo", bob)?);
    connect(&alice, &bob)?;
    message(&alice, &bob)?;
    one_sided(&alice, &bob)?;
    mistakes(&alice, &bob)?;
    Ok(())
}

/// Connects both ends. An endpoint is a line of text, which two programs may exchange by any means.
fn connect(alice: &End, bob: &End) -> Result<()> {
    let line = bob.qp.endpoint().to_string();
    let endpoint: Endpoint = line.parse()?;
    alice.qp.connect(&endpoint, &ConnectOptions::default())?;
    bob.qp.connect(&alice.qp.endpoint(), &ConnectOptions::default())?;
    println!("connected with {line}");
    Ok(())
}

fn message(alice: &End, bob: &End) -> Result<()> {
    bob.qp.recv(1, &[bob.memory.slice(..64)])?;

    alice.memory.write_at(0, b"hello")?;
    alice.qp.send(2, &[alice.memory.slice(..5)]).post()?;
    let sent = alice.cq.wait_one(TIMEOUT)?;
    assert_eq!((sent.id, sent.status), (2, Status::Success));

    let received = bob.cq.wait_one(TIMEOUT)?;
    let text = bob.memory.to_vec(..received.byte_len as usize)?;
    println!("bob received {:?}", String::from_utf8_lossy(&text));
    Ok(())
}

/// Alice WRITEs to an address that Bob has told her. Bob does nothing.
fn one_sided(alice: &End, bob: &End) -> Result<()> {
    let place = bob.memory.remote(1024);
    alice.qp.write_bytes(3, b"written", place).post()?;
    assert_eq!(alice.cq.wait_one(TIMEOUT)?.status, Status::Success);
    assert_eq!(bob.memory.to_vec(1024..1031)?, b"written");
    Ok(())
}

fn mistakes(alice: &End, bob: &End) -> Result<()> {
    // A call that cannot be executed returns an error and changes nothing.
    match Device::open("nonsense0") {
        Err(error @ Error::Device(_)) => println!("{error}"),
        other => panic!("{other:?}"),
    }

    // A request that fails after it was posted completes with an error status.
    let Remote { addr, rkey } = bob.memory.remote(0);
    let wrong = Remote { addr, rkey: Key::new(rkey.value() ^ 1) };
    alice.qp.write_bytes(4, b"lost", wrong).post()?;
    let done = alice.cq.wait_one(TIMEOUT)?;
    assert_eq!(done.status, Status::RemoteAccess);
    println!("{}: {}", done.status, done.status.meaning());
    for line in alice.device.explain() {
        println!("alice's device: {line}");
    }

    // The other end gets an asynchronous event.
    let start = Instant::now();
    let event = loop {
        match bob.device.poll_async_event() {
            Some(event) if event.kind == AsyncKind::QpAccessErr => break event,
            Some(_) => {}
            None if start.elapsed() > TIMEOUT => {
                return Err(Error::TimedOut { what: "event", after: TIMEOUT });
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    println!("bob's device: {event}");
    Ok(())
}

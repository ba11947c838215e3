//! An echo server and its client, which connect by address and port with the connection manager.
//! The other side may be on another host. It may also be a program that uses librdmacm there, over
//! kernel `rdma_rxe` or RDMA hardware.
//!
//! Both in one process, over loopback: `cargo run -p rxe-verbs --example echo`.
//! On two hosts: `… --example echo -- server 7471`, and `… --example echo -- client ADDRESS:7471`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rxe_verbs::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use rxe_verbs::{Access, CompletionQueue, Device, Error, MemoryRegion, Result, Status};

const TIMEOUT: Duration = Duration::from_secs(10);
const BUFFER_SIZE: usize = 4096;

fn main() -> Result<()> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into()),
        ["server", port] => {
            let port = port.parse().unwrap_or_else(|_| usage());
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            let (channel, listener) = listen(EventChannel::new()?, address)?;
            loop {
                serve(&channel, &listener, None)?;
            }
        }
        ["client", address] => {
            let address = address.parse().unwrap_or_else(|_| usage());
            client(EventChannel::new()?, address)
        }
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: echo [server PORT | client ADDRESS:PORT]");
    std::process::exit(2)
}

/// Runs both sides in one process, between these two addresses.
pub(crate) fn run(alice: IpAddr, bob: IpAddr) -> Result<()> {
    let alice = EventChannel::on(&[Device::options("lo").address(alice).open()?])?;
    let bob_device = Device::options("lo").address(bob).open()?;
    let (channel, listener) = listen(EventChannel::on(&[bob_device])?, SocketAddr::new(bob, 0))?;
    let address = listener.local_addr().expect("it is bound");
    println!("bob listens on {address}");
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(&channel, &listener, Some(TIMEOUT)));
        client(alice, address)?;
        served.join().expect("the server does not panic")
    })
}

/// Listens on an address and port. The channel delivers the events of the listener.
fn listen(channel: EventChannel, address: SocketAddr) -> Result<(EventChannel, CmId)> {
    let listener = channel.create_id(PortSpace::Tcp)?;
    listener.bind_addr(address)?;
    listener.listen(8)?;
    Ok((channel, listener))
}

/// Accepts one client and sends its messages back until the client disconnects.
fn serve(channel: &EventChannel, listener: &CmId, timeout: Option<Duration>) -> Result<()> {
    // A request comes with a new identifier, and with private data from the client.
    let Some(request) = channel.get_event(timeout)? else {
        return Err(Error::TimedOut { what: "request", after: TIMEOUT });
    };
    if request.kind != CmEventKind::ConnectRequest {
        println!("not a request: {}", request.kind.name());
        return Ok(());
    }
    let id = request.id;
    println!("{:?} connects to {:?}", id.peer_addr(), listener.local_addr());
    let end = End::new(&id)?;
    // The receive is posted before the client may send.
    end.receive()?;
    id.accept(&ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() })?;
    expect(channel, CmEventKind::Established)?;
    // The connection is established: echo messages until it ends.
    loop {
        if let Some(message) = end.message(Duration::from_millis(100))? {
            end.receive()?;
            end.send(&message)?;
        }
        if let Some(event) = channel.get_event(Some(Duration::ZERO))? {
            println!("{}", event.kind.name());
            return id.disconnect();
        }
    }
}

/// Connects, sends a few messages and receives them again.
fn client(channel: EventChannel, server: SocketAddr) -> Result<()> {
    let id = channel.create_id(PortSpace::Tcp)?;
    // Finds the device that leads to the server.
    id.resolve_addr(None, server)?;
    expect(&channel, CmEventKind::AddrResolved)?;
    id.resolve_route()?;
    expect(&channel, CmEventKind::RouteResolved)?;
    let end = End::new(&id)?;
    id.connect(&ConnParam { private_data: b"hello".to_vec(), ..ConnParam::default() })?;
    let welcome = expect(&channel, CmEventKind::Established)?;
    let words = welcome.param.private_data();
    println!("the server says {:?}", String::from_utf8_lossy(words).trim_end_matches('\0'));
    for text in ["one", "two", "three"] {
        end.receive()?;
        end.send(text.as_bytes())?;
        let echo = end.message(TIMEOUT)?.ok_or(Error::TimedOut { what: "echo", after: TIMEOUT })?;
        println!("sent {text:?}, got {:?}", String::from_utf8_lossy(&echo));
        assert_eq!(echo, text.as_bytes());
    }
    id.disconnect()?;
    expect(&channel, CmEventKind::Disconnected)?;
    Ok(())
}

/// Waits for the next event, which must be of this kind.
fn expect(channel: &EventChannel, kind: CmEventKind) -> Result<CmEvent> {
    let event = channel.wait_event(TIMEOUT)?;
    assert_eq!(event.kind, kind, "status {}", event.status);
    Ok(event)
}

/// One end of a connection, with memory for a received message.
struct End {
    id: CmId,
    cq: CompletionQueue,
    inbox: MemoryRegion,
}

impl End {
    /// Creates the objects of a connection on the identifier's device, which is known by now.
    fn new(id: &CmId) -> Result<Self> {
        let device = id.device().expect("an address tells the device");
        let pd = device.create_pd()?;
        let cq = device.create_cq(16)?;
        // The connection manager changes the states of this queue pair.
        id.create_qp(pd.qp(&cq))?;
        let inbox = pd.register(BUFFER_SIZE, Access::LOCAL_WRITE)?;
        Ok(Self { id: id.clone(), cq, inbox })
    }

    fn receive(&self) -> Result<()> {
        let qp = self.id.qp().expect("it was made above");
        qp.recv(1, &[self.inbox.slice(..)])
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let qp = self.id.qp().expect("it was made above");
        qp.send_bytes(2, bytes).unsignaled().post()
    }

    /// Returns the next message, or `None` if none comes within `timeout`.
    fn message(&self, timeout: Duration) -> Result<Option<Vec<u8>>> {
        match self.cq.wait_one(timeout) {
            Ok(done) if done.id == 1 && done.status == Status::Success => {
                Ok(Some(self.inbox.to_vec(..done.byte_len as usize)?))
            }
            Ok(_) | Err(Error::TimedOut { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

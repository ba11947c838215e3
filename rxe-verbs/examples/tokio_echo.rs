//! The echo server of `echo.rs` with one task for each connection. The clients are tasks too.
//! All tasks run on one tokio thread.
//!
//! `cargo run -p rxe-verbs --features tokio --example tokio_echo`

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rxe_verbs::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, PortSpace};
use rxe_verbs::task::{Completions, ConnectionEvents};
use rxe_verbs::{Access, Device, Error, MemoryRegion, Result, Status};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(10);
const BUFFER_SIZE: usize = 4096;
const CLIENTS: usize = 8;
/// The `wr_id` of receives, and of sends below.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(alice: IpAddr, bob: IpAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(echo(alice, bob))
}

async fn echo(alice: IpAddr, bob: IpAddr) -> Result<()> {
    let alice = Device::options("lo").address(alice).open()?;
    let bob_device = Device::options("lo").address(bob).open()?;
    let server = ConnectionEvents::new(EventChannel::on(&[bob_device])?)?;
    let listener = server.channel().create_id(PortSpace::Tcp)?;
    listener.bind_addr(SocketAddr::new(bob, 0))?;
    listener.listen(CLIENTS)?;
    let address = listener.local_addr().expect("it is bound");
    println!("bob listens on {address}");

    let mut clients = JoinSet::new();
    for name in 0..CLIENTS {
        clients.spawn(client(alice.clone(), address, name));
    }
    let mut connections = JoinSet::new();
    while !clients.is_empty() {
        select! {
            request = server.next() => {
                connections.spawn(serve(request?));
            }
            Some(client) = clients.join_next() => client.expect("a client does not panic")?,
        }
    }
    while let Some(connection) = connections.join_next().await {
        println!("{} messages sent back", connection.expect("a connection does not panic")?);
    }
    Ok(())
}

/// Accepts a client and echoes its messages until it disconnects. Returns the number of messages.
async fn serve(request: CmEvent) -> Result<usize> {
    assert_eq!(request.kind, CmEventKind::ConnectRequest);
    let id = request.id;
    // Only this channel delivers the events of this connection.
    let events = ConnectionEvents::new(EventChannel::new()?)?;
    id.migrate(events.channel());
    let end = End::new(&id)?;
    // The receive is posted before the client may send.
    end.receive()?;
    id.accept(&ConnParam::default())?;
    expect(&events, CmEventKind::Established).await?;
    for count in 0.. {
        select! {
            // Messages that came before the end of the connection come first.
            biased;
            message = end.message() => {
                let message = message?;
                end.receive()?;
                end.send(&message).await?;
            }
            event = events.next() => {
                assert_eq!(event?.kind, CmEventKind::Disconnected);
                id.disconnect()?;
                return Ok(count);
            }
        }
    }
    unreachable!("the connection ends")
}

/// Connects, sends a few messages and receives them again.
async fn client(device: Device, server: SocketAddr, name: usize) -> Result<()> {
    let events = ConnectionEvents::new(EventChannel::on(&[device])?)?;
    let id = events.channel().create_id(PortSpace::Tcp)?;
    id.resolve_addr(None, server)?;
    expect(&events, CmEventKind::AddrResolved).await?;
    id.resolve_route()?;
    expect(&events, CmEventKind::RouteResolved).await?;
    let end = End::new(&id)?;
    id.connect(&ConnParam::default())?;
    expect(&events, CmEventKind::Established).await?;
    for round in 0..=name {
        let text = format!("message {round} of client {name}");
        end.receive()?;
        let (sent, echo) = tokio::join!(end.send(text.as_bytes()), end.message());
        sent?;
        assert_eq!(String::from_utf8_lossy(&echo?), text);
    }
    id.disconnect()?;
    expect(&events, CmEventKind::Disconnected).await?;
    Ok(())
}

/// Waits for the next event, which must be of this kind.
async fn expect(events: &ConnectionEvents, kind: CmEventKind) -> Result<CmEvent> {
    let late = |_| Error::TimedOut { what: "connection event", after: TIMEOUT };
    let event = timeout(TIMEOUT, events.next()).await.map_err(late)??;
    assert_eq!(event.kind, kind, "status {}", event.status);
    Ok(event)
}

/// One end of a connection, with memory for a received message.
struct End {
    id: CmId,
    completions: Completions,
    inbox: MemoryRegion,
}

impl End {
    fn new(id: &CmId) -> Result<Self> {
        let device = id.device().expect("an address tells the device");
        let pd = device.create_pd()?;
        let completions = Completions::new(&device, 16)?;
        id.create_qp(pd.qp(completions.queue()))?;
        let inbox = pd.register(BUFFER_SIZE, Access::LOCAL_WRITE)?;
        Ok(Self { id: id.clone(), completions, inbox })
    }

    fn receive(&self) -> Result<()> {
        let qp = self.id.qp().expect("it was made above");
        qp.recv(RECEIVE, &[self.inbox.slice(..)])
    }

    /// Sends a message and waits until the peer has acknowledged it.
    async fn send(&self, bytes: &[u8]) -> Result<()> {
        let qp = self.id.qp().expect("it was made above");
        qp.send_bytes(SEND, bytes).post()?;
        let done = self.completions.of(SEND).await?;
        assert_eq!(done.status, Status::Success);
        Ok(())
    }

    /// Waits for the next message. Stays pending while the connection ends.
    async fn message(&self) -> Result<Vec<u8>> {
        let done = self.completions.of(RECEIVE).await?;
        if done.status != Status::Success {
            return std::future::pending().await;
        }
        self.inbox.to_vec(..done.byte_len as usize)
    }
}

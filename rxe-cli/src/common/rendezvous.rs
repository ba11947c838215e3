//! The TCP connection over which two ends exchange their addresses before they use RDMA.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::Error;

/// The default TCP port of ibv_rc_pingpong and perftest.
pub(crate) const PORT: u16 = 18515;

/// The time limit for one step of the exchange.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the addresses of a host. If all are loopback, IPv4 comes first, because loopback has
/// many IPv4 addresses.
pub(crate) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    match found {
        Ok(mut all) if !all.is_empty() => {
            if all.iter().all(|a| a.ip().is_loopback()) {
                all.sort_by_key(SocketAddr::is_ipv6);
            }
            Ok(all)
        }
        Ok(_) => Err(Error::new(format!("\"{host}\" has no address"), "check its name")),
        Err(e) => {
            let what = format!("cannot find the host \"{host}\": {e}");
            Err(Error::new(what, "check its name, or give its address"))
        }
    }
}

/// Returns the advice for a refused connection of a command that has the option -p.
pub(crate) fn start_first(command: &str) -> String {
    format!("start `{command}` there first, and give the same -p on both ends")
}

/// Connects to the first of `addresses` that answers, each within [`TIMEOUT`]. `start` is the
/// advice for a refused connection.
pub(crate) fn connect(addresses: &[SocketAddr], start: &str) -> Result<TcpStream, Error> {
    connect_within(addresses, TIMEOUT, start)
}

/// Like [`connect`], with the time limit `each` per address.
pub(crate) fn connect_within(
    addresses: &[SocketAddr],
    each: Duration,
    start: &str,
) -> Result<TcpStream, Error> {
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, each) {
            Ok(stream) => return ready(stream),
            Err(e) => last = e,
        }
    }
    let (ip, port) =
        addresses.first().map_or((Ipv4Addr::UNSPECIFIED.into(), PORT), |a| (a.ip(), a.port()));
    let whole = each * u32::try_from(addresses.len()).unwrap_or(1);
    let (why, todo): (String, &str) = match last.kind() {
        ErrorKind::ConnectionRefused => ("nobody listens there".into(), start),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => (
            format!("no answer within {} s", whole.as_secs_f64().round()),
            "is the address right, is the host up, and does a firewall block the port?",
        ),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => (
            "no route leads there".into(),
            "is the address right, and is this host on a network that leads there?",
        ),
        _ => (last.to_string(), "is the address right?"),
    };
    Err(Error::new(format!("cannot connect to {ip}, TCP port {port}: {why}"), todo))
}

/// Listens on `port`, on all addresses of this host.
pub(crate) fn listen(port: u16) -> Result<TcpListener, Error> {
    let on = |ip: IpAddr| TcpListener::bind((ip, port));
    let listener = on(Ipv6Addr::UNSPECIFIED.into()).or_else(|e| match e.kind() {
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(e),
        // This host has no IPv6.
        _ => on(Ipv4Addr::UNSPECIFIED.into()),
    });
    listener.map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => Error::new(
            format!("TCP port {port} is in use"),
            "end the other server, or choose another port with -p on both ends",
        ),
        ErrorKind::PermissionDenied => Error::new(
            format!("TCP port {port} is for root only"),
            "choose one above 1023 with -p on both ends",
        ),
        _ => Error::new(format!("cannot listen on TCP port {port}"), e),
    })
}

/// Accepts the first client.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream, Error> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return ready(stream),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::new("cannot accept a connection", e)),
        }
    }
}

/// Returns the local and the remote address of a connection. IPv4-mapped addresses are converted to
/// IPv4.
pub(crate) fn addresses(stream: &TcpStream) -> Result<(IpAddr, IpAddr), Error> {
    let both = stream.local_addr().and_then(|own| Ok((own, stream.peer_addr()?)));
    match both {
        Ok((own, peer)) => Ok((own.ip().to_canonical(), peer.ip().to_canonical())),
        Err(e) => Err(disconnected(&e)),
    }
}

/// Returns the error for a failed read or write on this connection.
pub(crate) fn broken(e: &io::Error) -> Error {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let what = format!("the peer said nothing for {} s", TIMEOUT.as_secs());
            Error::new(what, "is the right program listening there?")
        }
        _ => disconnected(e),
    }
}

fn disconnected(e: &io::Error) -> Error {
    match e.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            Error::new(
                "the peer hung up before it was done",
                "see what it printed, or whether it was killed",
            )
        }
        _ => Error::new("the exchange with the peer failed", e),
    }
}

fn ready(stream: TcpStream) -> Result<TcpStream, Error> {
    let set = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(TIMEOUT)))
        .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
    set.map_err(|e| Error::new("cannot set up the connection to the peer", e))?;
    Ok(stream)
}

//! UDP sockets alone: what the system can do for packets of the same sizes, without a protocol. A
//! stream is not slowed down by its receiver, and only what arrives counts.
//!
//! ```text
//! raw_udp stream|latency BYTES [--gso]           waits for the other end
//! raw_udp stream|latency BYTES [--gso] ADDRESS   measures for a second; prints the bytes that arrived, or
//!                                                the median time one way in microseconds
//! ```
//!
//! BYTES are those of a packet. With `--gso` the system cuts and joins packets.

use std::error::Error;
use std::io::{self, Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, UdpGroSegment, UdpGsoSegment};

/// Of both protocols: the measured one, and TCP, which says when it begins and ends.
const PORT: u16 = 18519;
const DURATION: Duration = Duration::from_secs(1);

/// One of the two ends.
struct End {
    latency: bool,
    /// In a packet.
    bytes: usize,
    gso: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let gso = args.iter().any(|arg| arg == "--gso");
    args.retain(|arg| arg != "--gso");
    let usage = "usage: raw_udp stream|latency BYTES [--gso] [ADDRESS]";
    let (mode, bytes, host) = match &args[..] {
        [mode, bytes] => (mode, bytes, None),
        [mode, bytes, host] => (mode, bytes, Some(host.parse()?)),
        _ => return Err(usage.into()),
    };
    let latency = match &mode[..] {
        "stream" => false,
        "latency" => true,
        _ => return Err(usage.into()),
    };
    let end = End { latency, bytes: bytes.parse()?, gso };
    match host {
        Some(host) => end.client(host)?,
        None => end.server()?,
    }
    Ok(())
}

impl End {
    fn server(&self) -> io::Result<()> {
        let udp = self.socket(PORT)?;
        let (mut control, _) = TcpListener::bind(any(PORT))?.accept()?;
        udp.set_read_timeout(Some(Duration::from_millis(200)))?;
        let stopped = {
            let control = control.try_clone()?;
            control.set_nonblocking(true)?;
            move || matches!((&control).read(&mut [0]), Ok(0))
        };
        let mut buf = vec![0; 1 << 16];
        let mut bytes = 0;
        if self.latency {
            udp.set_nonblocking(true)?;
            let mut idle = 0u32;
            while idle < 1 << 20 || !stopped() {
                idle += 1;
                if let Ok((len, from)) = udp.recv_from(&mut buf) {
                    idle = 0;
                    udp.send_to(&buf[..len], from)?;
                }
            }
            return Ok(());
        }
        // A second of packets, and what is still in the buffer.
        loop {
            match udp.recv(&mut buf) {
                Ok(len) => bytes += len,
                Err(_) if stopped() => break,
                Err(_) => {}
            }
        }
        control.set_nonblocking(false)?;
        control.write_all(format!("{bytes}").as_bytes())
    }

    fn client(&self, host: IpAddr) -> io::Result<()> {
        let udp = self.socket(0)?;
        udp.connect((host, PORT))?;
        let mut control = TcpStream::connect((host, PORT))?;
        if self.latency {
            println!("{:.3}", self.ping_pong(&udp)?);
            return Ok(());
        }
        // As many packets as one call takes.
        let packets = if self.gso { (65_000 / self.bytes).min(64) } else { 1 };
        let buf = vec![0x5a; self.bytes * packets];
        let end = Instant::now() + DURATION;
        while Instant::now() < end {
            udp.send(&buf)?;
        }
        control.shutdown(Shutdown::Write)?;
        let mut arrived = String::new();
        control.read_to_string(&mut arrived)?;
        println!("{arrived}");
        Ok(())
    }

    /// The median time one way, in µs. Both ends poll.
    fn ping_pong(&self, udp: &UdpSocket) -> io::Result<f64> {
        udp.set_nonblocking(true)?;
        let mut buf = vec![0; self.bytes];
        let mut times = Vec::new();
        let end = Instant::now() + DURATION;
        while Instant::now() < end {
            let start = Instant::now();
            udp.send(&buf)?;
            while udp.recv(&mut buf).is_err() {
                if start.elapsed() > DURATION {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64() * 1e6 / 2.0)
    }

    fn socket(&self, port: u16) -> io::Result<UdpSocket> {
        let udp = UdpSocket::bind(any(port))?;
        setsockopt(&udp, RcvBuf, &(4 << 20))?;
        if self.gso {
            setsockopt(&udp, UdpGroSegment, &true)?;
            setsockopt(&udp, UdpGsoSegment, &i32::try_from(self.bytes).unwrap_or(i32::MAX))?;
        }
        Ok(udp)
    }
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

//! Measures plain UDP sockets: what the kernel achieves for packets of these sizes without a protocol.
//! A stream has no flow control, and only the bytes that arrive count.
//!
//! ```text
//! raw_udp stream|latency BYTES [--gso]           waits for the other end
//! raw_udp stream|latency BYTES [--gso] ADDRESS   measures for a second; prints the bytes that arrived, or
//!                                                the median time one way in microseconds
//! ```
//!
//! BYTES is the size of a packet. With `--gso` the kernel segments and coalesces packets (GSO and
//! GRO). `latency BYTES --roce` adds what RoCEv2 needs: unconnected sockets, because a connected
//! socket counts IPv4 identifications, which the ICRC covers; the source address and traffic class
//! of each received packet; and an acknowledgement of 20 bytes sent in the same call after the packet.

use std::cell::RefCell;
use std::error::Error;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write};
use std::net::{
    IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket,
};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::{RcvBuf, RxqOvfl, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt};
use rustix::net::sockopt::set_ip_recvtos;

/// The port of the measured UDP socket and of the TCP connection that starts and stops the measurement.
const PORT: u16 = 18519;
const DURATION: Duration = Duration::from_secs(1);

/// One of the two ends.
struct End {
    latency: bool,
    /// The size of a packet.
    bytes: usize,
    gso: bool,
    /// Whether latency is measured with the additions that RoCEv2 needs.
    roce: bool,
}

/// The size of an acknowledgement in bytes.
const ACK: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let gso = args.iter().any(|arg| arg == "--gso");
    let roce = args.iter().any(|arg| arg == "--roce");
    args.retain(|arg| arg != "--gso" && arg != "--roce");
    let usage = "usage: raw_udp stream|latency BYTES [--gso|--roce] [ADDRESS]";
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
    let end = End { latency, bytes: bytes.parse()?, gso, roce: roce && latency };
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
                if self.roce {
                    if let Ok(from) = receive(&udp, &mut buf) {
                        idle = 0;
                        self.send(&udp, from)?;
                    }
                } else if let Ok((len, from)) = udp.recv_from(&mut buf) {
                    idle = 0;
                    udp.send_to(&buf[..len], from)?;
                }
            }
            return Ok(());
        }
        // Counts the packets of one second, and those still in the socket buffer afterwards.
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
        if !self.roce {
            udp.connect((host, PORT))?;
        }
        let mut control = TcpStream::connect((host, PORT))?;
        if self.latency {
            println!("{:.3}", self.ping_pong(&udp, host)?);
            return Ok(());
        }
        // The most packets that one call with GSO takes: 64 segments and less than 64 KiB.
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

    /// Returns the median one-way time in µs. Both ends poll.
    fn ping_pong(&self, udp: &UdpSocket, host: IpAddr) -> io::Result<f64> {
        udp.set_nonblocking(true)?;
        let IpAddr::V4(host) = host else { return Err(io::ErrorKind::Unsupported.into()) };
        let peer = SocketAddrV4::new(host, PORT).into();
        let mut buf = vec![0; 1 << 16];
        let message = vec![0; self.bytes];
        let send = || if self.roce { self.send(udp, peer) } else { udp.send(&message).map(drop) };
        let mut receive = || match self.roce {
            true => receive(udp, &mut buf).map(drop),
            false => udp.recv(&mut buf).map(drop),
        };
        let mut times = Vec::new();
        let end = Instant::now() + DURATION;
        while Instant::now() < end {
            let start = Instant::now();
            send()?;
            while receive().is_err() {
                if start.elapsed() > DURATION {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2].as_secs_f64() * 1e6 / 2.0)
    }

    /// Sends a packet and an acknowledgement.
    fn send(&self, udp: &UdpSocket, to: SockaddrIn) -> io::Result<()> {
        let buf = [0; 256];
        let bytes = buf.get(..self.bytes + ACK).ok_or(io::ErrorKind::InvalidInput)?;
        let segment = u16::try_from(self.bytes).unwrap_or(u16::MAX);
        let control = [ControlMessage::UdpGsoSegments(&segment)];
        let flags = MsgFlags::MSG_DONTWAIT;
        sendmsg(udp.as_raw_fd(), &[IoSlice::new(bytes)], &control, flags, Some(&to))?;
        Ok(())
    }

    fn socket(&self, port: u16) -> io::Result<UdpSocket> {
        let udp = UdpSocket::bind(any(port))?;
        setsockopt(&udp, RcvBuf, &(4 << 20))?;
        if self.roce || self.gso {
            setsockopt(&udp, UdpGroSegment, &true)?;
        }
        if self.roce {
            setsockopt(&udp, RxqOvfl, &1)?;
            set_ip_recvtos(&udp, true)?;
        }
        if self.gso {
            setsockopt(&udp, UdpGsoSegment, &i32::try_from(self.bytes).unwrap_or(i32::MAX))?;
        }
        Ok(udp)
    }
}

/// Receives what [`End::send`] sends. Returns the sender's address.
fn receive(udp: &UdpSocket, buf: &mut [u8]) -> io::Result<SockaddrIn> {
    // A buffer for control messages that is reused, so that no call allocates memory.
    thread_local!(static CONTROL: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(256)));
    CONTROL.with_borrow_mut(|control| {
        let mut parts = [IoSliceMut::new(buf)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<SockaddrIn>(udp.as_raw_fd(), &mut parts, Some(control), flags)?;
        message.address.ok_or_else(|| io::ErrorKind::InvalidData.into())
    })
}

fn any(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

//! UDP sockets alone: what the system can do for packets of the same sizes, without a protocol. A
//! stream is not slowed down by its receiver, and only what arrives counts.

use std::io::{Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBuf, UdpGroSegment, UdpGsoSegment};
use xtask::vm::{Error, Result};

use super::{Read, Reading, words};
use crate::cmd::bench::link::{Job, Link};
use crate::cmd::bench::tests::{Kind, Test};

const PORT: u16 = 18519;
/// BTH and ICRC: what a packet of ours has beside the payload.
const HEADERS: u32 = 16;
const DURATION: Duration = Duration::from_secs(1);

/// One run, of a second.
pub(super) fn run(link: &Link, test: Test, gso: bool) -> Read {
    let own = env::current_exe().map_err(|e| e.to_string())?.display().to_string();
    let (mode, bytes) = match test.kind {
        Kind::Latency => ("latency", test.bytes + HEADERS),
        _ => ("stream", test.mtu + HEADERS),
    };
    let options = format!("{own} raw-udp {mode} {bytes}{}", if gso { " --gso" } else { "" });
    let server = words(&options);
    let client = [&server[..], &["--host".into(), link.host()]].concat();
    let ran = link.run(&Job { port: PORT, ..Job::new(&server, &client) })?;
    let value = ran.text.trim().parse::<f64>().ok();
    let reading = value.map(|value| match test.kind {
        Kind::Latency => Reading { value, bytes: f64::NAN, tail: None },
        _ => {
            let bytes = value * f64::from(test.mtu) / f64::from(bytes);
            Reading { value: bytes / DURATION.as_secs_f64() / 1e9, bytes, tail: None }
        }
    });
    Ok((ran, reading))
}

/// The program of either end.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to do
    #[arg(value_parser = ["stream", "latency"])]
    mode: String,
    /// Bytes in a packet
    bytes: usize,
    /// Let the system cut and join packets
    #[arg(long)]
    gso: bool,
    /// The other end, which waits; without it, wait here
    #[arg(long)]
    host: Option<IpAddr>,
}

impl Args {
    /// Prints the bytes that arrived in a second, or the median time one way in µs.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let done = match self.host {
            Some(host) => self.client(host),
            None => self.server(),
        };
        done.map(|()| ExitCode::SUCCESS).map_err(|e| Error::Failed(format!("raw UDP: {e}")))
    }

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
        if self.mode == "latency" {
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
        if self.mode == "latency" {
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

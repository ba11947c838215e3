//! Measures how fast frames go through a backend, without any protocol above it.
//!
//! ```text
//! throughput BACKEND NETDEV ADDRESS                      receives until nothing comes for a second
//! throughput BACKEND NETDEV ADDRESS PEER [BYTES [SEC]]   sends packets of BYTES to PEER
//! ```

use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};
use rxe_net::{Backend, SendStatus};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [backend, netdev, address, rest @ ..] = &args[..] else {
        return Err("usage: throughput BACKEND NETDEV ADDRESS [PEER [BYTES [SEC]]]".into());
    };
    let address: IpAddr = address.parse()?;
    let mut backend = rxe_net::open(backend.parse()?, netdev, &[address])?;
    match rest {
        [] => receive(&mut backend),
        [peer, rest @ ..] => {
            let bytes = rest.first().map_or(Ok(1040), |b| b.parse())?;
            let seconds = rest.get(1).map_or(Ok(2), |s| s.parse())?;
            send(&mut backend, address, peer.parse()?, bytes, Duration::from_secs(seconds))
        }
    }
}

fn send(
    backend: &mut dyn Backend,
    from: IpAddr,
    to: IpAddr,
    bytes: usize,
    time: Duration,
) -> Result<(), Box<dyn Error>> {
    let net = NetHeader::outgoing(from, to, UDP_PORT);
    let packet = vec![0x5a; bytes];
    let start = Instant::now();
    let mut batch = TxBatch::new(backend.capabilities().tx);
    while start.elapsed() < time {
        while !batch.is_full() {
            batch.push(net, bytes, |_, buf| buf.extend_from_slice(&packet));
        }
        while backend.send(&mut batch)? != SendStatus::Done {
            wait(backend, PollFlags::IN | PollFlags::OUT, Duration::from_secs(1))?;
        }
    }
    report("sent", backend.counters().tx_bytes, start.elapsed());
    println!("{:?}", backend.counters());
    Ok(())
}

fn receive(backend: &mut dyn Backend) -> Result<(), Box<dyn Error>> {
    wait(backend, PollFlags::IN, Duration::from_secs(60))?;
    let start = Instant::now();
    let mut last = start;
    loop {
        if backend.receive(1000, &mut |_| {})? > 0 {
            last = Instant::now();
        } else if !wait(backend, PollFlags::IN, Duration::from_secs(1))? {
            break;
        }
    }
    report("received", backend.counters().rx_bytes, last - start);
    println!("{:?}", backend.counters());
    Ok(())
}

fn report(what: &str, bytes: u64, time: Duration) {
    #[expect(clippy::cast_precision_loss, reason = "for a person")]
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    println!("{what} {bytes} bytes in {time:.2?}: {rate:.2} GB/s");
}

/// Waits for any of the backend's descriptors. Returns whether one became ready.
fn wait(backend: &dyn Backend, what: PollFlags, limit: Duration) -> Result<bool, Box<dyn Error>> {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, what)).collect();
    Ok(poll(&mut polls, Some(&Timespec::try_from(limit)?))? > 0)
}

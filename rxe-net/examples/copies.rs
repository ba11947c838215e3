//! Measures what two copies through shared memory reach on this machine: the most that messages between
//! processes of one host can, and a bare ping-pong beside their latency. Nothing of the protocol is in it,
//! only the ring.
//!
//! ```text
//! copies [BYTES]    messages of BYTES (65536) for a second, then a ping-pong of 8 bytes
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rxe_net::untrusted::ring::{Broken, Consumer, MAX_RECORD, Producer};

/// What a record is.
const DATA: u32 = 1;
const PING: u32 = 2;
const END: u32 = 3;

const PINGS: u32 = 500_000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [other, pid, fd] if other == "other" => answer(pid, fd),
        [] => measure(64 << 10),
        [bytes] => measure(bytes.parse()?),
        _ => Err("usage: copies [BYTES]".into()),
    }
}

/// The end that sends, and measures.
fn measure(bytes: usize) -> Result<(), Box<dyn Error>> {
    if !(1..=MAX_RECORD).contains(&bytes) {
        return Err(format!("a message has 1 to {MAX_RECORD} bytes").into());
    }
    let (mut out, memory) = Producer::create()?;
    let (pid, fd) = (std::process::id().to_string(), memory.as_raw_fd().to_string());
    let mut other = Command::new(std::env::current_exe()?)
        .args(["other", &pid, &fd])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(other.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let mut back = open(&other.id().to_string(), line.trim())?;

    let message = vec![0x5a; bytes];
    let mut buf = buffer();
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(1) {
        push(&mut out, DATA, &message)?;
        sent += bytes;
    }
    // The answer comes when all has been taken.
    push(&mut out, PING, &[0; 8])?;
    pop(&mut back, &mut buf)?;
    #[expect(clippy::cast_precision_loss, reason = "for a person")]
    let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("two copies of {bytes} bytes: {rate:.2} GB/s");

    let start = Instant::now();
    for _ in 0..PINGS {
        push(&mut out, PING, &[0; 8])?;
        pop(&mut back, &mut buf)?;
    }
    let one_way = start.elapsed() / (2 * PINGS);
    println!("8 bytes one way: {:.3} us", one_way.as_secs_f64() * 1e6);
    push(&mut out, END, &[0])?;
    other.wait()?;
    Ok(())
}

/// The end that receives, and answers.
fn answer(pid: &str, fd: &str) -> Result<(), Box<dyn Error>> {
    let mut from = open(pid, fd)?;
    let (mut back, memory) = Producer::create()?;
    println!("{}", memory.as_raw_fd());
    let mut buf = buffer();
    loop {
        match pop(&mut from, &mut buf)? {
            PING => push(&mut back, PING, &[0; 8])?,
            END => return Ok(()),
            _ => {}
        }
    }
}

/// The ring that another process has made under this descriptor.
fn open(pid: &str, fd: &str) -> Result<Consumer, Box<dyn Error>> {
    let file = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?;
    Ok(Consumer::open(&OwnedFd::from(file))?)
}

fn push(ring: &mut Producer, tag: u32, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    while !ring.push(tag, [bytes, &[]]).map_err(broken)? {
        std::hint::spin_loop();
    }
    Ok(())
}

fn pop(ring: &mut Consumer, buf: &mut [u8; MAX_RECORD]) -> Result<u32, Box<dyn Error>> {
    loop {
        if let Some((tag, _)) = ring.pop(buf).map_err(broken)? {
            return Ok(tag);
        }
        std::hint::spin_loop();
    }
}

fn buffer() -> Box<[u8; MAX_RECORD]> {
    Box::new([0; MAX_RECORD])
}

fn broken(_: Broken) -> String {
    "the ring is broken".into()
}

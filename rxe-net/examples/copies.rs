//! Measures how fast messages pass between two processes of one host, without a protocol.
//! One measurement copies each message twice, through the ring; the other copies it once, into
//! memory that both processes have mapped. A ping-pong through the ring measures latency.
//!
//! ```text
//! copies [BYTES [WAY]]    messages of BYTES (65536), a second in each way, then a ping-pong of 8 bytes
//! ```
//!
//! WAY selects the measurements whose printed name contains this text. With two copies, a message
//! of more than 64 KiB goes through the ring in parts of that size. With one copy, a record of 8
//! bytes in the ring announces each message.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::slice;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Signal, set_parent_process_death_signal};
use rxe_net::untrusted::ring::{Broken, Consumer, MAX_RECORD, Producer};

/// The tags of records.
const DATA: u32 = 1;
const PING: u32 = 2;
const END: u32 = 3;

const PINGS: u32 = 500_000;

/// The longest message in bytes.
const MAX_MESSAGE: usize = 16 << 20;

/// The most bytes of a message that one record carries.
const PART: usize = 64 << 10;

type Done = Result<(), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [other, pid, fd] if other == "other" => answer(pid, fd),
        [] => measure(64 << 10, ""),
        [bytes] => measure(bytes.parse()?, ""),
        [bytes, way] => measure(bytes.parse()?, way),
        _ => Err("usage: copies [BYTES [WAY]]".into()),
    }
}

/// Runs the sending end, with the measurements whose name contains `way`.
fn measure(bytes: usize, way: &str) -> Result<(), Box<dyn Error>> {
    if !(1..=MAX_MESSAGE).contains(&bytes) {
        return Err(format!("a message has 1 to {MAX_MESSAGE} bytes").into());
    }
    let (mut out, memory) = Producer::create()?;
    let (pid, fd) = (std::process::id().to_string(), memory.as_raw_fd().to_string());
    let mut other = Command::new(std::env::current_exe()?)
        .args(["other", &pid, &fd])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(other.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let other_id = other.id();
    let [ring, inbox] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err("the other end said nothing".into());
    };
    let mut back = open(&other_id.to_string(), ring)?;
    let inbox = map(&file_of(&other_id.to_string(), inbox)?)?;

    let message = vec![0x5a; bytes];
    let mut buf = buffer();
    let mut stream = |what: &str, send: &mut dyn FnMut(&mut Producer) -> Done| -> Done {
        if !what.contains(way) {
            return Ok(());
        }
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < Duration::from_secs(1) {
            send(&mut out)?;
            sent += bytes;
        }
        // The receiver answers once it has taken all messages out of the ring.
        push(&mut out, PING, &[0; 8])?;
        pop(&mut back, &mut buf)?;
        #[expect(clippy::cast_precision_loss, reason = "for a person")]
        let rate = sent as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{what}: {rate:.5} GB/s");
        Ok(())
    };
    stream("two copies", &mut |out| {
        message.chunks(PART).try_for_each(|part| push(out, DATA, part))
    })?;
    stream("one copy, mapped", &mut |out| {
        inbox[..bytes].copy_from_slice(&message);
        push(out, DATA, &[0; 8])
    })?;

    let what = "8 bytes one way";
    if what.contains(way) {
        let start = Instant::now();
        for _ in 0..PINGS {
            push(&mut out, PING, &[0; 8])?;
            pop(&mut back, &mut buf)?;
        }
        let one_way = start.elapsed() / (2 * PINGS);
        println!("{what}: {:.3} us", one_way.as_secs_f64() * 1e6);
    }
    push(&mut out, END, &[0])?;
    other.wait()?;
    Ok(())
}

/// Runs the receiving end, which answers pings.
fn answer(pid: &str, fd: &str) -> Result<(), Box<dyn Error>> {
    // This process polls in an endless loop, so it must not outlive its parent.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut from = open(pid, fd)?;
    let (mut back, memory) = Producer::create()?;
    let inbox = memfd_create("inbox", MemfdFlags::empty())?;
    ftruncate(&inbox, MAX_MESSAGE as u64)?;
    println!("{} {}", memory.as_raw_fd(), inbox.as_raw_fd());
    let mut buf = buffer();
    loop {
        match pop(&mut from, &mut buf)? {
            PING => push(&mut back, PING, &[0; 8])?,
            END => return Ok(()),
            _ => {}
        }
    }
}

/// Opens the ring that another process has created under this descriptor.
fn open(pid: &str, fd: &str) -> Result<Consumer, Box<dyn Error>> {
    Ok(Consumer::open(&OwnedFd::from(file_of(pid, fd)?))?)
}

/// Opens the file behind another process's descriptor.
fn file_of(pid: &str, fd: &str) -> std::io::Result<File> {
    File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))
}

/// Maps the inbox until the process ends.
fn map(file: &impl AsFd) -> std::io::Result<&'static mut [u8]> {
    let (both, shared) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: A new mapping of a file of this length, which nothing unmaps. The receiver never reads it,
    // so no reader of it sees a torn write.
    Ok(unsafe {
        let at = mmap(std::ptr::null_mut(), MAX_MESSAGE, both, shared, file, 0)?;
        slice::from_raw_parts_mut(at.cast(), MAX_MESSAGE)
    })
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

//! The same as hello.c: two programs connect a queue pair by hand, send a message, write and read
//! memory. Each may be this one or the one in C.
//!
//! `hello` waits; `hello SERVER` connects.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rxe_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, Key, MemoryRegion, Mtu, QueuePair,
    Remote, Status,
};

const SIZE: usize = 4096;
const TCP_PORT: u16 = 18515;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let server = std::env::args().nth(1);

    let device = Device::options("lo").open()?;
    let pd = device.create_pd()?;
    let cq = device.create_cq(16)?;
    let remote_rights = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = pd.register(SIZE, Access::LOCAL_WRITE | remote_rights)?;
    let qp = pd.qp(&cq).build()?;

    qp.to_init(remote_rights)?;
    println!("RESET -> INIT");
    if server.is_none() {
        qp.recv(1, &[memory.slice(..SIZE / 2)])?;
    }

    let mut stream = BufReader::new(meet(server.as_deref())?);
    let (peer, place) = exchange(&mut stream, &qp, &memory)?;
    let options = ConnectOptions { mtu: Some(Mtu::M1024), ..ConnectOptions::default() };
    qp.to_rtr(&peer, &options)?;
    println!("INIT -> RTR");
    qp.to_rts(&options)?;
    println!("RTR -> RTS");
    barrier(&mut stream)?;

    if server.is_some() {
        memory.write_at(0, b"hello\0")?;
        qp.send(2, &[memory.slice(..6)]).post()?;
        wait_for("SEND", &cq)?;

        let place = Remote { addr: place.addr + SIZE as u64 / 2, ..place };
        memory.write_at(0, b"written\0")?;
        qp.write(3, &[memory.slice(..8)], place).post()?;
        wait_for("WRITE", &cq)?;
        qp.read(4, &[memory.slice(SIZE / 2..SIZE / 2 + 8)], place).post()?;
        wait_for("READ", &cq)?;
        println!("read back: {}", text(&memory, SIZE / 2)?);
    } else {
        wait_for("receive", &cq)?;
        println!("message: {}", text(&memory, 0)?);
    }
    barrier(&mut stream)?;
    if server.is_none() {
        println!("memory: {}", text(&memory, SIZE / 2)?);
    }
    Ok(())
}

/// A TCP connection: verbs say nothing about how two sides learn of each other.
fn meet(server: Option<&str>) -> Result<TcpStream> {
    Ok(match server {
        Some(server) => TcpStream::connect((server, TCP_PORT))?,
        None => TcpListener::bind(("0.0.0.0", TCP_PORT))?.accept()?.0,
    })
}

/// Each side sends one line: `qpn=0x… psn=0x… mtu=… gid=… addr=0x… rkey=0x…`
fn exchange(
    stream: &mut BufReader<TcpStream>,
    qp: &QueuePair,
    memory: &MemoryRegion,
) -> Result<(Endpoint, Remote)> {
    let Remote { addr, rkey } = memory.remote(0);
    let rkey = rkey.value();
    writeln!(stream.get_mut(), "{} addr={addr:#x} rkey={rkey:#x}", qp.endpoint())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    print!("peer: {line}");

    let (endpoint, rest) = line.split_once(" addr=0x").ok_or("no addr= in the peer's line")?;
    let (addr, rkey) = rest.trim().split_once(" rkey=0x").ok_or("no rkey= in the peer's line")?;
    let addr = u64::from_str_radix(addr, 16)?;
    let rkey = Key::new(u32::from_str_radix(rkey, 16)?);
    Ok((endpoint.parse()?, Remote { addr, rkey }))
}

/// Neither side goes on before the other has come here.
fn barrier(stream: &mut BufReader<TcpStream>) -> Result<()> {
    stream.get_mut().write_all(b"ready\n")?;
    stream.read_line(&mut String::new())?;
    Ok(())
}

/// Sleeps until a completion is there.
fn wait_for(what: &str, cq: &CompletionQueue) -> Result<()> {
    let done = cq.wait_one(Duration::from_secs(10))?;
    println!("{what}: {}", done.status);
    if done.status != Status::Success {
        return Err(done.status.meaning().into());
    }
    Ok(())
}

/// The text at this place of the memory, up to its NUL.
fn text(memory: &MemoryRegion, from: usize) -> Result<String> {
    let bytes = memory.to_vec(from..from + 16)?;
    Ok(bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect())
}

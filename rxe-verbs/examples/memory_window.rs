//! A client lends part of its memory to a server for one request, through a type 2 memory window.
//! The server's answer is a SEND that invalidates the window's key, which ends the loan. The memory
//! is registered only once; lending and returning it needs no registration and no further message.
//!
//! Run it: `cargo run -p rxe-verbs --example memory_window`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{
    Access, ConnectOptions, Device, Immediate, Key, Remote, Result, Status, WindowType,
};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(client: IpAddr, server: IpAddr) -> Result<()> {
    let client = Device::options("lo").address(client).open()?;
    let server = Device::options("lo").address(server).open()?;
    let (client_pd, server_pd) = (client.create_pd()?, server.create_pd()?);
    let (client_cq, server_cq) = (client.create_cq(16)?, server.create_cq(16)?);
    let asks = client_pd.qp(&client_cq).build()?;
    let answers = server_pd.qp(&server_cq).build()?;
    asks.connect(&answers.endpoint(), &ConnectOptions::default())?;
    answers.connect(&asks.endpoint(), &ConnectOptions::default())?;

    // Peers have no rights to this memory, but memory windows may be bound to it.
    let memory = client_pd.register(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    let window = client_pd.create_window(WindowType::Type2)?;
    let inbox = server_pd.register(64, Access::LOCAL_WRITE)?;
    answers.recv(1, &[inbox.slice(..)])?;
    asks.recv(2, &[])?;

    // The client opens 16 bytes for the answer, and sends their address and key to the server. The
    // request may be posted directly after the bind: it is not sent before the window is bound.
    let bind = asks.bind(3, &window, &memory, 1024..1040, Access::REMOTE_WRITE).unsignaled();
    let key = bind.new_rkey().expect("a bind has one");
    bind.post()?;
    let mut request = Vec::from(memory.remote(1024).addr.to_be_bytes());
    request.extend(key.value().to_be_bytes());
    asks.send_bytes(4, &request).unsignaled().post()?;

    // The server writes its answer there and returns the window. One completion covers both.
    let done = server_cq.wait_one(TIMEOUT)?;
    let request = inbox.to_vec(..done.byte_len as usize)?;
    let (addr, rkey) = request.split_first_chunk().expect("12 bytes");
    let addr = u64::from_be_bytes(*addr);
    let rkey = Key::new(u32::from_be_bytes(rkey.try_into().expect("4 bytes")));
    answers.write_bytes(5, b"forty-two", Remote { addr, rkey }).unsignaled().post()?;
    answers.send_bytes(6, b"").invalidate(rkey).post()?;
    assert_eq!(server_cq.wait_one(TIMEOUT)?.status, Status::Success);

    // Once the client has this completion, no peer can write there any more.
    let done = client_cq.wait_one(TIMEOUT)?;
    assert_eq!(done.imm, Some(Immediate::Invalidated(key)));
    let answer = memory.to_vec(1024..1033)?;
    println!("the answer is {:?}", String::from_utf8_lossy(&answer));

    // If the server tries nevertheless, its WRITE fails and the connection ends.
    answers.write_bytes(7, b"too late", Remote { addr, rkey }).post()?;
    let late = server_cq.wait_one(TIMEOUT)?;
    println!("and later: {}", late.status);
    assert_eq!(late.status, Status::RemoteAccess);
    Ok(())
}

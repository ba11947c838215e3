//! A test of a program on `rxe-verbs`, as `cargo test` runs it: a message from one device to another, both on
//! loopback.

use std::time::Duration;

use rxe_verbs::{Access, ConnectOptions, Device, Result};

#[test]
fn a_message_arrives() -> Result<()> {
    let [a, b] = ["127.0.0.1", "127.0.0.2"]
        .map(|ip| Device::options("lo").address(ip.parse().unwrap()).open());
    transfer(&a?, &b?)
}

/// What is tested. Yours is your program's.
fn transfer(a: &Device, b: &Device) -> Result<()> {
    let (a_cq, b_cq) = (a.create_cq(4)?, b.create_cq(4)?);
    let (a_pd, b_pd) = (a.create_pd()?, b.create_pd()?);
    let (sender, receiver) = (a_pd.qp(&a_cq).build()?, b_pd.qp(&b_cq).build()?);
    sender.connect(&receiver.endpoint(), &ConnectOptions::default())?;
    receiver.connect(&sender.endpoint(), &ConnectOptions::default())?;

    let inbox = b_pd.register(64, Access::LOCAL_WRITE)?;
    receiver.recv(1, &[inbox.slice(..)])?;
    sender.send_bytes(2, b"hello").post()?;
    let done = b_cq.wait_one(Duration::from_secs(10))?;
    assert_eq!(inbox.to_vec(..done.byte_len as usize)?, b"hello");
    Ok(())
}

//! Datagrams (UD): one unconnected queue pair exchanges messages with any other.
//! Alice asks; Bob answers the sender of the question. A datagram holds at most one path MTU, and
//! the network may lose it.
//!
//! Run it: `cargo run -p rxe-verbs --example datagrams`

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rxe_verbs::{Access, Device, Gid, Qkey, QpType, Result};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The length of the IP header (GRH) that is written in front of each received datagram.
const GRH: usize = 40;

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(alice_ip: IpAddr, bob_ip: IpAddr) -> Result<()> {
    let alice = Device::options("lo").address(alice_ip).open()?;
    let bob = Device::options("lo").address(bob_ip).open()?;
    let (alice_pd, bob_pd) = (alice.create_pd()?, bob.create_pd()?);
    let (alice_cq, bob_cq) = (alice.create_cq(16)?, bob.create_cq(16)?);

    // The Q_Key works like a password: a queue pair accepts only datagrams that carry its own Q_Key.
    let qkey = Qkey::new(0x0b0b_0b0b);
    let alice_qp = alice_pd.qp(&alice_cq).service(QpType::Ud).qkey(qkey).build()?;
    let bob_qp = bob_pd.qp(&bob_cq).service(QpType::Ud).qkey(qkey).build()?;
    alice_qp.activate()?;
    bob_qp.activate()?;

    // Each datagram uses one receive, which must have 40 bytes more than the datagram.
    let alice_inbox = alice_pd.register(GRH + 1024, Access::LOCAL_WRITE)?;
    let bob_inbox = bob_pd.register(GRH + 1024, Access::LOCAL_WRITE)?;
    alice_qp.recv(1, &[alice_inbox.slice(..)])?;
    bob_qp.recv(2, &[bob_inbox.slice(..)])?;

    // An address handle is the route to an address. The number of the queue pair there must be known.
    let to_bob = alice_pd.create_ah_to(Gid::from(bob_ip))?;
    alice_qp.send_bytes(3, b"What time is it, Bob?").to(&to_bob, bob_qp.qpn(), qkey).post()?;
    let sent = alice_cq.wait_one(TIMEOUT)?;
    println!("alice's datagram {} has left: {}", sent.id, sent.status);

    // Bob's completion and the GRH name the sender, and Bob answers it.
    let asked = bob_cq.wait_one(TIMEOUT)?;
    let question = bob_inbox.to_vec(GRH..asked.byte_len as usize)?;
    let back = bob_pd.ah_from_completion(&asked, &bob_inbox.to_vec(..GRH)?)?;
    println!(
        "bob received {:?} from QP {} at {}",
        String::from_utf8_lossy(&question),
        asked.src_qp,
        back.address().dgid.to_ip()
    );
    bob_qp.send_bytes(4, b"High time.").to(&back, asked.src_qp, qkey).post()?;

    let answered = alice_cq.wait_one(TIMEOUT)?;
    let answer = alice_inbox.to_vec(GRH..answered.byte_len as usize)?;
    println!("alice received {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

//! Packets that kernel `rdma_rxe` or Wireshark 4.0 does not support, as they appear on the wire.
//! Each exchange between two devices is captured and decoded, and so is the capture in
//! `pcaps/ours`. `RXE_PCAPS=$PWD/pcaps/ours` records those captures again.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::*;
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{Opcode, Packet, icrc};
use rxe_lab::capture::{Capture, Kept};
use rxe_verbs::*;

/// Captures an exchange at the second of two devices. Returns the file, or `None` if it was
/// recorded for `pcaps/ours`, which is checked anyway.
fn capture(name: &str, talk: impl FnOnce(Device, Device)) -> Option<PathBuf> {
    let kept = std::env::var_os("RXE_PCAPS").map(|folder| PathBuf::from(folder).join(name));
    let scratch = || std::env::temp_dir().join(format!("rxe-{}-{name}", std::process::id()));
    let path = kept.clone().unwrap_or_else(scratch).with_extension("pcapng");
    let b = Device::options("lo").address(address()).pcap(&path).open().unwrap();
    // The file is complete when the devices are dropped.
    talk(open(address()), b);
    kept.is_none().then_some(path)
}

/// Captures an exchange and checks that it has the needed opcodes. The kept capture with this name
/// must have them too.
fn shows(name: &str, needed: &[Opcode], talk: impl FnOnce(Device, Device)) {
    let made = capture(name, talk);
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/ours").join(name);
    let has_tshark = Command::new("tshark").arg("-v").output().is_ok();
    if !has_tshark {
        skipped(&format!("{name} in tshark"), "tshark is not installed");
    }
    for path in [Some(kept.with_extension("pcapng")), made.clone()].into_iter().flatten() {
        let opcodes = opcodes(&path);
        for &opcode in needed {
            assert!(opcodes.contains(&opcode), "{}: no {opcode:?}: {opcodes:?}", path.display());
        }
        if has_tshark {
            tshark_finds_the_same(&path, &opcodes);
        }
    }
    if let Some(made) = made {
        std::fs::remove_file(made).unwrap();
    }
}

/// Returns the opcodes of all packets. Checks that each packet is well-formed and has the right
/// ICRC.
fn opcodes(path: &Path) -> Vec<Opcode> {
    let capture = Capture::open(path).unwrap();
    let decode = |packet: &Kept| {
        let (_, datagram) = parse_ethernet(&packet.frame).unwrap();
        let frame = datagram.frame().unwrap();
        assert_eq!(icrc::check(&frame.net, frame.payload), Ok(()));
        Packet::parse(frame.payload).unwrap().opcode()
    };
    capture.frames.iter().map(decode).collect()
}

/// Checks that tshark reads the same opcodes and finds nothing malformed. tshark 4.0 has no name
/// for most of these opcodes.
fn tshark_finds_the_same(path: &Path, opcodes: &[Opcode]) {
    let tshark = |arguments: &[&str]| {
        // Otherwise tshark would look for NFS in payloads.
        let command = Command::new("tshark")
            .args(["--disable-heuristic", "rpcrdma_infiniband", "-r"])
            .arg(path)
            .args(arguments)
            .output();
        String::from_utf8_lossy(&command.unwrap().stdout).into_owned()
    };
    let found = tshark(&["-T", "fields", "-e", "infiniband.bth.opcode"]);
    let found: Vec<u8> = found.lines().map(|opcode| opcode.parse().unwrap()).collect();
    assert_eq!(found, opcodes.iter().map(|opcode| opcode.0).collect::<Vec<_>>());
    let malformed = tshark(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
    assert_eq!(malformed, "");
}

#[test]
fn xrc() {
    let needed = [
        Opcode::XRC_SEND_ONLY,
        Opcode::XRC_SEND_ONLY_WITH_IMMEDIATE,
        Opcode::XRC_WRITE_FIRST,
        Opcode::XRC_WRITE_LAST,
        Opcode::XRC_WRITE_ONLY_WITH_IMMEDIATE,
        Opcode::XRC_READ_REQUEST,
        Opcode::XRC_READ_RESPONSE_FIRST,
        Opcode::XRC_READ_RESPONSE_LAST,
        Opcode::XRC_ACKNOWLEDGE,
        Opcode::XRC_COMPARE_SWAP,
        Opcode::XRC_FETCH_ADD,
        Opcode::XRC_ATOMIC_ACKNOWLEDGE,
    ];
    shows("xrc", &needed, |a, b| {
        let client = Side::new(a);
        let initiator = client.pd.qp(&client.cq).service(QpType::XrcSend).build().unwrap();
        let domain = b.create_xrc_domain().unwrap();
        let target = domain.qp().build().unwrap();
        connect(&initiator, &target);
        let server = Side::new(b);
        let srq = server.pd.create_xrc_srq(&domain, &server.cq, 8, 1).unwrap();
        let (theirs, ours) = (server.region(8192), client.region(8192));
        (0..5).for_each(|id| srq.recv(id, &[theirs.slice(..4096)]).unwrap());
        let (word, number) = (theirs.remote(8184), srq.number());
        let two = ours.slice(..5000);
        for request in [
            initiator.send_bytes(1, b"send only"),
            initiator.send(2, &[ours.slice(..4096)]).imm(7),
            initiator.write(3, &[two], theirs.remote(0)),
            initiator.write_bytes(4, b"write", theirs.remote(0)).imm(7),
            initiator.read(5, &[two], theirs.remote(0)),
            initiator.compare_swap(6, ours.slice(..8), word, 0, 1),
            initiator.fetch_add(7, ours.slice(..8), word, 1),
        ] {
            request.to_srq(number).post().unwrap();
            client.ok();
        }
    });
}

#[test]
fn windows_atomic_write_and_flush() {
    let needed = [
        Opcode::RC_WRITE_ONLY,
        Opcode::RC_SEND_ONLY_WITH_INVALIDATE,
        Opcode::RC_ATOMIC_WRITE,
        Opcode::RC_FLUSH,
        Opcode::RC_READ_RESPONSE_ONLY,
    ];
    shows("extensions", &needed, |a, b| {
        let (a, b) = (Side::new(a), Side::new(b));
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL;
        connect_with(&a.qp, &b.qp, &ConnectOptions { access, ..patient() });
        let lent = Access::LOCAL_WRITE | Access::MW_BIND | access;
        let theirs = b.pd.register(4096, lent).unwrap();
        let window = b.pd.create_window(WindowType::Type2).unwrap();
        let bind = b.qp.bind(1, &window, &theirs, 0..64, Access::REMOTE_WRITE);
        let rkey = bind.new_rkey().unwrap();
        bind.post().unwrap();
        b.ok();
        b.qp.recv(2, &[]).unwrap();
        let lent = Remote { addr: theirs.addr(), rkey };
        for request in [
            a.qp.write_bytes(3, b"through the window", lent),
            a.qp.send_bytes(4, b"").invalidate(rkey),
            a.qp.atomic_write(5, 7, theirs.remote(8)),
            a.qp.flush(6, theirs.remote(0), 64, Placement::GLOBAL),
            a.qp.flush_region(7, theirs.rkey(), Placement::GLOBAL),
        ] {
            request.post().unwrap();
            a.ok();
        }
    });
}

//! Tests of endpoints on two datagram sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;

use super::*;

/// Opens the endpoint `10.9.0.N`, whose socket is `own` in this directory. The other end's socket
/// is `peer`.
fn open(dir: &tempfile::TempDir, n: u8, own: &str, peer: &str) -> Result<L2Backend, NetError> {
    let [own, peer] = [own, peer].map(|name| dir.path().join(name).display().to_string());
    let text = format!("dgram:{own},{peer} address 10.9.0.{n}/24 mac 02:00:00:00:00:0{n} nodad");
    L2Backend::open(&L2Config::from_words(text.split_whitespace()).unwrap())
}

/// Sends a batch from 10.9.0.A to 10.9.0.B. The other end receives meanwhile, because a socket
/// holds few datagrams.
fn exchange((from, a): (&mut L2Backend, u8), (to, b): (&mut L2Backend, u8)) {
    let [src, dst] = [a, b].map(|n| format!("10.9.0.{n}"));
    let (mut packets, mut got, mut was_full) = (batch(from, &src, &dst), Vec::new(), false);
    let begun = Instant::now();
    while got.len() < COUNT {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} packets came", got.len());
        let _mark = NonBlocking::enter();
        was_full |= from.send(&mut packets).unwrap() == SendStatus::Congested;
        // Answers to neighbour requests.
        from.receive(64, &mut |_| panic!("nobody has sent this")).unwrap();
        let sink = &mut |f: &Frame<'_>| {
            got.extend(f.packets().map(|(net, bytes)| (net, bytes.to_vec())));
        };
        to.receive(4, sink).unwrap();
    }
    check(&got, &src, &dst);
    // The second batch does not wait in the neighbour table.
    let limit = fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap();
    if from.counters().tx_packets > COUNT as u64 && limit.trim().parse::<usize>().unwrap() < COUNT {
        assert!(was_full);
    }
}

#[test]
fn each_datagram_is_a_frame_and_none_is_lost_when_there_is_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let mut near = open(&dir, 1, "near", "far").unwrap();
    let mut far = open(&dir, 2, "far", "near").unwrap();
    for _ in 0..2 {
        exchange((&mut near, 1), (&mut far, 2));
        exchange((&mut far, 2), (&mut near, 1));
    }
    assert_eq!(near.counters().tx_packets, 2 * COUNT as u64);
    let mode = fs::metadata(dir.path().join("near")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[test]
fn the_descriptor_tells_when_there_is_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let far = UnixDatagram::bind(dir.path().join("far")).unwrap();
    let mut near = open(&dir, 1, "near", "far").unwrap();
    // The endpoint has announced its addresses.
    far.set_nonblocking(true).unwrap();
    while far.recv(&mut [0; 100]).is_ok() {}
    let mut frames = 0;
    while near.link.has_room() {
        near.link.push(&[&[7; 60]]).unwrap();
        frames += 1;
    }
    near.link.flush().unwrap();
    let readable = |near: &L2Backend| {
        let fd = near.link.shared();
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    };
    assert!(!readable(&near));
    for _ in 0..frames {
        assert_eq!(far.recv(&mut [0; 100]).unwrap(), 60);
        if readable(&near) {
            near.link.flush().unwrap();
        }
    }
    assert!(near.link.has_room() && !readable(&near));
}

#[test]
fn the_other_end_may_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut near = open(&dir, 1, "near", "far").unwrap();
    let mut far = open(&dir, 2, "far", "near").unwrap();
    exchange((&mut near, 1), (&mut far, 2));
    drop(far);
    let mut packets = batch(&near, "10.9.0.1", "10.9.0.2");
    send_all(&mut near, &mut packets);
    assert_eq!(near.counters().tx_down, COUNT as u64);
    let mut far = open(&dir, 2, "far", "near").unwrap();
    exchange((&mut near, 1), (&mut far, 2));
    exchange((&mut far, 2), (&mut near, 1));
}

#[test]
fn a_path_in_use_is_refused_and_one_that_was_left_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let near = open(&dir, 1, "near", "far").unwrap();
    let error = open(&dir, 2, "near", "other").err().unwrap().to_string();
    assert!(error.contains("is in use by another process"), "{error}");
    drop(near);
    assert!(!dir.path().join("near").exists());
    drop(UnixDatagram::bind(dir.path().join("near")).unwrap());
    open(&dir, 1, "near", "far").unwrap();

    let error = open(&dir, 1, "none/near", "far").err().unwrap().to_string();
    assert!(error.starts_with("cannot make the first socket of dgram:"), "{error}");
    let _stream = std::os::unix::net::UnixListener::bind(dir.path().join("stream")).unwrap();
    let error = open(&dir, 1, "near", "stream").err().unwrap().to_string();
    assert!(error.starts_with("cannot send to the second socket of dgram:"), "{error}");
    fs::write(dir.path().join("file"), "kept").unwrap();
    open(&dir, 1, "file", "far").err().unwrap();
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"kept");
}

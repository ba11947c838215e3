//! Attacks by others on this host. They are another user, a broken or stopped process of the same
//! user, and a process that sees other directories. Each is a row of docs/en/know/security.md.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::*;
use crate::backends::shm::Shm;
use crate::host::control::ControlMessage;

/// Only root can act as several users without further setup.
const OTHER_USER: [&str; 3] = ["setpriv", "--reuid=65534", "--clear-groups"];

/// Runs this test program as another user, at [`an_attacker`], and returns its output. Returns
/// `None` and skips the test where no other user is available.
fn attack(test: &str) -> Option<String> {
    let [program, args @ ..] = OTHER_USER;
    let Output { stdout, stderr, .. } = Command::new(program)
        .args(args)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "host::tests::attacks::an_attacker", "--nocapture", "--ignored"])
        .env("RXE_TEST_ATTACKS", test)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if !stdout.contains("ATTACKED") {
        skipped(test, "no other user can be had here");
        eprintln!("{stdout}{}", String::from_utf8_lossy(&stderr));
        return None;
    }
    Some(stdout)
}

#[test]
#[ignore = "is not a test: others start it"]
fn an_attacker() {
    let Ok(what) = std::env::var("RXE_TEST_ATTACKS") else { return };
    let slow = slow_to_close();
    let mut reached = Vec::new();
    if what == "squats" {
        for directory in ["/dev/shm/rxe-0", "/tmp/rxe-0"] {
            fs::create_dir(directory).unwrap();
        }
    }
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    for name in table.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)) {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            None => SocketAddrUnix::new(name),
        };
        for kind in [SocketType::DGRAM, SocketType::SEQPACKET] {
            let flags = SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
            if rustix::net::connect(&socket, address.as_ref().unwrap()).is_ok() {
                reached.push(name.to_owned());
                hand_over(&socket, &slow);
            }
        }
    }
    println!("ATTACKED reached {reached:?}");
    // Closing it here would take a minute.
    std::mem::forget(slow);
}

/// Returns a connection with unread data and a linger time: its last close takes a minute.
fn slow_to_close() -> Vec<OwnedFd> {
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return Vec::new() };
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    let minute = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&stream, minute).unwrap();
    // The other end stays open and never reads.
    std::mem::forget(listener);
    vec![stream.into()]
}

fn hand_over(socket: &OwnedFd, fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let message = [std::io::IoSlice::new(b"rxe")];
    let _ = rustix::net::sendmsg(socket, &message, &mut control, SendFlags::DONTWAIT);
}

#[test]
fn another_user_reaches_none_of_a_device_s_sockets() {
    // In directories that this test creates.
    let setup = "ip link set lo up && mount -t tmpfs -o mode=1777 none /dev/shm";
    in_namespaces("-nm", setup, || {
        let shm = |address| {
            let udp = UdpBackend::open(&UdpConfig::new("lo", [ip(address)])).unwrap();
            Shm::new(udp, &[ip(address)]).unwrap()
        };
        let (mut a, mut b) = (shm(ADDRESS), shm("127.0.0.9"));
        a.watch(true);
        send(&mut b, "127.0.0.9", 1, &[1]);
        assert_eq!(next(&mut a), (1, 1));
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        for socket in ["/127.0.0.1/1", "/127.0.0.1/1.inbox", "/127.0.0.1/1.memory"] {
            assert!(table.lines().any(|line| line.ends_with(socket)), "{socket}:\n{table}");
        }
        let Some(said) = attack("another_user_reaches_none_of_a_device_s_sockets") else { return };
        assert!(said.contains("ATTACKED reached []"), "{said}");
        // Neither the open device nor a newcomer has noticed.
        send(&mut b, "127.0.0.9", 2, &[1]);
        assert_eq!((next(&mut a), block(&open())), ((1, 2), 2));
    });
}

/// Mounts empty directories where devices meet, and keeps this program accessible if it is in one
/// of them.
const EMPTY: &str = "ip link set lo up
    exec 3< \"$0\"
    mount -t tmpfs -o mode=1777 none /dev/shm && mount -t tmpfs -o mode=1777 none /tmp
    if ! [ -e \"$0\" ]; then
        mkdir -p \"${0%/*}\" && touch \"$0\" && mount -c --bind /proc/self/fd/3 \"$0\"
    fi
    exec 3<&-";

#[test]
fn squatting_on_the_directories_leaves_an_address_to_one_process_and_says_why() {
    in_namespaces("-nm", EMPTY, || {
        if attack("squats").is_none() {
            return;
        }
        let (mut a, mut from) =
            (open(), UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap());
        send(&mut from, "127.0.0.9", 1, &[1]);
        assert_eq!(next(&mut a), (1, 1));
        let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, NetError::NotShared { .. }), "{text}");
        for directory in ["/dev/shm/rxe-0", "/tmp/rxe-0"] {
            let why = format!("{directory}: belongs to user 65534, not 0");
            assert!(text.contains(&why), "{text}");
        }
        let remedy = "have /dev/shm/rxe-0 removed by user 65534 or root";
        assert!(text.ends_with(remedy), "{text}");
        drop(a);
        assert_eq!(block(&open()), 1);
    });
}

#[test]
fn one_squatted_directory_is_no_harm() {
    in_namespaces("-nm", &format!("{EMPTY}\nmkdir -m 755 /dev/shm/rxe-0"), || {
        let both = [open(), open()];
        assert!(fs::exists("/tmp/rxe-0").unwrap());
        // The third device finds the others although the preferred directory is free now, and so
        // does the next.
        fs::remove_dir("/dev/shm/rxe-0").unwrap();
        let all = [both, [open(), open()]].into_iter().flatten();
        assert!(all.map(|backend| block(&backend)).eq(1..=4));
    });
}

#[test]
fn a_process_that_sees_other_directories_is_named_and_shares_nothing() {
    in_namespaces("-Urnm", "ip link set lo up", || {
        let (mut own, mut from) =
            (open(), UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap());
        let private = "mount -t tmpfs none /dev/shm && exec \"$@\"";
        let mut other = Process::start(&["unshare", "-m", "sh", "-c", private, "sh"]);
        let said = other.says();
        let whom = format!("{ADDRESS} is in use by process {} (", std::process::id());
        assert!(said.contains(&whom) && said.contains("--ipc=host"), "{said}");
        other.kill();
        send(&mut from, "127.0.0.9", 1, &[1]);
        assert_eq!(next(&mut own), (1, 1));
    });
}

#[test]
fn whoever_holds_the_lock_of_an_address_too_long_is_named() {
    in_namespace("", || {
        let holder = Stopped::with_lock();
        let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
        holder.is_named(&error);
    });
}

#[test]
fn whoever_is_stopped_is_named_also_to_those_who_wait_behind_others() {
    in_namespace("", || {
        let stopped = Stopped::with_block_9(ADDRESS);
        // The newcomer waits for the stopped process.
        let _lock = lock(ADDRESS);
        let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
        stopped.is_named(&error);
    });
}

/// The newcomer asks again and again, and is turned away each time.
#[test]
fn whoever_answers_nonsense_without_end_is_named() {
    let answers: [fn(&UnixSocket); 3] = [
        // Closes the connection, with the question read or not.
        |_| {},
        |caller| drop(caller.receive(&mut [0; 64])),
        |caller| caller.send(b"nonsense", &[]).unwrap_or_default(),
    ];
    in_namespace("", || {
        for answer in answers {
            let holder = impostor(ADDRESS, 9);
            let done = AtomicBool::new(false);
            let error = thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        match holder.accept() {
                            Ok(caller) => answer(&caller),
                            Err(_) => thread::yield_now(),
                        }
                    }
                });
                let opened = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)]));
                done.store(true, Ordering::Relaxed);
                opened.err().unwrap()
            });
            assert!(matches!(error, NetError::NoAnswer { .. }), "{error}");
            let pid = format!("process {} ", std::process::id());
            assert!(error.to_string().starts_with(&pid), "{error}");
        }
    });
}

#[test]
fn a_descriptor_that_is_no_socket_of_the_address_is_not_taken() {
    let udp = |at: &str| OwnedFd::from(UdpSocket::bind(at).unwrap());
    let pipe = || rustix::pipe::pipe().unwrap().0;
    let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:4791").unwrap());
    // A valid group has such sockets only in its own network namespace.
    let elsewhere = || {
        let network = || {
            // SAFETY: only this thread, which ends immediately afterwards, is then in another
            // network namespace.
            #[expect(unsafe_code, reason = "no library offers it safely")]
            let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(rc, 0);
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
            assert!(up.success());
            udp("127.0.0.1:4791")
        };
        thread::scope(|scope| scope.spawn(network).join().unwrap())
    };
    in_namespace("", || {
        for foreign in [pipe(), tcp(), udp("127.0.0.2:4791"), udp("127.0.0.1:4792"), elsewhere()] {
            let holder = impostor(ADDRESS, 9);
            let error = thread::scope(|scope| {
                scope.spawn(|| {
                    let caller = loop {
                        match holder.accept() {
                            Ok(caller) => break caller,
                            Err(_) => thread::yield_now(),
                        }
                    };
                    while caller.receive(&mut [0; 64]).unwrap().is_none() {
                        thread::yield_now();
                    }
                    let answer = ControlMessage::Give { count: 1, last: 9 }.emit();
                    caller.send(&answer, &[foreign.as_fd()]).unwrap();
                });
                UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap()
            });
            assert!(matches!(error, NetError::ForeignSocket { .. }), "{error}");
            let text = error.to_string();
            let pid = format!("process {} ", std::process::id());
            assert!(text.starts_with(&pid) && text.contains("no UDP socket"), "{text}");
        }
    });
}

#[test]
fn callers_that_ask_nothing_keep_no_newcomer_out() {
    in_namespace("", || {
        let _first = open();
        let callers: Vec<_> = (0..300)
            .map(|_| {
                loop {
                    match UnixSocket::connect(&control(ADDRESS, 1)) {
                        Ok(caller) => break caller,
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                            thread::yield_now();
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            })
            .collect();
        assert_eq!(block(&open()), 2);
        // The first of the callers is not waited for any longer.
        assert_eq!(wait_for_answer(&callers[0], &mut [0; 8]).len, 0);
    });
}

#[test]
fn a_device_whose_descriptors_the_program_has_closed_is_closed_and_touches_no_file() {
    in_namespace("", || {
        let backend = open();
        // SAFETY: the owners of these descriptors handle that, or are not used any more: this
        // process runs only this test.
        #[expect(unsafe_code, reason = "does what a daemon does")]
        let rc = unsafe { libc::close_range(3, u32::MAX, 0) };
        assert_eq!(rc, 0);
        let path = |i: usize| format!("/proc/self/fd/{i}");
        // As many files as there were descriptors, under the same numbers.
        let files: Vec<fs::File> = (0..64)
            .map(|_| {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                fs::File::from(rustix::fs::memfd_create("program", flags).unwrap())
            })
            .collect();
        let high: Vec<OwnedFd> =
            files.iter().map(|file| rustix::io::fcntl_dupfd_cloexec(file, 512).unwrap()).collect();
        let numbers: Vec<_> = high.iter().map(AsRawFd::as_raw_fd).collect();
        assert!(numbers.contains(&512), "{numbers:?}");
        drop(backend);
        for (file, number) in files.iter().zip(numbers) {
            assert_eq!(file.metadata().unwrap().len(), 0, "something was written");
            assert!(fs::metadata(path(number.unsigned_abs() as usize)).is_ok(), "it was closed");
        }
    });
}

//! Socket options and ioctls that rustix lacks.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use crate::addr::RawAddr;

/// Sets a socket option whose value is an `int`.
pub fn set_int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Sets a socket option to these bytes. Not for options that contain pointers.
pub fn set_bytes(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes, the length of the slice.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    check(rc)
}

/// Requests a receive buffer of `bytes` bytes; the kernel may grant less.
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes);
}

/// Requests a send buffer of `bytes` bytes; the kernel may grant less.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes);
}

/// Tries `force`, which ignores the host's limit but needs CAP_NET_ADMIN, then `plain`.
fn set_buffer(fd: BorrowedFd<'_>, force: c_int, plain: c_int, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if set_int(fd, libc::SOL_SOCKET, force, bytes).is_err() {
        let _ = set_int(fd, libc::SOL_SOCKET, plain, bytes);
    }
}

/// Reads a socket option whose value is an `int`.
pub fn get_int(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len: libc::socklen_t = 4;
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    let rc =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    check(rc).map(|()| value)
}

/// Returns the cookie of a socket's network namespace, unique until the host reboots. Needs Linux
/// 5.14.
pub fn namespace_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    /// From `<asm-generic/socket.h>`.
    const SO_NETNS_COOKIE: c_int = 71;
    let mut value: u64 = 0;
    let mut len: libc::socklen_t = 8;
    let to = (&raw mut value).cast();
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &mut len)
    };
    check(rc).map(|()| value)
}

/// Returns a name for this thread's network namespace, the same for all processes in it.
pub fn network_namespace() -> String {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    let cookie = socket.map_err(io::Error::from).and_then(|fd| namespace_cookie(fd.as_fd()));
    cookie.map_or_else(
        |_| {
            // Linux before 5.14. An inode may be reused, but is unique among the namespaces that
            // exist.
            let namespace = std::fs::metadata("/proc/thread-self/ns/net");
            format!("inode-{}", namespace.map_or(0, |found| found.ino()))
        },
        |cookie| format!("{cookie:x}"),
    )
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The effective user ID.
    pub uid: u32,
    /// The process ID, if the process is visible in this PID namespace.
    pub pid: Option<u32>,
}

/// Returns the process at the other end of a Unix connection (SO_PEERCRED).
pub(crate) fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut value = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "12 bytes")]
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    };
    // The kernel reports process ID 0 for a process outside of this PID namespace.
    let pid = u32::try_from(value.pid).ok().filter(|pid| *pid != 0);
    check(rc).map(|()| Peer { uid: value.uid, pid })
}

/// Returns the datagrams that the socket lost because its receive buffer was full. Returns 0 if the
/// kernel does not tell.
pub fn drops(fd: BorrowedFd<'_>) -> u32 {
    /// The index of SK_MEMINFO_DROPS, the last number of SO_MEMINFO.
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    #[expect(clippy::cast_possible_truncation, reason = "36 bytes")]
    let mut len = size_of_val(&info) as libc::socklen_t;
    let value = info.as_mut_ptr().cast();
    // SAFETY: `info` has room for the `len` bytes that the kernel may write.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, value, &mut len)
    };
    if rc < 0 { 0 } else { info[DROPS] }
}

/// Binds a socket to an address of any family.
pub fn bind(fd: BorrowedFd<'_>, addr: &RawAddr) -> io::Result<()> {
    // SAFETY: the kernel reads `len` bytes, which are within the array: `CAPACITY` exceeds every
    // length that a RawAddr is created with.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), addr.bytes.as_ptr().cast(), addr.len.into()) };
    check(rc)
}

/// Returns the MTU of an interface: the largest IP packet, in bytes.
pub(crate) fn mtu(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<usize> {
    let request = interface_request(fd, netdev, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Returns the type (`ARPHRD_*`) and the hardware address of an interface.
pub(crate) fn hardware_address(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<(u16, [u8; 6])> {
    let request = interface_request(fd, netdev, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR has filled in this member.
    let hw = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(hw.sa_data) {
        *to = from.to_ne_bytes()[0];
    }
    Ok((hw.sa_family, mac))
}

/// Returns whether an interface is administratively up (IFF_UP).
pub fn is_up(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<bool> {
    let request = interface_request(fd, netdev, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_UP != 0)
}

/// `struct ethtool_channels` of `<linux/ethtool.h>`: the numbers of queues of an interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx_count: u32,
    /// The queues that only transmit.
    pub tx_count: u32,
    other_count: u32,
    /// The queues that both receive and transmit.
    pub combined_count: u32,
}

/// Returns the numbers of queues that an interface has in use.
pub(crate) fn channels(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<Channels> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut request = named(netdev)?;
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL reads the name, which ends in a zero, and the pointer. This command
    // writes a `struct ethtool_channels` through that pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL, &raw mut request) })?;
    Ok(channels)
}

/// Attaches a descriptor of /dev/net/tun to a TAP interface, which is created if necessary. Frames
/// have no extra header; they are segmented and have their checksums.
pub fn attach_tap(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<()> {
    let mut request = named(netdev)?;
    #[expect(clippy::cast_possible_truncation, reason = "two flags of 16 bits")]
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: TUNSETIFF reads the flags and the name, which ends in a zero, and writes within this
    // ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let none: libc::c_ulong = 0;
    // SAFETY: TUNSETOFFLOAD takes a number. It disables offloads that a previous process may have
    // left on.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, none) })
}

fn interface_request(
    fd: BorrowedFd<'_>,
    netdev: &str,
    what: libc::Ioctl,
) -> io::Result<libc::ifreq> {
    let mut request = named(netdev)?;
    // SAFETY: the requests passed here read the name in an ifreq, which ends in a zero, and write
    // within this ifreq.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), what, &raw mut request) };
    check(rc).map(|()| request)
}

/// Returns an `ifreq` that holds only the name of the interface.
fn named(netdev: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = netdev.as_bytes();
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Ok(request)
}

/// Attaches a classic BPF program that decides how many bytes of each packet are kept.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a classic BPF program that selects a socket of the SO_REUSEPORT group. The kernel runs
/// it for each datagram. The program reads the bytes after the UDP header.
pub fn attach_steering(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach(fd: BorrowedFd<'_>, how: c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    /// A `sock_fprog` with initialised padding, which valgrind demands.
    #[repr(C)]
    struct Program {
        len: u16,
        padding: [u8; size_of::<usize>() - 2],
        filter: *const libc::sock_filter,
    }
    const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());
    #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
    let len = size_of::<Program>() as libc::socklen_t;
    let fprog = Program {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        padding: [0; size_of::<usize>() - 2],
        filter: program.as_ptr(),
    };
    // SAFETY: `fprog` points to `len` instructions, which the kernel copies. It writes nothing.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, how, (&raw const fprog).cast(), len)
    };
    check(rc)
}

/// Returns the major and minor version of the kernel.
pub fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

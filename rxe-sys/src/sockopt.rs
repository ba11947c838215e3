//! Socket options and calls on sockets that rustix does not have.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use crate::addr::RawAddr;

/// Sets an option whose value is an `int`.
pub fn set_int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// Sets an option whose value is made of these bytes. Not for options with pointers in them.
pub fn set_bytes(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes from the slice, which has them.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    check(rc)
}

/// Asks for a receive buffer of so many bytes; the system may give less.
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes);
}

/// The same for the send buffer.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes);
}

/// `force`, which is not bound by the system's limit, needs CAP_NET_ADMIN.
fn set_buffer(fd: BorrowedFd<'_>, force: c_int, plain: c_int, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    if set_int(fd, libc::SOL_SOCKET, force, bytes).is_err() {
        let _ = set_int(fd, libc::SOL_SOCKET, plain, bytes);
    }
}

/// Reads an option whose value is an `int`.
pub fn get_int(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len: libc::socklen_t = 4;
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    let rc =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    check(rc).map(|()| value)
}

/// A number for the network namespace of a socket, which no other has until the system restarts.
/// Linux 5.14.
pub fn namespace_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    /// Of `<asm-generic/socket.h>`.
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

/// A name for the network namespace of this thread, the same for all processes in it.
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
            // Linux before 5.14. An inode is given again, but not to two at a time.
            let namespace = std::fs::metadata("/proc/thread-self/ns/net");
            format!("inode-{}", namespace.map_or(0, |found| found.ino()))
        },
        |cookie| format!("{cookie:x}"),
    )
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its number, if it has one in this process namespace.
    pub pid: Option<u32>,
}

/// Who is at the other end of a connection between processes of this host.
pub(crate) fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut value = libc::ucred { pid: 0, uid: 0, gid: 0 };
    #[expect(clippy::cast_possible_truncation, reason = "12 bytes")]
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` has room for the `len` bytes that the kernel may write.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    };
    // A process outside of this process namespace has number 0 here.
    let pid = u32::try_from(value.pid).ok().filter(|pid| *pid != 0);
    check(rc).map(|()| Peer { uid: value.uid, pid })
}

/// Datagrams that this socket has lost because its receive buffer was full. 0 where the system does
/// not tell.
pub fn drops(fd: BorrowedFd<'_>) -> u32 {
    /// SK_MEMINFO_DROPS, the last of the numbers that SO_MEMINFO gives.
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

/// Binds to an address of any family.
pub fn bind(fd: BorrowedFd<'_>, addr: &RawAddr) -> io::Result<()> {
    // SAFETY: the kernel reads `len` bytes, which are within the array (CAPACITY is more than any
    // length that RawAddr is made with).
    let rc = unsafe { libc::bind(fd.as_raw_fd(), addr.bytes.as_ptr().cast(), addr.len.into()) };
    check(rc)
}

/// The MTU of an interface: the largest IP packet.
pub(crate) fn mtu(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<usize> {
    let request = interface_request(fd, netdev, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU has filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The hardware address of an interface and its type (`ARPHRD_*`).
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

/// Whether an interface is up, as its administrator wants it.
pub fn is_up(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<bool> {
    let request = interface_request(fd, netdev, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(libc::c_int::from(flags) & libc::IFF_UP != 0)
}

/// `struct ethtool_channels` of `<linux/ethtool.h>`: the queues of an interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx_count: u32,
    /// Those that only send.
    pub tx_count: u32,
    other_count: u32,
    /// Those that receive and send.
    pub combined_count: u32,
}

/// How many queues an interface has in use.
pub(crate) fn channels(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<Channels> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut request = named(netdev)?;
    let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL reads the name, which ends in a zero, and the pointer. This command writes a
    // struct of that form where the pointer leads.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL, &raw mut request) })?;
    Ok(channels)
}

/// Makes a descriptor of /dev/net/tun that of a TAP interface, which is made if there is none. Frames go
/// without any header, segmented and with their checksums.
pub fn attach_tap(fd: BorrowedFd<'_>, netdev: &str) -> io::Result<()> {
    let mut request = named(netdev)?;
    #[expect(clippy::cast_possible_truncation, reason = "two flags of 16 bits")]
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: TUNSETIFF reads the flags and the name, which ends in a zero, and writes within the same
    // ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let none: libc::c_ulong = 0;
    // SAFETY: TUNSETOFFLOAD takes a number. It takes back what a process before may have set.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, none) })
}

fn interface_request(
    fd: BorrowedFd<'_>,
    netdev: &str,
    what: libc::Ioctl,
) -> io::Result<libc::ifreq> {
    let mut request = named(netdev)?;
    // SAFETY: the requests passed here read the name in an ifreq, which ends in a zero, and write
    // within the same ifreq.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), what, &raw mut request) };
    check(rc).map(|()| request)
}

/// A request for an interface, with nothing but its name in it.
fn named(netdev: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq of zeros is a valid one.
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

/// Attaches a classic BPF program that decides how much of each packet is kept.
pub fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches a classic BPF program that chooses, for each datagram, one of the sockets that share
/// this one's address by SO_REUSEPORT. It sees what follows the UDP header.
pub fn attach_steering(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach(fd: BorrowedFd<'_>, how: c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    /// A `sock_fprog` whose padding is initialised, as valgrind demands.
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
    // SAFETY: `fprog` points to `len` instructions; the kernel copies them and writes nothing.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, how, (&raw const fprog).cast(), len)
    };
    check(rc)
}

/// The kernel's version: which options it can have.
pub fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

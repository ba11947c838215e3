//! `NETLINK_RDMA`: the sockets over which programs query the kernel's RDMA devices, as the command
//! `rdma` of iproute2 does.
//!
//! The queries are answered for our devices. The host's own devices stay hidden, unless the program
//! is to be shown them too (`kernel`).
//!
//! A program that opens such a socket gets one of `NETLINK_USERSOCK`, so that the kernel handles
//! everything but the answers: addresses, options, waiting and receiving. The functions that send
//! are overridden, and put the answer into the socket's receive queue. Calls on other sockets go to
//! the C library unchanged.
//!
//! Invariant: until a program has opened such a socket, sending on others costs one load of a
//! variable more.
//!
//! The functions are `C-unwind` because threads may be cancelled in them (pthread_cancel).

mod kernel;
mod message;
mod nldev;
mod resources;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{sockaddr, socklen_t, ssize_t};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, SendFlags, sockopt};

use crate::host;
use crate::next::Next;
use message::{Attributes, Request};
use nldev::About;

/// The longest request in bytes. A longer one fails with EMSGSIZE.
const MAX_REQUEST: usize = 64 << 10;
/// How long an answer waits for space in the queue of a program that does not read.
const PATIENCE: Duration = Duration::from_secs(10);

/// The inodes of the last sockets that were opened. Older ones are forgotten.
static SOCKETS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static OPENED: AtomicUsize = AtomicUsize::new(0);
/// Whether a socket was opened.
static ANY: AtomicBool = AtomicBool::new(false);

static SOCKET: Next = Next::new(c"socket");
static SEND: Next = Next::new(c"send");
static SENDTO: Next = Next::new(c"sendto");
static SENDMSG: Next = Next::new(c"sendmsg");

type Socket = unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int;
type Send = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> ssize_t;
type SendTo = unsafe extern "C-unwind" fn(
    c_int,
    *const c_void,
    usize,
    c_int,
    *const sockaddr,
    socklen_t,
) -> ssize_t;
type SendMsg = unsafe extern "C-unwind" fn(c_int, *const libc::msghdr, c_int) -> ssize_t;

/// Looks up the C library's functions.
/// Called at load, so that no signal handler has to call `dlsym`.
pub(crate) fn resolve() {
    for function in [&SOCKET, &SEND, &SENDTO, &SENDMSG] {
        function.get();
    }
}

/// Returns the C library's version of one of our functions.
macro_rules! behind {
    ($next:expr, $type:ty) => {
        match $next.get() {
            // SAFETY: the C library's function of this name, which has this type.
            Some(found) => unsafe { std::mem::transmute::<*mut c_void, $type>(found) },
            None => {
                crate::ffi::set_errno(libc::ENOSYS);
                return -1;
            }
        }
    };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let next = behind!(SOCKET, Socket);
    let ours = domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA && !host::is_looking();
    let protocol = if ours { libc::NETLINK_USERSOCK } else { protocol };
    // SAFETY: the caller's arguments.
    let fd = unsafe { next(domain, kind, protocol) };
    if ours && let Some(inode) = socket_inode(fd) {
        let slot = OPENED.fetch_add(1, Ordering::Relaxed) % SOCKETS.len();
        SOCKETS[slot].store(inode, Ordering::Relaxed);
        ANY.store(true, Ordering::Release);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    let next = behind!(SEND, Send);
    if !is_ours(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { next(fd, bytes, length, flags) };
    }
    // SAFETY: the caller's promise: `length` readable bytes.
    unsafe { answer_parts(fd, &[libc::iovec { iov_base: bytes.cast_mut(), iov_len: length }]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    length: usize,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    let next = behind!(SENDTO, SendTo);
    if !is_ours(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { next(fd, bytes, length, flags, to, to_length) };
    }
    // SAFETY: as in `send`.
    unsafe { answer_parts(fd, &[libc::iovec { iov_base: bytes.cast_mut(), iov_len: length }]) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    let next = behind!(SENDMSG, SendMsg);
    if message.is_null() || !is_ours(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { next(fd, message, flags) };
    }
    // SAFETY: the caller's message, with `msg_iovlen` parts.
    let parts = unsafe {
        let (first, count) = ((*message).msg_iov, (*message).msg_iovlen);
        if first.is_null() { &[] } else { std::slice::from_raw_parts(first, count) }
    };
    // SAFETY: as in `send`.
    unsafe { answer_parts(fd, parts) }
}

/// Returns whether this is a socket that was opened for `NETLINK_RDMA`.
/// The inode is compared, because the descriptor's number may have been reused.
fn is_ours(fd: c_int) -> bool {
    ANY.load(Ordering::Acquire)
        && socket_inode(fd)
            .is_some_and(|inode| SOCKETS.iter().any(|ours| ours.load(Ordering::Relaxed) == inode))
}

/// Returns the inode of a socket.
fn socket_inode(fd: c_int) -> Option<u64> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the result, which is read only if it was written.
    let found = unsafe { (libc::fstat(fd, found.as_mut_ptr()) == 0).then(|| found.assume_init())? };
    (found.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(found.st_ino)
}

/// Answers the requests in these bytes. Returns the result of the call that sends them.
///
/// # Safety
/// Each part is readable.
unsafe fn answer_parts(fd: c_int, parts: &[libc::iovec]) -> ssize_t {
    let mut bytes = Vec::new();
    for part in parts {
        if bytes.len() + part.iov_len > MAX_REQUEST {
            crate::ffi::set_errno(libc::EMSGSIZE);
            return -1;
        }
        if part.iov_len > 0 {
            // SAFETY: the caller's promise.
            bytes.extend(unsafe {
                std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len)
            });
        }
    }
    match answer(fd, &bytes) {
        Ok(()) => ssize_t::try_from(bytes.len()).unwrap_or(ssize_t::MAX),
        Err(error) => {
            crate::ffi::set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

fn answer(fd: c_int, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: a socket of the program, which does not close it during this call.
    let line = Line::to(unsafe { BorrowedFd::borrow_raw(fd) })?;
    let mut datagrams = Vec::new();
    for request in Request::all(bytes) {
        datagrams.extend(request.reply(line.port, answer_to(&request)));
    }
    let mut left = datagrams.into_iter();
    while let Some(datagram) = left.next() {
        if line.put(&datagram, SendFlags::DONTWAIT).is_ok() {
            continue;
        }
        // The queue is full. A kernel continues a list when the program reads; here a thread does.
        let rest: Vec<_> = [datagram].into_iter().chain(left).collect();
        rxe_sys::spawn_thread("rxe-netlink", move || {
            for datagram in rest {
                if line.put(&datagram, SendFlags::empty()).is_err() {
                    break;
                }
            }
        })?;
        break;
    }
    Ok(())
}

/// Returns the messages of the answer to a request, or an errno.
fn answer_to(request: &Request<'_>) -> Result<Vec<Attributes>, i32> {
    if !host::is_wanted() {
        return nldev::answer(request);
    }
    match About::of(request) {
        About::Ours => nldev::answer(request),
        About::Other => kernel::answer(request),
        About::All => match (nldev::answer(request), kernel::answer(request)) {
            (Ok(ours), Ok(host)) => Ok([ours, host].concat()),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(error), Err(_)) => Err(error),
        },
    }
}

/// A socket from which the program's socket receives its answers.
struct Line {
    socket: OwnedFd,
    /// The netlink port ID of the program's socket.
    port: u32,
}

impl Line {
    /// Connects a new socket with the program's, which is bound first if it has no address.
    /// From then on the program's socket accepts messages from the new one only.
    fn to(program: BorrowedFd<'_>) -> io::Result<Self> {
        let any = SocketAddrNetlink::new(0, 0);
        if port_of(program)? == 0 {
            net::bind(program, &any)?;
        }
        let port = port_of(program)?;
        let protocol = Some(net::netlink::USERSOCK);
        let (netlink, raw) = (net::AddressFamily::NETLINK, net::SocketType::RAW);
        let socket = net::socket_with(netlink, raw, net::SocketFlags::CLOEXEC, protocol)?;
        net::bind(&socket, &any)?;
        net::connect(program, &SocketAddrNetlink::new(port_of(socket.as_fd())?, 0))?;
        net::connect(&socket, &SocketAddrNetlink::new(port, 0))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
        Ok(Self { socket, port })
    }

    fn put(&self, datagram: &[u8], flags: SendFlags) -> io::Result<()> {
        net::send(&self.socket, datagram, flags)?;
        Ok(())
    }
}

/// Returns the port ID of a netlink socket, or 0 if it has none yet.
fn port_of(socket: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(SocketAddrNetlink::try_from(net::getsockname(socket)?)?.pid())
}

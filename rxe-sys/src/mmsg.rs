//! Sends and receives many datagrams with their control messages in one call.
//!
//! Several datagrams use `recvmmsg` and `sendmmsg`; a single one uses `recvmsg` and `sendmsg`,
//! which cost less.
//!
//! These are direct system calls. The C library's functions are cancellation points: a thread of
//! the program that is cancelled (pthread_cancel) inside one would leave the caller's locks held.
//!
//! Invariant: every pointer given to the kernel is created for one call, from memory that this file
//! owns or borrows until the call returns.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::addr::RawAddr;
use crate::cmsg::Control;

/// The maximum number of datagrams in one call, in either direction.
pub const BATCH: usize = 32;

/// Receive memory: buffers of one size, each with room for an address and control messages.
pub struct RecvArena {
    bytes: Box<[u8]>,
    size: usize,
    slots: Box<[Slot]>,
}

/// The number of datagrams to ask a socket for in one call. Sockets that share a [`RecvArena`] each
/// have their own, so that an empty one does not slow down a busy one.
#[derive(Clone, Copy, Debug)]
pub struct RecvPace {
    /// The number of datagrams to ask for next.
    want: usize,
    /// The last call returned as many datagrams as it asked for.
    streak: bool,
}

impl Default for RecvPace {
    fn default() -> Self {
        Self { want: 1, streak: false }
    }
}

/// The kernel's output for one datagram.
#[derive(Clone, Copy)]
struct Slot {
    addr: RawAddr,
    control: [u64; Control::CAPACITY / 8],
    control_len: usize,
    len: usize,
    flags: libc::c_int,
}

/// A received datagram.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    /// The bytes of the datagram.
    pub payload: &'a [u8],
    /// The address of the sender.
    pub addr: RawAddr,
    /// The control messages in the kernel's layout, for [`messages`](crate::cmsg::messages).
    pub control: &'a [u8],
    /// The buffer was too small: the rest of the datagram is lost.
    pub truncated: bool,
}

impl RecvArena {
    /// Allocates `count` buffers (1 to [`BATCH`]) of `size` bytes.
    pub fn new(count: usize, size: usize) -> Self {
        let count = count.clamp(1, BATCH);
        let empty = Slot {
            addr: RawAddr::EMPTY,
            control: [0; Control::CAPACITY / 8],
            control_len: 0,
            len: 0,
            flags: 0,
        };
        Self { bytes: vec![0; count * size].into(), size, slots: vec![empty; count].into() }
    }

    /// Receives datagrams without blocking; [`RecvArena::get`] returns them until the next call.
    /// Returns how many (0 if there is none), and whether more are likely to wait.
    ///
    /// After a pause, a call asks for one datagram, so that a single one is delivered immediately,
    /// without a search for a second. The number grows only while consecutive calls return all they
    /// ask for.
    pub fn recv(&mut self, fd: BorrowedFd<'_>, pace: &mut RecvPace) -> io::Result<(usize, bool)> {
        let want = pace.want;
        let got = match want {
            1 => self.recv_up_to::<1>(fd, 1),
            _ => self.recv_up_to::<BATCH>(fd, want),
        }?;
        let more = got == want && pace.streak;
        if more {
            pace.want = (2 * want).min(self.slots.len());
        } else if got < want {
            pace.want = got.max(1);
        }
        pace.streak = got == want;
        Ok((got, more))
    }

    fn recv_up_to<const N: usize>(&mut self, fd: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let max = max.min(self.slots.len()).min(N);
        let mut iovs = [EMPTY_IOV; N];
        let mut hdrs = [EMPTY_HDR; N];
        let buffers = self.bytes.chunks_exact_mut(self.size);
        for (((slot, buf), iov), hdr) in
            self.slots.iter_mut().zip(buffers).zip(&mut iovs).zip(&mut hdrs).take(max)
        {
            *iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
            let h = &mut hdr.msg_hdr;
            h.msg_name = slot.addr.bytes.as_mut_ptr().cast();
            h.msg_namelen = ADDR_CAPACITY;
            h.msg_iov = iov;
            h.msg_iovlen = 1;
            h.msg_control = slot.control.as_mut_ptr().cast();
            h.msg_controllen = Control::CAPACITY;
        }
        let flags = libc::MSG_DONTWAIT;
        let n = if let [hdr] = &mut hdrs[..] {
            // SAFETY: the header points to `iovs`, to a slot and to a buffer, each with its true
            // length. All are borrowed mutably until the call returns.
            let len = unsafe {
                libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut hdr.msg_hdr, flags)
            };
            hdr.msg_len = u32::try_from(len).unwrap_or(0);
            if len < 0 { -1 } else { 1 }
        } else {
            // SAFETY: as above, for the first `max` headers; `max` is at most the number of
            // headers. Their slots and buffers are distinct.
            unsafe {
                libc::syscall(
                    libc::SYS_recvmmsg,
                    fd.as_raw_fd(),
                    hdrs.as_mut_ptr(),
                    u32::try_from(max).unwrap_or(0),
                    flags,
                    std::ptr::null_mut::<libc::timespec>(),
                )
            }
        };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        };
        for (slot, hdr) in self.slots.iter_mut().zip(&hdrs).take(n) {
            let h = &hdr.msg_hdr;
            slot.addr.len = u8::try_from(h.msg_namelen.min(ADDR_CAPACITY)).unwrap_or(0);
            slot.control_len = h.msg_controllen.min(Control::CAPACITY);
            slot.len = (hdr.msg_len as usize).min(self.size);
            slot.flags = h.msg_flags;
        }
        Ok(n)
    }

    /// Returns datagram `index` of the last [`RecvArena::recv`].
    pub fn get(&self, index: usize) -> Received<'_> {
        let slot = &self.slots[index];
        // SAFETY: the array is initialised memory of `CAPACITY` bytes, and bytes need no alignment.
        let control = unsafe {
            std::slice::from_raw_parts(slot.control.as_ptr().cast::<u8>(), Control::CAPACITY)
        };
        Received {
            payload: &self.bytes[index * self.size..][..slot.len],
            addr: slot.addr,
            control: &control[..slot.control_len],
            truncated: slot.flags & libc::MSG_TRUNC != 0,
        }
    }
}

/// Takes a report from a socket's error queue (`IP_RECVERR`) without blocking. Returns the number
/// of bytes written to `buf` of the datagram that failed, its destination, and the report as a
/// control message; or `None` if the queue is empty.
pub fn recv_error(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
) -> io::Result<Option<(usize, RawAddr, Control)>> {
    let (mut addr, mut control) = (RawAddr::EMPTY, [0u64; Control::CAPACITY / 8]);
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut hdr = EMPTY_HDR.msg_hdr;
    hdr.msg_name = addr.bytes.as_mut_ptr().cast();
    hdr.msg_namelen = ADDR_CAPACITY;
    hdr.msg_iov = &raw mut iov;
    hdr.msg_iovlen = 1;
    hdr.msg_control = control.as_mut_ptr().cast();
    hdr.msg_controllen = Control::CAPACITY as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points to `iov`, `buf`, `addr` and `control` with their true lengths. All
    // are borrowed mutably until the call returns.
    let len = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut hdr, flags) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    };
    addr.len = u8::try_from(hdr.msg_namelen.min(ADDR_CAPACITY)).unwrap_or(0);
    let used = hdr.msg_controllen.min(Control::CAPACITY);
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(used).collect();
    Ok(Some((len.min(buf.len()), addr, Control::received(&bytes))))
}

/// A datagram to send, in up to three parts.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// The destination; [`RawAddr::EMPTY`] on a connected socket.
    pub addr: RawAddr,
    /// The control messages.
    pub control: Control,
    /// The bytes: the parts are sent in order, without gaps.
    pub parts: [&'a [u8]; 3],
}

/// Sends the first messages, up to [`BATCH`], without blocking. Returns how many were sent. An
/// error concerns the first message.
pub fn sendmmsg(fd: BorrowedFd<'_>, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    // Latency matters for a single message, so no table for many is filled.
    match messages {
        [] => Ok(0),
        [_] => sendmmsg_up_to::<1>(fd, messages),
        _ => sendmmsg_up_to::<BATCH>(fd, messages),
    }
}

fn sendmmsg_up_to<const N: usize>(
    fd: BorrowedFd<'_>,
    messages: &[Outgoing<'_>],
) -> io::Result<usize> {
    let mut iovs = [[EMPTY_IOV; 3]; N];
    let mut hdrs = [EMPTY_HDR; N];
    let count = messages.len().min(N);
    for ((m, iov), hdr) in messages.iter().zip(&mut iovs).zip(&mut hdrs) {
        for (part, iov) in m.parts.iter().zip(iov.iter_mut()) {
            *iov = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        let h = &mut hdr.msg_hdr;
        if m.addr.len > 0 {
            h.msg_name = m.addr.bytes.as_ptr().cast_mut().cast();
            h.msg_namelen = m.addr.len.into();
        }
        let used = m.parts.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
        h.msg_iov = iov.as_mut_ptr();
        h.msg_iovlen = used as _;
        let control = m.control.as_bytes();
        if !control.is_empty() {
            h.msg_control = control.as_ptr().cast_mut().cast();
            h.msg_controllen = control.len() as _;
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let n = if let [hdr] = &hdrs[..] {
        // SAFETY: the header points to `iovs` and to `messages`, with true lengths, and those
        // outlive the call. The kernel only reads through these pointers.
        let len = unsafe {
            libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const hdr.msg_hdr, flags)
        };
        if len < 0 { -1 } else { 1 }
    } else {
        // SAFETY: as above, for the first `count` headers. The kernel writes `msg_len` in `hdrs`,
        // which is borrowed mutably.
        unsafe {
            libc::syscall(
                libc::SYS_sendmmsg,
                fd.as_raw_fd(),
                hdrs.as_mut_ptr(),
                u32::try_from(count).unwrap_or(0),
                flags,
            )
        }
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// The number of bytes that the kernel may write for an address.
const ADDR_CAPACITY: libc::socklen_t = 32;
const _: () = assert!(ADDR_CAPACITY as usize == RawAddr::CAPACITY);

const EMPTY_IOV: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

// SAFETY: a header of null pointers and zero lengths is valid.
const EMPTY_HDR: libc::mmsghdr = unsafe { std::mem::zeroed() };

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_empty_socket_does_not_slow_down_another() {
        const COUNT: usize = 64;
        let [busy, empty] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = busy.local_addr().unwrap();
        for _ in 0..COUNT {
            empty.send_to(b"datagram", to).unwrap();
        }
        let mut arena = RecvArena::new(BATCH, 16);
        let [mut pace, mut pace_of_empty] = [RecvPace::default(); 2];
        let (mut received, mut calls) = (0, 0);
        while received < COUNT {
            received += arena.recv(busy.as_fd(), &mut pace).unwrap().0;
            calls += 1;
            assert_eq!(arena.recv(empty.as_fd(), &mut pace_of_empty).unwrap(), (0, false));
            assert!(calls < COUNT / 4, "{received} of {COUNT} datagrams in {calls} calls");
        }
    }
}

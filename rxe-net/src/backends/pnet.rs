//! The frames of an interface through pnet's datalink channel, which exists on every system: packet
//! sockets on Linux, BPF on macOS and the BSDs, Npcap on Windows. Decision 060.
//!
//! The channel has no descriptor to sleep on, and it blocks while it receives. So a thread receives,
//! and puts the frames that the user of the channel wants into a queue ([`Inbox`]).
//!
//! Limits of the channel: it tells neither the MTU nor checksums and tags that were left to the
//! card. Frames that the kernel has merged stay merged. Outside of Linux and Windows it does not
//! make the interface promiscuous.
//!
//! Invariants: the queue is bounded, and a frame that does not fit is dropped and counted. Sending
//! does not block. Frames are not parsed here beyond the test whether they are wanted.

#[cfg(any(test, not(target_os = "linux")))]
mod capture;
mod inbox;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pnet_datalink::{
    Channel as DataLink, Config, DataLinkReceiver, DataLinkSender, NetworkInterface, interfaces,
};

use crate::error::NetError;
#[cfg(target_os = "linux")]
use rxe_sys::{CheckedFd, SharedFd, packet_membership, sockopt};

#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", allow(unreachable_pub))]
pub use capture::LinkCapture;
pub(crate) use inbox::Inbox;

/// How long the thread waits for a frame before it checks whether it shall end.
const RECEIVE_TIME: Duration = Duration::from_millis(500);
/// The size of pnet's buffer in bytes. It holds the longest frame that a host merges. BPF fills it
/// with many frames, and does not accept more than 512 KiB.
const READ_BUFFER: usize = 256 << 10;
/// The receive and the send buffer to request from Linux, in bytes.
#[cfg(target_os = "linux")]
const SOCKET_BUFFER: usize = 8 << 20;

/// Returns whether a frame is wanted.
type FrameFilter = Box<dyn Fn(&[u8]) -> bool + Send>;

/// The use of a channel.
pub(crate) struct Use {
    /// Chooses the received frames that are put into the queue.
    pub(crate) wants: FrameFilter,
    /// The filter of the socket, before [`Use::wants`]; `None` for all frames. It also sees the VLAN tag,
    /// which the kernel removes from a frame.
    #[cfg(target_os = "linux")]
    pub(crate) filter: Option<Vec<libc::sock_filter>>,
    /// Called after a frame was put into the empty queue, and after the channel has failed.
    pub(crate) wake: Box<dyn Fn() + Send>,
    /// The size of the queue in bytes.
    pub(crate) queue: usize,
}

/// An open channel. Its thread ends soon after the channel is dropped.
pub(crate) struct Channel {
    /// `None` only during the drop.
    sender: Option<Box<dyn DataLinkSender>>,
    inbox: Arc<Inbox>,
    #[cfg(target_os = "linux")]
    socket: SharedFd,
}

/// Returns the interface with this name.
///
/// # Errors
/// [`NetError::NoSuchInterface`]
pub(crate) fn find(name: &str) -> Result<NetworkInterface, NetError> {
    let mut all = interfaces();
    let Some(at) = all.iter().position(|interface| interface.name == name) else {
        let existing = all.into_iter().map(|interface| interface.name).collect();
        return Err(NetError::NoSuchInterface { netdev: name.into(), existing });
    };
    Ok(all.swap_remove(at))
}

impl Channel {
    /// Opens a channel on an interface and starts the thread.
    ///
    /// # Errors
    /// [`NetError::Channel`]: a missing privilege, or a failed system call.
    pub(crate) fn open(interface: &NetworkInterface, user: Use) -> Result<Self, NetError> {
        let refused =
            |source| NetError::Channel { netdev: interface.name.clone(), source, opened: false };
        let config = Config {
            read_buffer_size: READ_BUFFER,
            read_timeout: Some(RECEIVE_TIME),
            write_timeout: Some(Duration::ZERO),
            ..Config::default()
        };
        #[cfg(target_os = "linux")]
        let (socket, config) = socket(config, user.filter.as_deref()).map_err(refused)?;
        let DataLink::Ethernet(sender, receiver) =
            pnet_datalink::channel(interface, config).map_err(refused)?
        else {
            return Err(refused(io::ErrorKind::Unsupported.into()));
        };
        let inbox = Arc::new(Inbox::new(user.queue));
        let thread = Receiving {
            receiver,
            user,
            inbox: Arc::clone(&inbox),
            index: interface.index,
            #[cfg(target_os = "linux")]
            socket: socket.clone(),
        };
        spawn(move || thread.run()).map_err(refused)?;
        Ok(Self {
            sender: Some(sender),
            inbox,
            #[cfg(target_os = "linux")]
            socket,
        })
    }

    /// Returns the queue of received frames.
    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Sends a frame, given in parts.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; or the error of the system.
    #[cfg(target_os = "linux")]
    pub(crate) fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::NotConnected);
        self.socket.ensure().map_err(|_| closed())?;
        let sender = self.sender.as_mut().ok_or_else(closed)?;
        let sent = match parts {
            [whole] => sender.send_to(whole, None),
            _ => sender.send_to(&parts.concat(), None),
        };
        match sent {
            Some(Err(e)) if e.kind() == io::ErrorKind::TimedOut => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Some(sent) => sent,
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.inbox.stop();
        // pnet closes its descriptor by number, whatever file has this number now.
        #[cfg(target_os = "linux")]
        if self.socket.ensure().is_err() {
            std::mem::forget(self.sender.take());
        }
    }
}

/// Opens the packet socket, because pnet would let programs that are executed inherit its own one,
/// and would receive from all interfaces until it is bound. Returns the socket, and the
/// configuration with a copy that pnet closes.
#[cfg(target_os = "linux")]
fn socket(config: Config, filter: Option<&[libc::sock_filter]>) -> io::Result<(SharedFd, Config)> {
    use std::os::fd::{AsFd, IntoRawFd};

    let socket = packet_membership::unbound(rustix::net::SocketType::RAW)?;
    if let Some(filter) = filter {
        sockopt::attach_filter(socket.as_fd(), filter)?;
    }
    sockopt::set_receive_buffer(socket.as_fd(), SOCKET_BUFFER);
    sockopt::set_send_buffer(socket.as_fd(), SOCKET_BUFFER);
    let copy = CheckedFd::internal(socket.try_clone()?).into_owned().into_raw_fd();
    Ok((SharedFd::guarded(socket), Config { socket_fd: Some(copy), ..config }))
}

#[cfg(target_os = "linux")]
fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    rxe_sys::spawn_and_await("rxe-pnet", run).map(drop)
}

#[cfg(not(target_os = "linux"))]
fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("rxe-pnet".into()).spawn(run).map(drop)
}

/// The state of the thread that receives.
struct Receiving {
    receiver: Box<dyn DataLinkReceiver>,
    user: Use,
    inbox: Arc<Inbox>,
    /// The index of the interface.
    index: u32,
    #[cfg(target_os = "linux")]
    socket: SharedFd,
}

impl Receiving {
    /// Receives until the channel is dropped or has failed.
    fn run(mut self) {
        let mut down = false;
        while !self.inbox.is_stopped() {
            let error = match self.receive() {
                Ok(()) => continue,
                Err(error) => error,
            };
            let failed = match error.kind() {
                io::ErrorKind::TimedOut
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted => None,
                io::ErrorKind::NetworkDown => {
                    down = true;
                    // Some systems repeat the error.
                    std::thread::sleep(RECEIVE_TIME);
                    None
                }
                _ => Some(error),
            };
            // The channel does not tell that the interface was removed while it was down.
            let found = down.then(|| interfaces().into_iter().find(|i| i.index == self.index));
            let failed = failed.or_else(|| match &found {
                Some(None) => Some(io::Error::other("it was removed")),
                _ => None,
            });
            if let Some(error) = failed {
                self.inbox.end(error);
                return (self.user.wake)();
            }
            down = found.flatten().is_some_and(|interface| !interface.is_up());
        }
    }

    /// Receives a frame. Returns an error after [`RECEIVE_TIME`].
    fn receive(&mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        self.socket.ensure().map_err(io::Error::other)?;
        match self.receiver.next() {
            Ok(frame) => {
                if (self.user.wants)(frame) && self.inbox.push(frame) {
                    (self.user.wake)();
                }
                Ok(())
            }
            // pnet does not read the error of a socket that poll(2) reports.
            #[cfg(target_os = "linux")]
            Err(error) if error.raw_os_error().is_none() => {
                match rustix::net::sockopt::socket_error(&self.socket) {
                    Ok(Err(cause)) => Err(cause.into()),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}

//! Why a backend cannot be opened or has stopped working. Each error is one line that says what is
//! wrong and what to do.

use std::fmt;
use std::io;
use std::net::IpAddr;

use rxe_core::wire::UDP_PORT;

mod l2;
mod xdp;

pub use l2::L2Failure;
pub use xdp::XdpRefusal;

/// A backend cannot be opened, or cannot be used any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetError {
    /// Another socket has UDP port 4791 on this address.
    PortInUse {
        /// The address asked for.
        address: IpAddr,
        /// Its owner, if that can be found out.
        owner: Option<PortOwner>,
    },
    /// Packets cannot be sent from the UDP port that was asked for.
    SourcePort {
        /// The address to send from.
        address: IpAddr,
        /// The port.
        port: u16,
        /// Its owner, if another socket has it and that can be found out.
        owner: Option<PortOwner>,
        /// The system's error.
        source: io::Error,
    },
    /// Processes of another user have this address. Users cannot share an address.
    OtherUser {
        /// The address asked for.
        address: IpAddr,
        /// The user.
        uid: u32,
        /// One of the processes, if that can be found out.
        owner: Option<PortOwner>,
    },
    /// A process of this user has this address, and cannot be asked to share it: the two see
    /// different directories.
    NotShared {
        /// The address asked for.
        address: IpAddr,
        /// The process, if that can be found out.
        owner: Option<PortOwner>,
        /// In which directory this process has looked for it, or why there is none.
        directory: String,
        /// What the user can do instead of ending the process.
        remedy: String,
    },
    /// A process of another version of rxe has this address, and cannot share it with this one.
    OtherVersion {
        /// The address asked for.
        address: IpAddr,
        /// The process, if that can be found out.
        owner: Option<PortOwner>,
        /// Whether its version is newer than this one; otherwise it is older.
        newer: bool,
    },
    /// A process on this address does not answer.
    NoAnswer {
        /// The address asked for.
        address: IpAddr,
        /// The process, if that can be found out.
        owner: Option<PortOwner>,
    },
    /// A process on this address has handed over a descriptor that is no UDP socket of the address.
    ForeignSocket {
        /// The address asked for.
        address: IpAddr,
        /// The process, if that can be found out.
        owner: Option<PortOwner>,
    },
    /// All blocks of queue pair numbers are taken on this address.
    NoBlock {
        /// The address asked for.
        address: IpAddr,
    },
    /// On an address that is new on the interface, another process has the queue pair numbers that
    /// this device has on its other addresses.
    BlockTaken {
        /// The address.
        address: IpAddr,
        /// The high 8 bits of the numbers.
        block: u8,
    },
    /// The service has a listener already.
    ServiceTaken {
        /// The service's ID.
        service: u64,
        /// The address of the other listener, unspecified if it listens on all.
        address: IpAddr,
    },
    /// This process has too many open files to share an address.
    TooManyFiles {
        /// How many this process may have open.
        limit: u64,
    },
    /// No interface has this address (or it is not ready yet: IPv6 duplicate detection).
    NoSuchAddress {
        /// The address asked for.
        address: IpAddr,
    },
    /// No network interface has this name.
    NoSuchDevice {
        /// The name asked for.
        netdev: String,
    },
    /// The network interface is down.
    DeviceDown {
        /// The interface.
        netdev: String,
    },
    /// The network interface carries no Ethernet frames.
    NotEthernet {
        /// The interface.
        netdev: String,
    },
    /// A backend was asked for without any address to use.
    NoAddress {
        /// The interface.
        netdev: String,
    },
    /// All addresses of the interface are tentative: the system checks that no other host has them, or has
    /// found one that does.
    Tentative {
        /// The interface.
        netdev: String,
        /// One of its addresses.
        address: IpAddr,
        /// It is up and has a carrier.
        running: bool,
        /// Another host has the address.
        duplicate: bool,
    },
    /// The process has not the privilege that the backend needs.
    NoPrivilege {
        /// The backend that needs it.
        backend: &'static str,
        /// The capability, as in `CAP_NET_RAW`.
        capability: &'static str,
    },
    /// The `xdp` backend cannot be used on an interface.
    Xdp {
        /// The interface.
        netdev: String,
        /// Why.
        reason: XdpRefusal,
    },
    /// An endpoint of layer 2 cannot be opened, or has stopped working.
    L2 {
        /// What carries its frames, as in `qemu:PATH`.
        link: String,
        /// Why.
        reason: L2Failure,
    },
    /// A capture file cannot be created or read.
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is no backend of this name.
    NoSuchBackend {
        /// The name asked for.
        name: String,
    },
    /// The backend carries no multicast.
    NoMulticast {
        /// The backend.
        backend: &'static str,
    },
    /// The interface cannot join a multicast group.
    Join {
        /// The group.
        group: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[cfg(target_os = "linux")]
    System(rxe_sys::Error),
}

/// The owner of a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOwner {
    /// A process that this one may look at.
    Process {
        /// Its process ID.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A process that is not visible, of a user who is not root.
    User {
        /// Its user.
        uid: u32,
    },
    /// No visible process has the socket: it belongs to the kernel's rdma_rxe, to root, or to another
    /// container.
    Hidden,
}

#[cfg(target_os = "linux")]
impl NetError {
    /// Wraps the error of a system call, `what` as in "open a socket".
    pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System(rxe_sys::Error::os(what, source))
    }
}

#[cfg(target_os = "linux")]
impl From<rxe_sys::Error> for NetError {
    fn from(error: rxe_sys::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortInUse { address, owner } => {
                write!(f, "UDP port {UDP_PORT} on {address} is in use")?;
                match owner {
                    Some(PortOwner::Process { pid, name }) => {
                        write!(f, " by process {pid} ({name}): stop it or use another address")
                    }
                    Some(PortOwner::User { uid }) => write!(
                        f,
                        " by a process of uid {uid} that is not visible here: stop it or use \
                         another address"
                    ),
                    Some(PortOwner::Hidden) => write!(
                        f,
                        " by the kernel's rdma_rxe or by a process of root. The module holds the port \
                         on all addresses, also without a device: `sudo rdma link delete NAME` for \
                         each device in `sudo rdma link`, then `sudo modprobe -r rdma_rxe`. A process \
                         is shown by `sudo ss -ulnp 'sport = {UDP_PORT}'`"
                    ),
                    None => write!(
                        f,
                        ": find its owner with `ss -ulnp 'sport = {UDP_PORT}'`, stop it or use \
                         another address"
                    ),
                }
            }
            Self::SourcePort { address, port, owner, source } => {
                write!(f, "cannot send from UDP port {port} on {address}: ")?;
                match (owner, source.raw_os_error()) {
                    (Some(PortOwner::Process { pid, name }), _) => {
                        write!(f, "process {pid} ({name}) has it")?;
                    }
                    #[cfg(target_os = "linux")]
                    (_, Some(libc::EADDRINUSE)) => f.write_str("it is in use")?,
                    #[cfg(target_os = "linux")]
                    (_, Some(libc::EACCES)) => f.write_str("it needs CAP_NET_BIND_SERVICE")?,
                    _ => source.fmt(f)?,
                }
                f.write_str("; choose another source port: 4791 is always there")
            }
            Self::OtherUser { address, uid, owner } => write!(
                f,
                "{address} is in use by {} of another user (uid {uid}): processes on one address \
                 must have the same user; stop it or use another address",
                who(owner)
            ),
            Self::NotShared { address, owner, directory, remedy } => write!(
                f,
                "{address} is in use by {} of this user, which cannot be asked to share it: \
                 {directory}. Stop it, use another address, or {remedy}",
                who(owner)
            ),
            Self::OtherVersion { address, owner, newer } => write!(
                f,
                "{address} is in use by {} with {} version of rxe, which cannot share it with \
                 this one: stop it, use the same version or another address",
                who(owner),
                if *newer { "a newer" } else { "an older" }
            ),
            Self::NoAnswer { address, owner } => write!(
                f,
                "{} on {address} does not let this one share the address: is it stopped? Let it \
                 go on, end it or use another address",
                who(owner)
            ),
            Self::ForeignSocket { address, owner } => write!(
                f,
                "{} on {address} was asked to share the address and has handed over a descriptor \
                 that is no UDP socket bound to it and to port {UDP_PORT}: nothing was taken from \
                 it; end it or use another address",
                who(owner)
            ),
            Self::NoBlock { address } => write!(
                f,
                "all 255 blocks of queue pair numbers on {address} are taken (each open device has \
                 one, and one more for each 65,000 queue pairs): close a device or use another \
                 address"
            ),
            Self::BlockTaken { address, block } => write!(
                f,
                "another process has the queue pair numbers 0x{block:02x}0000 to 0x{block:02x}ffff \
                 on the new address {address}: close and open the device to use it"
            ),
            Self::ServiceTaken { service, address } => write!(
                f,
                "service 0x{service:016x} on {address} is listened to already: end its listener \
                 or use another port"
            ),
            Self::TooManyFiles { limit } => write!(
                f,
                "too many open files to share the address with other processes: this one may have \
                 {limit}, raise the limit (`ulimit -n`). Each block of queue pair numbers takes as many \
                 on each address as its number says, and a few more"
            ),
            Self::NoSuchAddress { address } => write!(
                f,
                "no interface is ready to use address {address}: see `ip address` (an IPv6 address \
                 takes a second or two after its interface came up)"
            ),
            Self::NoSuchDevice { netdev } => {
                write!(f, "there is no network interface {netdev}: see `ip link`")
            }
            Self::DeviceDown { netdev } => {
                write!(f, "interface {netdev} is down: `ip link set {netdev} up`")
            }
            Self::NotEthernet { netdev } => write!(
                f,
                "interface {netdev} carries no Ethernet frames: only an interface that does can be \
                 captured on"
            ),
            Self::NoAddress { netdev } => write!(
                f,
                "interface {netdev} has no address: give it one with `ip address add`, or use \
                 another"
            ),
            Self::Tentative { netdev, address, duplicate: true, .. } => write!(
                f,
                "no address of interface {netdev} can be used: another host has {address}, as the \
                 system has found (`ip address` shows dadfailed): use another address"
            ),
            Self::Tentative { netdev, address, running, duplicate: false } => {
                write!(
                    f,
                    "no address of interface {netdev} can be used yet: {address} is tentative"
                )?;
                f.write_str(if *running {
                    ", because the system still checks that no other host has it. That takes a \
                     second or two after the interface came up: try again"
                } else {
                    " until the link is up: connect it, or see `ip link`"
                })
            }
            Self::NoPrivilege { backend, capability } => write!(
                f,
                "the {backend} backend needs {capability}: run it as root, `setcap {}+ep` the \
                 program, use `unshare -Urn`, or choose the udp backend",
                capability.to_ascii_lowercase()
            ),
            Self::Xdp { netdev, reason } => reason.describe(netdev, f),
            Self::L2 { link, reason } => reason.describe(link, f),
            Self::File { path, source } => write!(f, "the capture {path}: {source}"),
            Self::NoSuchBackend { name } => {
                write!(
                    f,
                    "there is no backend {name}: choose udp, packet or xdp (or xdp:driver, \
                     xdp:generic, xdp:zerocopy)"
                )
            }
            Self::NoMulticast { backend } => {
                write!(f, "the {backend} backend carries no multicast: use udp, packet, xdp or l2")
            }
            Self::Join { group, source } => write!(
                f,
                "cannot join group {group}: {source} (see `ip link` whether the interface is up, \
                 and `ip maddress` for the groups that it is in)"
            ),
            #[cfg(target_os = "linux")]
            Self::System(error) => error.fmt(f),
        }
    }
}

/// The owner as part of a sentence.
fn who(owner: &Option<PortOwner>) -> String {
    match owner {
        Some(PortOwner::Process { pid, name }) => format!("process {pid} ({name})"),
        _ => "a process".into(),
    }
}

impl std::error::Error for NetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::SourcePort { source, .. }
            | Self::File { source, .. }
            | Self::Join { source, .. } => Some(source),
            #[cfg(target_os = "linux")]
            Self::System(error) => error.source(),
            _ => None,
        }
    }
}

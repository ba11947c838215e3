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

/// The reason why a backend cannot be opened, or cannot be used any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetError {
    /// Another socket is bound to UDP port 4791 on this address.
    PortInUse {
        /// The requested address.
        address: IpAddr,
        /// The owner of the socket, if it can be found out.
        owner: Option<PortOwner>,
    },
    /// Packets cannot be sent from the requested UDP source port.
    SourcePort {
        /// The address to send from.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The owner of the port, if another socket has the port and the owner can be found out.
        owner: Option<PortOwner>,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Processes of another user have this address. Users cannot share an address.
    OtherUser {
        /// The requested address.
        address: IpAddr,
        /// The other user.
        uid: u32,
        /// One of the processes, if it can be found out.
        owner: Option<PortOwner>,
    },
    /// A process of this user has this address, but cannot be asked to share it. The two processes
    /// see different directories.
    NotShared {
        /// The requested address.
        address: IpAddr,
        /// The process, if it can be found out.
        owner: Option<PortOwner>,
        /// The directory in which this process has looked for the other, or why there is none.
        directory: String,
        /// The alternative to ending the process.
        remedy: String,
    },
    /// A process of another version of rxe has this address, and cannot share it with this one.
    OtherVersion {
        /// The requested address.
        address: IpAddr,
        /// The process, if it can be found out.
        owner: Option<PortOwner>,
        /// Whether the other version is newer than this one; otherwise it is older.
        newer: bool,
    },
    /// A process on this address does not answer.
    NoAnswer {
        /// The requested address.
        address: IpAddr,
        /// The process, if it can be found out.
        owner: Option<PortOwner>,
    },
    /// A process on this address has passed a descriptor that is not a UDP socket of the address.
    ForeignSocket {
        /// The requested address.
        address: IpAddr,
        /// The process, if it can be found out.
        owner: Option<PortOwner>,
    },
    /// All blocks of queue pair numbers are in use on this address.
    NoBlock {
        /// The requested address.
        address: IpAddr,
    },
    /// Another process has this device's queue pair numbers on an address that is new on the
    /// interface.
    BlockTaken {
        /// The new address.
        address: IpAddr,
        /// The high 8 bits of the queue pair numbers.
        block: u8,
    },
    /// The service already has a listener.
    ServiceTaken {
        /// The ID of the service.
        service: u64,
        /// The address of the other listener, or the unspecified address if it listens on all.
        address: IpAddr,
    },
    /// This process has too many open files to share an address.
    TooManyFiles {
        /// The number of files that this process may have open.
        limit: u64,
    },
    /// No interface has this address, or it is not ready yet (IPv6 duplicate address detection).
    NoSuchAddress {
        /// The requested address.
        address: IpAddr,
    },
    /// No network interface has this name.
    NoSuchDevice {
        /// The requested name.
        netdev: String,
    },
    /// No network interface has this name, by the list of pnet.
    NoSuchInterface {
        /// The requested name.
        netdev: String,
        /// The names of the interfaces that exist.
        existing: Vec<String>,
    },
    /// pnet's channel cannot be opened, or cannot be used any more.
    Channel {
        /// The interface.
        netdev: String,
        /// The error of the system.
        source: io::Error,
        /// The channel was open before.
        opened: bool,
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
    /// A backend was requested without any address to use.
    NoAddress {
        /// The interface.
        netdev: String,
    },
    /// All addresses of the interface are tentative. The kernel is still checking for duplicates,
    /// or has found one.
    Tentative {
        /// The interface.
        netdev: String,
        /// One of its addresses.
        address: IpAddr,
        /// The interface is up and has a carrier.
        running: bool,
        /// Another host has the address.
        duplicate: bool,
    },
    /// The process lacks a privilege that the backend needs.
    NoPrivilege {
        /// The backend.
        backend: &'static str,
        /// The capability, as in `CAP_NET_RAW`.
        capability: &'static str,
    },
    /// The `xdp` backend cannot be used on an interface.
    Xdp {
        /// The interface.
        netdev: String,
        /// The reason.
        reason: XdpRefusal,
    },
    /// A layer 2 endpoint cannot be opened, or has stopped working.
    L2 {
        /// The link that carries the endpoint's frames, as in `qemu:PATH`.
        link: String,
        /// The reason.
        reason: L2Failure,
    },
    /// A capture file cannot be created or read.
    File {
        /// The path of the file.
        path: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// No backend has this name.
    NoSuchBackend {
        /// The requested name.
        name: String,
    },
    /// The backend does not carry multicast.
    NoMulticast {
        /// The backend.
        backend: &'static str,
    },
    /// The interface cannot join a multicast group.
    Join {
        /// The group.
        group: IpAddr,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A system call failed.
    #[cfg(target_os = "linux")]
    System(rxe_sys::Error),
}

/// The owner of a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortOwner {
    /// A process that this one may inspect.
    Process {
        /// The process ID.
        pid: u32,
        /// The process name.
        name: String,
    },
    /// A process that is not visible here, of a user other than root.
    User {
        /// The user ID.
        uid: u32,
    },
    /// No visible process has the socket. It belongs to kernel `rdma_rxe`, to root, or to another
    /// container.
    Hidden,
}

#[cfg(target_os = "linux")]
impl NetError {
    /// Wraps the error of a system call. `what` names the operation, as in "open a socket".
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
            Self::NoSuchInterface { netdev, existing } => {
                write!(f, "there is no network interface {netdev}: choose ")?;
                f.write_str(&existing.join(", "))
            }
            Self::Channel { netdev, source, opened } => {
                write!(f, "cannot send and receive frames of interface {netdev}")?;
                f.write_str(if *opened { " any more" } else { "" })?;
                write!(f, ": {source}")?;
                match source.kind() {
                    _ if *opened => {
                        f.write_str("; if it was removed, open it again when it is back")
                    }
                    io::ErrorKind::PermissionDenied if cfg!(target_os = "linux") => f.write_str(
                        "; CAP_NET_RAW is needed: run it as root, `setcap cap_net_raw+ep` the \
                         program, or use `unshare -Urn`",
                    ),
                    io::ErrorKind::PermissionDenied => {
                        f.write_str("; run it as root, or let this user read and write /dev/bpf*")
                    }
                    _ if cfg!(windows) => {
                        f.write_str("; Npcap must be installed, for this user too")
                    }
                    _ if cfg!(target_os = "linux") => {
                        write!(f, "; `ip link show {netdev}` has its state")
                    }
                    _ => write!(f, "; `ifconfig {netdev}` has its state"),
                }
            }
            Self::DeviceDown { netdev } if cfg!(target_os = "linux") => {
                write!(f, "interface {netdev} is down: `ip link set {netdev} up`")
            }
            Self::DeviceDown { netdev } => {
                write!(f, "interface {netdev} is down: `ifconfig {netdev} up`")
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

/// Describes the owner, as part of a sentence.
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
            | Self::Channel { source, .. }
            | Self::File { source, .. }
            | Self::Join { source, .. } => Some(source),
            #[cfg(target_os = "linux")]
            Self::System(error) => error.source(),
            _ => None,
        }
    }
}

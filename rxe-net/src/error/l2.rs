//! Why an endpoint of layer 2 cannot be opened or has stopped working.

use std::fmt;
use std::io;
use std::net::IpAddr;

use rxe_core::wire::Mac;

use crate::error::PortOwner;

/// Why an endpoint of layer 2 cannot be opened or has stopped working.
#[derive(Debug)]
#[non_exhaustive]
pub enum L2Failure {
    /// Another process has it open.
    InUse {
        /// The process, if that can be found out.
        owner: Option<PortOwner>,
    },
    /// Its socket cannot be connected to.
    Connect(io::Error),
    /// Nobody listens on its socket, and it cannot listen there itself.
    Listen(io::Error),
    /// /dev/net/tun cannot be opened.
    NoTun(io::Error),
    /// A TAP interface cannot be used or made.
    Tap {
        /// Its name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The socket of its own for QEMU's `-netdev dgram` cannot be made.
    Bind(io::Error),
    /// The other socket of QEMU's `-netdev dgram` cannot be sent to.
    Peer(io::Error),
    /// This process may not send and receive frames of an interface.
    NotPermitted,
    /// Its interface leads to no other host, or carries no Ethernet frames.
    NotEthernet,
    /// Its interface is the port of another, which takes its frames.
    Port {
        /// The bridge, the bond or the like.
        owner: String,
    },
    /// Its interface carries less in a packet than the endpoint would send.
    SmallMtu {
        /// The MTU of the interface in bytes.
        interface: usize,
        /// That of the endpoint.
        endpoint: u32,
    },
    /// It was to have the Ethernet address of its interface, whose frames are the host's.
    HostMac {
        /// The address.
        mac: Mac,
    },
    /// This host has one of its addresses.
    HostAddress {
        /// The address.
        address: IpAddr,
        /// The interface that has it.
        netdev: String,
    },
    /// Its interface cannot be used any more.
    Gone(io::Error),
    /// The other end has closed the connection.
    PeerGone,
    /// The other end has sent what is no Ethernet frame.
    NoFrame {
        /// The length that it has announced.
        length: usize,
    },
    /// Another host has one of its addresses.
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The host.
        mac: Mac,
    },
    /// No DHCP server has answered.
    NoLease,
    /// Another host has the address that a DHCP server has given.
    LeaseTaken {
        /// The address.
        address: IpAddr,
        /// The host.
        mac: Mac,
    },
    /// It has no such address.
    NoSuchAddress {
        /// The address asked for.
        address: IpAddr,
    },
    /// Another way onto the wire was asked for.
    OtherBackend {
        /// Its name.
        backend: &'static str,
    },
}

impl L2Failure {
    pub(super) fn describe(&self, link: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { owner } => {
                write!(f, "the endpoint on {link} is in use by ")?;
                match owner {
                    Some(PortOwner::Process { pid, name }) => write!(f, "process {pid} ({name})")?,
                    _ => f.write_str("another process")?,
                }
                f.write_str(
                    ": only one process at a time can have an endpoint of layer 2; end it, or add a \
                     link with another address",
                )
            }
            Self::Connect(e) => write!(
                f,
                "cannot connect to {link}: {e}; the socket must be that of QEMU's `-netdev \
                 stream,addr.type=unix`, and this user must be allowed to write to it"
            ),
            Self::Listen(e) => write!(
                f,
                "nobody listens on {link} (QEMU's `-netdev stream,server=on` does while it runs), and \
                 this end cannot listen there: {e}"
            ),
            Self::NoTun(e) => write!(
                f,
                "cannot open /dev/net/tun for {link}: {e}; load the module (`modprobe tun`), or give \
                 the container this device"
            ),
            Self::Tap { name, source } => write!(
                f,
                "cannot use {link} as a TAP interface: {source}; this user must own it, or the process \
                 needs CAP_NET_ADMIN. Whoever has that makes it so: `ip tuntap add dev {name} mode tap \
                 user $USER`"
            ),
            Self::Bind(e) => write!(
                f,
                "cannot make the first socket of {link}: {e}; its path must be in a directory that this \
                 user may write to"
            ),
            Self::Peer(e) => write!(
                f,
                "cannot send to the second socket of {link}: {e}; it must be the `local.path` of QEMU's \
                 `-netdev dgram,local.type=unix`, and this user must be allowed to write to it"
            ),
            Self::NotPermitted => write!(
                f,
                "{link} needs CAP_NET_RAW: run it as root, `setcap cap_net_raw+ep` the program, use \
                 `unshare -Urn`, or use a TAP (tap:NAME), which needs no privilege"
            ),
            Self::NotEthernet => write!(
                f,
                "the interface of {link} is loopback or a tunnel: an endpoint needs one that carries \
                 Ethernet frames to other hosts, see `ip link`"
            ),
            Self::Port { owner } => write!(
                f,
                "the interface of {link} is a port of {owner}, which takes its frames: use if:{owner}"
            ),
            Self::SmallMtu { interface, endpoint } => {
                write!(
                    f,
                    "the interface of {link} has an MTU of {interface} bytes, and the endpoint one of \
                     {endpoint}: "
                )?;
                let (_, netdev) = link.split_once(':').unwrap_or_default();
                if *interface >= 1280 {
                    write!(f, "add `mtu {interface}` after {link}, or ")?;
                }
                write!(f, "`ip link set {netdev} mtu {endpoint}`")
            }
            Self::HostMac { mac } => write!(
                f,
                "the Ethernet address {mac} is that of the interface of {link}, whose frames are this \
                 host's: leave `mac` out, or use another"
            ),
            Self::HostAddress { address, netdev } => write!(
                f,
                "this host has the address {address} itself, on {netdev}: give the endpoint on {link} \
                 another"
            ),
            Self::Gone(e) => write!(
                f,
                "the interface of {link} cannot be used any more: {e}; if it was removed, open the \
                 device again when it is back"
            ),
            Self::PeerGone => write!(
                f,
                "the other end of {link} has closed the connection: QEMU has ended, or serves \
                 another process; open the device again when it is back"
            ),
            Self::NoFrame { length } => write!(
                f,
                "the other end of {link} has announced a frame of {length} bytes, which is none: \
                 the socket must be that of QEMU's `-netdev stream`"
            ),
            Self::AddressTaken { address, mac } => write!(
                f,
                "another host on {link} has the address {address} (its Ethernet address is {mac}): \
                 use another"
            ),
            Self::LeaseTaken { address, mac } => write!(
                f,
                "another host on {link} has the address {address} (its Ethernet address is {mac}), \
                 which a DHCP server has given. The server has been told: try again, or name an \
                 address (`address ADDRESS/LENGTH`)"
            ),
            Self::NoLease => write!(
                f,
                "no DHCP server on {link} has given an address: name one (`address \
                 ADDRESS/LENGTH`) or start a server"
            ),
            Self::NoSuchAddress { address } => write!(
                f,
                "the endpoint on {link} has no address {address}: choose one that `rxe gids` lists"
            ),
            Self::OtherBackend { backend } => write!(
                f,
                "the endpoint on {link} is its own way onto the wire: leave the {backend} backend \
                 out"
            ),
        }
    }
}

//! Errors of layer 2 endpoints.

use std::fmt;
use std::io;
use std::net::IpAddr;

use rxe_core::wire::Mac;

use crate::error::PortOwner;

/// The reason why a layer 2 endpoint cannot be opened or has stopped working.
#[derive(Debug)]
#[non_exhaustive]
pub enum L2Failure {
    /// Another process has the endpoint open.
    InUse {
        /// The process, if it can be found out.
        owner: Option<PortOwner>,
    },
    /// The endpoint cannot connect to the socket of its link.
    Connect(io::Error),
    /// No process listens on the socket of the link, and the endpoint cannot listen there itself.
    Listen(io::Error),
    /// /dev/net/tun cannot be opened.
    NoTun(io::Error),
    /// A TAP interface cannot be used or created.
    Tap {
        /// The name of the interface.
        name: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The endpoint's own socket for QEMU's `-netdev dgram` cannot be created.
    Bind(io::Error),
    /// The endpoint cannot send to QEMU's socket of `-netdev dgram`.
    Peer(io::Error),
    /// This process may not send and receive frames of the interface.
    NotPermitted,
    /// This program was built without the feature `pnet`.
    WithoutPnet,
    /// The interface leads to no other host, or does not carry Ethernet frames.
    NotEthernet,
    /// The interface is a port of another, which takes its frames.
    Port {
        /// The name of the other interface: a bridge, a bond or similar.
        owner: String,
    },
    /// The MTU of the interface is smaller than the MTU of the endpoint.
    SmallMtu {
        /// The MTU of the interface in bytes.
        interface: usize,
        /// The MTU of the endpoint in bytes.
        endpoint: u32,
    },
    /// The configured Ethernet address is the one of the interface, whose frames belong to the
    /// host.
    HostMac {
        /// The address.
        mac: Mac,
    },
    /// This host itself has one of the endpoint's addresses.
    HostAddress {
        /// The address.
        address: IpAddr,
        /// The interface that has it.
        netdev: String,
    },
    /// The interface cannot be used any more.
    Gone(io::Error),
    /// The peer of the link has closed the connection.
    PeerGone,
    /// The peer of the link has sent something that is not an Ethernet frame.
    NoFrame {
        /// The length that the peer announced, in bytes.
        length: usize,
    },
    /// Another host has one of the endpoint's addresses.
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The Ethernet address of the other host.
        mac: Mac,
    },
    /// No DHCP server has offered an address.
    NoLease,
    /// Another host has the address that a DHCP server assigned.
    LeaseTaken {
        /// The address.
        address: IpAddr,
        /// The Ethernet address of the other host.
        mac: Mac,
    },
    /// The endpoint does not have this address.
    NoSuchAddress {
        /// The requested address.
        address: IpAddr,
    },
    /// A backend was requested for an endpoint, which is its own backend.
    OtherBackend {
        /// The name of the backend.
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
            Self::WithoutPnet => {
                let (_, netdev) = link.split_once(':').unwrap_or_default();
                write!(
                    f,
                    "{link} is a link by pnet, without which this program was built: use if:{netdev}"
                )
            }
            Self::NotEthernet => write!(
                f,
                "the interface of {link} is loopback or a tunnel: an endpoint needs one that carries \
                 Ethernet frames to other hosts, see `ip link`"
            ),
            Self::Port { owner } => {
                let (kind, _) = link.split_once(':').unwrap_or_default();
                write!(
                    f,
                    "the interface of {link} is a port of {owner}, which takes its frames: use \
                     {kind}:{owner}"
                )
            }
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

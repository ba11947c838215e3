//! How a backend for an interface of the host is chosen by name.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::packet::{PacketBackend, PacketConfig};
use super::udp::{UdpBackend, UdpConfig};
use super::xdp::{XdpBackend, XdpConfig, XdpMode};
use crate::backend::Backend;
use crate::error::NetError;

/// The backends for an interface of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// [`UdpBackend`]: needs no privileges.
    #[default]
    Udp,
    /// [`PacketBackend`]: needs CAP_NET_RAW.
    Packet,
    /// [`XdpBackend`]: needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW.
    Xdp(XdpMode),
}

impl BackendKind {
    /// All kinds, with each XDP mode.
    pub const ALL: [Self; 6] = [
        Self::Udp,
        Self::Packet,
        Self::Xdp(XdpMode::Any),
        Self::Xdp(XdpMode::Driver),
        Self::Xdp(XdpMode::Generic),
        Self::Xdp(XdpMode::ZeroCopy),
    ];

    /// Returns the name, as on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp(mode) => mode.backend_name(),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = NetError;

    fn from_str(name: &str) -> Result<Self, NetError> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| NetError::NoSuchBackend { name: name.to_owned() })
    }
}

/// Opens a backend with default settings on these addresses of an interface.
pub fn open(
    kind: BackendKind,
    netdev: &str,
    addresses: &[IpAddr],
) -> Result<Box<dyn Backend>, NetError> {
    Ok(match kind {
        BackendKind::Udp => Box::new(UdpBackend::open(&UdpConfig::new(netdev, addresses))?),
        BackendKind::Packet => {
            Box::new(PacketBackend::open(&PacketConfig::new(netdev, addresses))?)
        }
        BackendKind::Xdp(mode) => {
            let config = XdpConfig { mode, ..XdpConfig::new(netdev, addresses) };
            Box::new(XdpBackend::open(&config)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse::<BackendKind>().unwrap(), kind);
        }
        let error = "xdp2".parse::<BackendKind>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no backend xdp2: choose udp, packet or xdp (or xdp:driver, xdp:generic, xdp:zerocopy)"
        );
    }
}

//! The network backends of a device's shards: one backend each, of one kind, on one interface.

use std::net::IpAddr;

use rxe_core::types::Gid;
use rxe_net::{
    Backend, BackendKind, NetError, PacketBackend, PacketConfig, Sharing, Shm, UdpBackend,
    UdpConfig, XdpBackend, XdpConfig, XdpInterface,
};

use super::SourcePortPolicy;

/// The options with which a device's backends are opened.
#[derive(Clone, Debug)]
pub(super) struct WireOptions {
    pub(super) kind: BackendKind,
    /// The size of the receive buffer in bytes, instead of the backend's default.
    pub(super) recv_buffer: Option<usize>,
    /// Whether processes of this host are reached through shared memory.
    pub(super) shared_memory: bool,
    /// Whether the kernel segments and merges packets.
    pub(super) segmentation: bool,
    pub(super) source_port: SourcePortPolicy,
}

impl Default for WireOptions {
    fn default() -> Self {
        Self {
            kind: BackendKind::default(),
            recv_buffer: None,
            shared_memory: true,
            segmentation: true,
            source_port: SourcePortPolicy::default(),
        }
    }
}

/// Opens the backends of a device's shards.
#[derive(Debug)]
pub(super) struct Wire {
    options: WireOptions,
    netdev: String,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Udp,
    Packet,
    /// AF_XDP, with the state that the backends share.
    Xdp(XdpInterface),
}

impl Wire {
    /// Prepares an interface for up to `shards` shards.
    pub(super) fn prepare(
        options: &WireOptions,
        netdev: &str,
        shards: u32,
    ) -> Result<Self, NetError> {
        let way = match options.kind {
            BackendKind::Udp => Way::Udp,
            BackendKind::Packet => Way::Packet,
            BackendKind::Xdp(mode) => Way::Xdp(XdpInterface::open(netdev, mode, shards)?),
        };
        Ok(Self { options: options.clone(), netdev: netdev.to_owned(), way })
    }

    /// Opens a backend for one more shard.
    pub(super) fn open(&self, gids: &[Gid]) -> Result<Box<dyn Backend>, NetError> {
        let netdev = self.netdev.clone();
        let addresses: Vec<_> = gids.iter().filter(|g| !g.is_zero()).map(Gid::to_ip).collect();
        let WireOptions { recv_buffer, segmentation, source_port, .. } = self.options;
        match &self.way {
            Way::Udp => {
                let mut config = UdpConfig::new(netdev, addresses);
                config.recv_buffer = recv_buffer.unwrap_or(config.recv_buffer);
                config.segment = segmentation;
                config.source_port = source_port.fixed();
                self.with_memory(UdpBackend::open(&config)?, &config.addresses)
            }
            Way::Packet => {
                let mut config = PacketConfig::new(netdev, addresses);
                config.buffer = recv_buffer.unwrap_or(config.buffer);
                config.segment = segmentation;
                self.with_memory(PacketBackend::open(&config)?, &config.addresses)
            }
            Way::Xdp(interface) => {
                let mut config = XdpConfig::new(netdev, addresses);
                config.buffer = recv_buffer.unwrap_or(config.buffer);
                self.with_memory(XdpBackend::on(interface, &config)?, &config.addresses)
            }
        }
    }

    fn with_memory(
        &self,
        wire: impl Backend + Sharing + 'static,
        addresses: &[IpAddr],
    ) -> Result<Box<dyn Backend>, NetError> {
        if self.options.shared_memory {
            Ok(Box::new(Shm::new(wire, addresses)?))
        } else {
            Ok(Box::new(wire))
        }
    }
}

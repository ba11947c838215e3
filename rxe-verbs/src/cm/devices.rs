//! Finds the device that leads to an address. IBTA annex A11; `rdma_resolve_addr`.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::types::Gid;
use rxe_net::Scope;
use rxe_sys::PerProcess;

use crate::device::{Device, DeviceInfo, WeakDevice};
use crate::error::{Error, Result};

/// A source of devices for a channel's identifiers.
pub trait DeviceSource: Send + Sync {
    /// Returns the device that has this address.
    ///
    /// # Errors
    /// No device has the address, or the device cannot be opened.
    fn with_address(&self, address: IpAddr) -> Result<Device>;

    /// Returns the device that leads to a peer, and the own address to use. The address is the one
    /// from which the kernel would send, or that of a layer 2 endpoint on the peer's network.
    ///
    /// # Errors
    /// The kernel has no route, no device has that address, or the device cannot be opened.
    fn towards(&self, peer: SocketAddr) -> Result<(Device, IpAddr)> {
        let own = source_for(peer, &self.known());
        let own = own.map_err(|e| Error::io("find a route to the peer", e))?;
        Ok((self.with_address(own)?, own))
    }

    /// Lists the devices among which [`DeviceSource::with_address`] chooses.
    fn known(&self) -> Vec<DeviceInfo>;

    /// Returns all devices that can be opened. An unspecified address covers them all.
    fn all(&self) -> Vec<Device>;
}

/// Returns the source of this host's devices. It opens a device when it is first needed. Channels
/// of this process share the devices that are still open.
pub(super) fn of_host() -> Arc<dyn DeviceSource> {
    static HOST: PerProcess<Arc<Host>> = PerProcess::new();
    Arc::<Host>::clone(HOST.get())
}

#[derive(Default)]
struct Host {
    open: Mutex<HashMap<String, WeakDevice>>,
}

impl Host {
    fn open(&self, info: &DeviceInfo) -> Result<Device> {
        let mut open = self.open.lock();
        // A new interface of the same name is another device.
        if let Some(device) = open.get(info.name()).and_then(WeakDevice::upgrade)
            && !device.is_removed()
        {
            return Ok(device);
        }
        let device = Device::open(info.name())?;
        open.insert(info.name().into(), device.downgrade());
        Ok(device)
    }
}

impl DeviceSource for Host {
    fn with_address(&self, address: IpAddr) -> Result<Device> {
        let gid = Gid::from(address);
        let info = DeviceInfo::list()?.into_iter().find(|info| info.gids().usable().contains(&gid));
        self.open(&info.ok_or_else(|| none(address))?)
    }

    fn known(&self) -> Vec<DeviceInfo> {
        DeviceInfo::list().unwrap_or_default()
    }

    fn all(&self) -> Vec<Device> {
        self.known().iter().filter_map(|info| self.open(info).ok()).collect()
    }
}

/// A source of exactly these devices.
pub(super) struct Given(pub(super) Vec<Device>);

impl DeviceSource for Given {
    fn with_address(&self, address: IpAddr) -> Result<Device> {
        let gid = Gid::from(address);
        let device = self.0.iter().find(|device| device.gids().contains(&gid));
        device.cloned().ok_or_else(|| none(address))
    }

    /// Returns the kernel's choice of device or, if it is not among these, one that reaches the
    /// peer.
    fn towards(&self, peer: SocketAddr) -> Result<(Device, IpAddr)> {
        let is_simulated = |device: &Device| device.shard().environment().is_simulated();
        if !self.0.iter().any(is_simulated)
            && let Ok(own) = source_for(peer, &self.known())
            && let Ok(device) = self.with_address(own)
        {
            return Ok((device, own));
        }
        let device = self.0.iter().find(|device| device.reaches(peer.ip()));
        let device = device.ok_or_else(|| none(peer.ip()))?;
        let own = device.gid(device.gid_index_for(peer.ip().into()))?;
        Ok((device.clone(), own.to_ip()))
    }

    fn known(&self) -> Vec<DeviceInfo> {
        self.0.iter().map(|device| device.info().clone()).collect()
    }

    fn all(&self) -> Vec<Device> {
        self.0.clone()
    }
}

/// Returns the own address to use towards a peer.
///
/// The kernel does not know layer 2 endpoints. So an endpoint on the peer's network is chosen
/// first, unless an interface of the host is on that network too. An endpoint that has the peer's
/// address itself is the last choice, because another process may share that address.
fn source_for(peer: SocketAddr, devices: &[DeviceInfo]) -> io::Result<IpAddr> {
    // The own address is mapped into IPv6 if the peer's address is.
    if let IpAddr::V4(plain) = peer.ip().to_canonical()
        && peer.is_ipv6()
    {
        return Ok(match source_for((plain, peer.port()).into(), devices)? {
            IpAddr::V4(own) => own.to_ipv6_mapped().into(),
            own @ IpAddr::V6(_) => own,
        });
    }
    let near = |info: &DeviceInfo| {
        let mut global = info.interface().addresses.iter().filter(|a| a.scope != Scope::Link);
        global.find(|a| a.is_near(peer.ip())).map(|a| a.ip)
    };
    let (endpoints, others): (Vec<_>, Vec<_>) =
        devices.iter().partition(|info| info.endpoint().is_some());
    let own = endpoints.into_iter().filter_map(near).min_by_key(|own| *own == peer.ip());
    match own {
        Some(own) if others.into_iter().all(|info| near(info).is_none()) => Ok(own),
        _ => system_source(peer),
    }
}

/// Returns the own address from which the kernel would send to a peer.
fn system_source(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // `connect` sends nothing here, and refuses port 0.
    let mut peer = peer;
    peer.set_port(peer.port().max(1));
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

fn none(address: IpAddr) -> Error {
    let source = io::Error::from_raw_os_error(libc::ENODEV);
    let what = match address {
        IpAddr::V4(_) => "find a device with that IPv4 address",
        IpAddr::V6(_) => "find a device with that IPv6 address",
    };
    Error::Io { what, source }
}

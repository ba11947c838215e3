//! Chooses the device, port and GID of a command.

use std::net::IpAddr;

use rxe_core::types::Gid;
use rxe_net::Address;
use rxe_verbs::device::{DeviceError, DeviceInfo};

use super::Error;

/// The options by which perftest and the pingpongs choose a device, port and GID.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// Use this device (or interface); without it, the one that leads to the peer
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port; each device has the one port 1
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = DeviceInfo::PORT)]
    pub(crate) ib_port: u8,
    /// Use this entry of the device's GID table (see `rxe gids`); without it, the best one
    #[arg(short = 'g', long = "gid-idx", alias = "gid-index", value_name = "INDEX")]
    pub(crate) gid_idx: Option<usize>,
}

/// The device and the GID that [`DeviceArgs`] chose.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    pub(crate) device: DeviceInfo,
    pub(crate) gid: Gid,
}

impl DeviceArgs {
    /// Chooses a device, port and GID. `peer` is the address that the user named, if any. Without
    /// options, a device is chosen from which the peer can be reached.
    pub(crate) fn select(&self, peer: Option<IpAddr>) -> Result<Selected, Error> {
        let device = match (&self.ib_dev, peer) {
            (Some(name), _) => DeviceInfo::find(name)?,
            (None, Some(peer)) => towards(DeviceInfo::list()?, peer)?,
            (None, None) => DeviceInfo::first()?,
        };
        check_port(&device, self.ib_port)?;
        let gid_index = match self.gid_idx {
            Some(index) => check_gid(&device, index)?,
            None => best_gid(&device, peer)?,
        };
        let gid = device.gids().get(gid_index).map_or(Gid::ZERO, |e| e.gid);
        Ok(Selected { device, gid })
    }
}

/// Returns the device of this name, or all devices.
pub(crate) fn chosen_devices(name: Option<&str>) -> Result<Vec<DeviceInfo>, Error> {
    let devices = match name {
        Some(name) => vec![DeviceInfo::find(name)?],
        None => DeviceInfo::list()?,
    };
    if devices.is_empty() { Err(DeviceError::None.into()) } else { Ok(devices) }
}

/// Fails unless `port` is 1, the only port.
pub(crate) fn check_port(device: &DeviceInfo, port: u8) -> Result<(), Error> {
    if port == DeviceInfo::PORT {
        return Ok(());
    }
    let what = format!("{} has no port {port}", device.name());
    Err(Error::new(what, "use port 1, the only one, or leave the port out"))
}

/// Returns the device on the network of `peer`, or the first device. If several are on its network,
/// the longest prefix wins.
fn towards(devices: Vec<DeviceInfo>, peer: IpAddr) -> Result<DeviceInfo, Error> {
    let prefix = |device: &DeviceInfo| {
        let near = device.interface().addresses.iter().filter(|a| !a.tentative && a.is_near(peer));
        near.map(|a| a.prefix_len).max()
    };
    let near = devices.iter().enumerate().rev().filter_map(|(i, d)| Some((prefix(d)?, i)));
    let at = near.max_by_key(|(prefix, _)| *prefix).map_or(0, |(_, i)| i);
    devices.into_iter().nth(at).ok_or_else(|| DeviceError::None.into())
}

/// Returns the device of this name, which must belong to an interface of this host.
pub(crate) fn interface_device(name: &str) -> Result<DeviceInfo, Error> {
    let device = DeviceInfo::find(name)?;
    if device.endpoint().is_none() {
        return Ok(device);
    }
    let what = format!("{name} is no interface of this host, but has an address of its own");
    Err(Error::new(what, "choose another device: `rxe devices` lists them with their interfaces"))
}

/// Returns the device's best address for packets to `peer`.
pub(crate) fn best_address(device: &DeviceInfo, peer: IpAddr) -> Result<IpAddr, Error> {
    let index = best_gid(device, Some(peer))?;
    Ok(device.gids().get(index).map_or(peer, |entry| entry.gid.to_ip()))
}

fn check_gid(device: &DeviceInfo, index: usize) -> Result<usize, Error> {
    let gids = device.gids();
    let see = || format!("see `rxe gids {}`", device.name());
    match gids.get(index) {
        Some(entry) if entry.is_usable() => Ok(index),
        Some(entry) if entry.address.is_some() => {
            let what = format!("GID {index} ({}) cannot be used yet", entry.gid.to_ip());
            Err(Error::new(what, TENTATIVE))
        }
        Some(entry) => {
            let netdev = &device.interface().name;
            let what = format!("GID {index} ({}) is no address of {netdev}", entry.gid.to_ip());
            Err(Error::new(what, format!("choose another, {}", see())))
        }
        None => {
            let what = format!("{} has no GID {index}", device.name());
            let last = gids.len().saturating_sub(1);
            Err(Error::new(what, format!("choose one from 0 to {last}, {}", see())))
        }
    }
}

/// The advice for a tentative address.
const TENTATIVE: &str = "the system still checks that no other host has its IPv6 address, or waits \
                         for a link: try again in a second or two";

fn best_gid(device: &DeviceInfo, peer: Option<IpAddr>) -> Result<usize, Error> {
    let gids = device.gids();
    let found = match peer {
        Some(peer) => gids.preferred_for(peer),
        None => gids.preferred(),
    };
    found.ok_or_else(|| {
        let family = peer.map_or("usable", |p| if p.is_ipv4() { "IPv4" } else { "IPv6" });
        let what = format!("{} has no {family} address", device.name());
        let interface = device.interface();
        let netdev = &interface.name;
        let of_family = |ip: IpAddr| peer.is_none_or(|p| p.is_ipv4() == ip.is_ipv4());
        let tentative = interface.addresses.iter().filter(|a| a.tentative && of_family(a.ip));
        match tentative.min_by_key(|a| a.duplicate) {
            Some(Address { ip, duplicate: true, .. }) => {
                let what = format!("{what}: another host has {ip}, as the system has found");
                return Error::new(what, format!("give {netdev} another address"));
            }
            Some(_) => return Error::new(format!("{what} yet"), TENTATIVE),
            None => {}
        }
        Error::new(what, format!("give {netdev} one, or choose another device with -d"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_net::{Interface, MacAddr, Scope};

    fn device(name: &str, addresses: &[(&str, u8)]) -> DeviceInfo {
        let addresses = addresses.iter().map(|&(ip, prefix_len)| Address {
            ip: ip.parse().unwrap(),
            prefix_len,
            scope: Scope::Global,
            tentative: false,
            duplicate: false,
        });
        DeviceInfo::from(Interface {
            name: name.into(),
            index: 2,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: 1500,
            up: true,
            running: true,
            loopback: name == "lo",
            addresses: addresses.collect(),
        })
    }

    #[test]
    fn the_peers_smallest_network_chooses_the_device() {
        let host = || {
            vec![
                device("eth0", &[("10.0.0.1", 8)]),
                device("eth1", &[("10.1.0.1", 16), ("fd00::1", 64)]),
                device("lo", &[("127.0.0.1", 8), ("::1", 128)]),
            ]
        };
        for (peer, name) in [
            ("10.2.0.9", "rxe_eth0"),
            ("10.1.0.9", "rxe_eth1"),
            ("fd00::9", "rxe_eth1"),
            ("127.0.0.1", "rxe_lo"),
            ("::1", "rxe_lo"),
            ("8.8.8.8", "rxe_eth0"),
        ] {
            assert_eq!(towards(host(), peer.parse().unwrap()).unwrap().name(), name, "{peer}");
        }
    }

    #[test]
    fn a_gid_that_can_not_be_used_is_refused_with_a_reason() {
        let eth0 = device("eth0", &[("10.0.0.1", 24)]);
        let refusal = |index| check_gid(&eth0, index).unwrap_err().to_string();
        assert_eq!(check_gid(&eth0, 1).unwrap(), 1);
        assert_eq!(
            refusal(0),
            "GID 0 (fe80::ff:fe00:1) is no address of eth0: choose another, see `rxe gids rxe_eth0`"
        );
        assert_eq!(
            refusal(2),
            "rxe_eth0 has no GID 2: choose one from 0 to 1, see `rxe gids rxe_eth0`"
        );
    }

    #[test]
    fn a_device_whose_address_is_tentative_says_so() {
        let device = device("eth0", &[("fd00::1", 64)]);
        let mut interface = device.interface().clone();
        interface.addresses[0].tentative = true;
        let eth0 = DeviceInfo::from(interface);
        let refusal = |peer: Option<&str>| {
            best_gid(&eth0, peer.map(|p| p.parse().unwrap())).unwrap_err().to_string()
        };
        assert!(refusal(None).starts_with("rxe_eth0 has no usable address yet: the system still"));
        assert!(refusal(None).ends_with("for a link: try again in a second or two"));
        assert!(refusal(Some("fd00::2")).starts_with("rxe_eth0 has no IPv6 address yet: the"));
        assert!(refusal(Some("10.0.0.2")).starts_with("rxe_eth0 has no IPv4 address: give eth0"));
    }

    #[test]
    fn a_device_whose_address_another_host_has_says_so() {
        let device = device("eth0", &[("fd00::1", 64), ("fd00::2", 64)]);
        let mut interface = device.interface().clone();
        for address in &mut interface.addresses {
            (address.tentative, address.duplicate) = (true, true);
        }
        let refusal = |interface: &Interface| {
            best_gid(&DeviceInfo::from(interface.clone()), None).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(&interface),
            "rxe_eth0 has no usable address: another host has fd00::1, as the system has found: \
             give eth0 another address"
        );
        // The other address is not a duplicate yet, so it may become usable.
        interface.addresses[1].duplicate = false;
        assert!(refusal(&interface).starts_with("rxe_eth0 has no usable address yet: the system"));
    }

    #[test]
    fn a_peer_of_another_family_is_refused() {
        let eth0 = device("eth0", &[("10.0.0.1", 24)]);
        assert_eq!(best_gid(&eth0, Some("10.9.9.9".parse().unwrap())).unwrap(), 1);
        assert_eq!(
            best_gid(&eth0, Some("fd00::1".parse().unwrap())).unwrap_err().to_string(),
            "rxe_eth0 has no IPv6 address: give eth0 one, or choose another device with -d"
        );
    }
}

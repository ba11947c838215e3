//! The list of devices and their names.
//!
//! Each interface with an address is a device `rxe_NETDEV`, the name that users of `rdma link add`
//! give to kernel devices, unless its user has chosen another ([`super::links`]). Wherever a device
//! is asked for, `rxe_NETDEV` and the interface's own name work as well. Endpoints that a user has
//! added are further devices; their interface has their name.

use rxe_core::engine::Limits;
use rxe_net::{GidTable, Interface, L2Config};

use super::endpoints::EndpointLink;
use super::links::{Links, PREFIX, default_name};
use super::{DeviceAttr, Guid, PortAttr};
use crate::device_error::DeviceError;

/// A description of a device, taken from its interface without opening the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    name: String,
    interface: Interface,
    gids: GidTable,
    /// The endpoint's configuration, if the device is not an interface of the host.
    endpoint: Option<L2Config>,
}

impl DeviceInfo {
    /// The number of a device's only port.
    pub const PORT: u8 = 1;

    /// The first number of our devices if the host's own are shown too: `uverbs1000`, while those
    /// of the host begin with `uverbs0`.
    pub const FIRST_BESIDE_HOST: usize = 1000;

    /// Returns all devices. The first is the default of programs that name none.
    ///
    /// Devices that reach other hosts come first, ports that are up before those that are down, in
    /// the order of interface numbers; loopback comes last.
    ///
    /// # Errors
    /// Fails with [`DeviceError::Os`] if the interfaces cannot be listed.
    pub fn list() -> Result<Vec<Self>, DeviceError> {
        Ok(from_interfaces(Interface::list().map_err(DeviceError::Os)?, &Links::read()))
    }

    /// Returns the devices that are offered to a program that names none.
    ///
    /// Like [`DeviceInfo::list`], but with loopback only if it has been named (`rxe link add`) or
    /// no other port is up. Programs that use all devices simultaneously, such as UCX, would take
    /// loopback for a further path to other hosts.
    ///
    /// # Errors
    /// Fails with [`DeviceError::Os`] if the interfaces cannot be listed.
    pub fn offered() -> Result<Vec<Self>, DeviceError> {
        let links = Links::read();
        let interfaces = Interface::list().map_err(DeviceError::Os)?;
        Ok(offered(from_interfaces(interfaces, &links), &links))
    }

    /// Returns the device with this name, or on the interface with this name.
    ///
    /// # Errors
    /// Fails with a [`DeviceError`] that lists the existing devices.
    pub fn find(name: &str) -> Result<Self, DeviceError> {
        let interfaces = Interface::list().map_err(DeviceError::Os)?;
        find(name, interfaces, &Links::read())
    }

    /// Returns the first device of [`DeviceInfo::list`].
    ///
    /// # Errors
    /// Fails with [`DeviceError::None`] if no interface has an address, and like
    /// [`DeviceInfo::list`].
    pub fn first() -> Result<Self, DeviceError> {
        Self::list()?.into_iter().next().ok_or(DeviceError::None)
    }

    /// Returns whether this is a name of the device: its own, `rxe_NETDEV`, or its interface's.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || names(name, &self.interface.name)
    }

    /// Returns the name, such as `rxe_eth0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface, as of when this description was created.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the configuration of an endpoint of layer 2; `None` for an interface of the host.
    pub fn endpoint(&self) -> Option<&L2Config> {
        self.endpoint.as_ref()
    }

    fn of_endpoint(link: &EndpointLink) -> Self {
        let EndpointLink { name, index, config } = link.clone();
        let interface = config.interface(&name, index);
        Self { gids: interface.gids(), name, interface, endpoint: Some(config) }
    }

    /// Returns the device with a newer state of its interface.
    pub(super) fn with_interface(self, interface: Interface) -> Self {
        Self { gids: interface.gids(), interface, ..self }
    }

    /// Returns the GID table, as of when this description was created.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Returns the node GUID, which identifies the device.
    pub fn guid(&self) -> Guid {
        self.attr().node_guid
    }

    /// Returns the capabilities and limits of the device if it is opened with default options.
    pub fn attr(&self) -> DeviceAttr {
        DeviceAttr::of(&self.interface, &Limits::default())
    }

    /// Returns the attributes of the port.
    pub fn port_attr(&self) -> PortAttr {
        PortAttr::of(&self.interface)
    }
}

/// Describes the device on an interface. If the interface has no addresses, the device can hardly be
/// used, and [`DeviceInfo::list`] leaves it out.
impl From<Interface> for DeviceInfo {
    fn from(interface: Interface) -> Self {
        let name = default_name(&interface.name);
        Self { name, gids: interface.gids(), interface, endpoint: None }
    }
}

fn from_interfaces(interfaces: Vec<Interface>, links: &Links) -> Vec<DeviceInfo> {
    let with_address = interfaces.into_iter().filter(|i| !i.addresses.is_empty());
    let mut devices: Vec<_> = with_address.map(|i| named(i, links)).collect();
    devices.extend(links.endpoints().iter().map(DeviceInfo::of_endpoint));
    devices.sort_by_key(|d| (d.interface.loopback, !d.interface.running, d.interface.index));
    devices
}

fn offered(mut all: Vec<DeviceInfo>, links: &Links) -> Vec<DeviceInfo> {
    let leads_elsewhere = |d: &DeviceInfo| !d.interface.loopback && d.interface.running;
    if all.iter().any(leads_elsewhere) {
        all.retain(|d| !d.interface.loopback || links.name_of(d.interface.index).is_some());
    }
    all
}

fn named(interface: Interface, links: &Links) -> DeviceInfo {
    let link = links.name_of(interface.index).map(str::to_owned);
    let mut device = DeviceInfo::from(interface);
    if let Some(name) = link {
        device.name = name;
    } else if links.has(&device.name) {
        // Another interface was given this name before this one appeared.
        device.name = format!("{}.{}", device.name, device.interface.index);
    }
    device
}

fn find(name: &str, interfaces: Vec<Interface>, links: &Links) -> Result<DeviceInfo, DeviceError> {
    let is_called =
        |i: &&Interface| names(name, &i.name) || links.name_of(i.index).is_some_and(|n| n == name);
    let bare = interfaces.iter().filter(|i| i.addresses.is_empty()).find(is_called);
    let bare = bare.map(|i| i.name.clone());
    let mut devices = from_interfaces(interfaces, links);
    // A device's own name takes precedence over an interface of the same name.
    let at = devices.iter().position(|d| d.name == name);
    let at = at.or_else(|| devices.iter().position(|d| default_name(&d.interface.name) == name));
    let at = at.or_else(|| devices.iter().position(|d| d.interface.name == name));
    if let Some(at) = at {
        return Ok(devices.swap_remove(at));
    }
    let devices: Vec<_> = devices.into_iter().map(|d| d.name).collect();
    Err(match bare {
        Some(netdev) => DeviceError::NoAddress { netdev, devices },
        None if devices.is_empty() => DeviceError::None,
        None => DeviceError::NoSuch { name: name.into(), devices },
    })
}

fn names(name: &str, netdev: &str) -> bool {
    name == netdev || name.strip_prefix(PREFIX) == Some(netdev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_net::{Address, MacAddr, Scope};

    fn interface(index: u32, name: &str, address: Option<&str>) -> Interface {
        let address = address.map(|text| Address {
            ip: text.parse().unwrap(),
            prefix_len: 24,
            scope: Scope::Global,
            tentative: false,
            duplicate: false,
        });
        Interface {
            name: name.into(),
            index,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
            mtu: 1500,
            up: true,
            running: true,
            loopback: name == "lo",
            addresses: address.into_iter().collect(),
        }
    }

    fn host() -> Vec<Interface> {
        let mut down = interface(2, "eth0", Some("10.0.0.1"));
        down.running = false;
        vec![
            interface(1, "lo", Some("127.0.0.1")),
            down,
            interface(3, "eth1", Some("10.0.1.1")),
            interface(4, "eth2", None),
        ]
    }

    fn message(name: &str, interfaces: Vec<Interface>) -> String {
        find(name, interfaces, &Links::default()).unwrap_err().to_string()
    }

    #[test]
    fn the_first_is_up_and_leads_elsewhere_and_loopback_is_last() {
        let names: Vec<_> =
            from_interfaces(host(), &Links::default()).into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["rxe_eth1", "rxe_eth0", "rxe_lo"]);
    }

    #[test]
    fn loopback_is_offered_where_nothing_else_is_up_or_where_it_was_named() {
        let offered = |interfaces, links: &str| {
            let links = Links::parse(links);
            let all = offered(from_interfaces(interfaces, &links), &links);
            all.into_iter().map(|d| d.name).collect::<Vec<_>>()
        };
        assert_eq!(offered(host(), ""), ["rxe_eth1", "rxe_eth0"]);
        assert_eq!(offered(host(), "1 rxe0\n"), ["rxe_eth1", "rxe_eth0", "rxe0"]);
        let without_eth1 = || host().into_iter().filter(|i| i.index != 3).collect::<Vec<_>>();
        assert_eq!(offered(without_eth1(), ""), ["rxe_eth0", "rxe_lo"], "eth0 is down");
        assert_eq!(offered(vec![interface(1, "lo", Some("127.0.0.1"))], ""), ["rxe_lo"]);
    }

    #[test]
    fn both_names_find_a_device() {
        for name in ["rxe_eth1", "eth1"] {
            assert_eq!(find(name, host(), &Links::default()).unwrap().name(), "rxe_eth1");
        }
        let twins = vec![
            interface(1, "rxe_eth0", Some("10.0.0.1")),
            interface(2, "eth0", Some("10.0.0.2")),
        ];
        assert_eq!(find("rxe_eth0", twins, &Links::default()).unwrap().interface().index, 2);
    }

    #[test]
    fn a_given_name_is_shown_and_all_three_names_find_the_device() {
        let links = Links::parse("3 rxe0\n2 rxe_lo\n4 rxe7\n");
        let names: Vec<_> = from_interfaces(host(), &links).into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["rxe0", "rxe_lo", "rxe_lo.1"]);
        for name in ["rxe0", "rxe_eth1", "eth1"] {
            let found = find(name, host(), &links).unwrap();
            assert_eq!((found.name(), found.interface().index), ("rxe0", 3));
            assert!(found.is_called(name) && !found.is_called("rxe_lo"));
        }
        assert_eq!(find("rxe_lo", host(), &links).unwrap().interface().name, "eth0");
        assert_eq!(find("lo", host(), &links).unwrap().interface().name, "lo");
        assert!(matches!(find("rxe7", host(), &links), Err(DeviceError::NoAddress { .. })));
    }

    #[test]
    fn an_endpoint_is_a_device_by_its_name() {
        let links = Links::parse("l2 1073741824 vm0 qemu:/tmp/x address 10.0.0.9/24\n");
        let names: Vec<_> = from_interfaces(host(), &links).into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["rxe_eth1", "vm0", "rxe_eth0", "rxe_lo"]);
        let vm0 = find("vm0", host(), &links).unwrap();
        let config = vm0.endpoint().unwrap();
        assert_eq!(vm0.interface().mac, Some(config.mac));
        assert_eq!(vm0.gids().len(), 2, "link-local and named");
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        assert_eq!(
            message("mlx5_0", host()),
            "no device \"mlx5_0\": use rxe_eth1, rxe_eth0 or rxe_lo"
        );
        assert_eq!(
            message("eth2", host()),
            "interface eth2 has no address, so it is no device: give it one (`ip address add \
             ADDRESS/LENGTH dev eth2`), or use rxe_eth1, rxe_eth0 or rxe_lo"
        );
        assert!(matches!(
            find("x", vec![interface(1, "lo", None)], &Links::default()),
            Err(DeviceError::None)
        ));
    }
}

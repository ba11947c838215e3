//! Reads interfaces and addresses from two rtnetlink tables. `rtnetlink(7)`.

use std::io;
use std::net::IpAddr;

use rxe_sys::netlink::{self, Message, Reply, attributes, u16_at, u32_at};

use super::{Address, Interface, MacAddr, Scope};

/// Returns all interfaces with their addresses, by index.
pub(super) fn list() -> io::Result<Vec<Interface>> {
    let links = netlink::dump(RTM_GETLINK, &[0; LINK_HEADER])?;
    let addresses = netlink::dump(RTM_GETADDR, &[0; ADDR_HEADER])?;
    Ok(assemble(&links, &addresses))
}

/// Returns the name of the bridge, bond or similar interface that takes the frames of the interface
/// with this index, which is its port.
pub(super) fn owner_of_port(index: u32) -> io::Result<Option<String>> {
    Ok(owner(&netlink::dump(RTM_GETLINK, &[0; LINK_HEADER])?, index))
}

fn owner(links: &Reply, index: u32) -> Option<String> {
    let about = |index| move |m: &Message<'_>| m.kind == RTM_NEWLINK && about(m) == Some(index);
    let port = links.messages().find(about(index))?;
    let master = attribute(&port, IFLA_MASTER).and_then(|value| u32_at(value, 0))?;
    let kind = attributes(attribute(&port, IFLA_LINKINFO).unwrap_or_default())
        .find_map(|(kind, value)| (kind == IFLA_INFO_SLAVE_KIND).then(|| text(value)));
    // A VRF does not take its port's frames; it only has its own routes.
    if kind.is_some_and(|kind| kind == "vrf") {
        return None;
    }
    let name = links
        .messages()
        .find(about(master))
        .and_then(|master| attribute(&master, IFLA_IFNAME).map(text));
    Some(name.unwrap_or_else(|| format!("interface {master}")))
}

/// Returns the place of an interface's XDP program, as ip-link(8) calls it, and the program's ID.
pub(super) fn xdp_program(index: u32) -> io::Result<Option<(&'static str, u32)>> {
    let mut request = [0; LINK_HEADER];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let reply = netlink::get(RTM_GETLINK, &request)?;
    Ok(reply.messages().find_map(|link| program(&link)))
}

fn program(link: &Message<'_>) -> Option<(&'static str, u32)> {
    attributes(attribute(link, IFLA_XDP)?).find_map(|(kind, value)| {
        let place = match kind {
            IFLA_XDP_DRV_PROG_ID => "xdpdrv",
            IFLA_XDP_SKB_PROG_ID => "xdpgeneric",
            _ => return None,
        };
        Some((place, u32_at(value, 0)?))
    })
}

fn attribute<'a>(message: &Message<'a>, wanted: u16) -> Option<&'a [u8]> {
    attributes(message.body.get(LINK_HEADER..)?)
        .find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Returns the index of the interface that a message is about, if it is about a link or an address.
pub(super) fn about(message: &Message<'_>) -> Option<u32> {
    match message.kind {
        // Both headers have the index at offset 4.
        RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => u32_at(message.body, 4),
        _ => None,
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

/// The size of `struct ifinfomsg` in bytes.
const LINK_HEADER: usize = 16;
/// The size of `struct ifaddrmsg` in bytes.
const ADDR_HEADER: usize = 8;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
/// The interface has a carrier. (`IFF_RUNNING` is nearly the same, but is set later.)
const IFF_LOWER_UP: u32 = 0x1_0000;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Joins links and addresses into interfaces.
fn assemble(links: &Reply, addresses: &Reply) -> Vec<Interface> {
    let mut interfaces: Vec<_> = links.messages().filter_map(|m| link(&m)).collect();
    interfaces.sort_by_key(|i| i.index);
    for (index, address) in addresses.messages().filter_map(|m| address(&m)) {
        if let Ok(at) = interfaces.binary_search_by_key(&index, |i| i.index) {
            interfaces[at].addresses.push(address);
        }
    }
    for interface in &mut interfaces {
        // Sorted here, so as not to rely on the kernel to dump one family after the other. The sort
        // is stable: within a family the kernel's order stays.
        interface.addresses.sort_by_key(|a| a.ip.is_ipv6());
    }
    interfaces
}

fn link(message: &Message<'_>) -> Option<Interface> {
    // The bridge family repeats the ports of bridges, which are not further interfaces.
    if message.kind != RTM_NEWLINK || *message.body.first()? != AF_UNSPEC {
        return None;
    }
    let hardware = u16_at(message.body, 2)?;
    let index = u32_at(message.body, 4)?;
    let flags = u32_at(message.body, 8)?;
    let (mut name, mut mac, mut mtu) = (None, None, 0);
    for (kind, value) in attributes(message.body.get(LINK_HEADER..)?) {
        match kind {
            IFLA_IFNAME => name = Some(text(value)),
            IFLA_ADDRESS if matches!(hardware, ARPHRD_ETHER | ARPHRD_LOOPBACK) => {
                mac = value.try_into().ok().map(MacAddr);
            }
            IFLA_MTU => mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(Interface {
        name: name?,
        index,
        mac,
        mtu,
        up: flags & IFF_UP != 0,
        running: flags & IFF_UP != 0 && flags & IFF_LOWER_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        addresses: Vec::new(),
    })
}

/// Parses an address message into the interface index and the address.
fn address(message: &Message<'_>) -> Option<(u32, Address)> {
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let &[family, prefix_len, old_flags, scope] = message.body.first_chunk::<4>()?;
    let index = u32_at(message.body, 4)?;
    let (mut own, mut other, mut flags) = (None, None, u32::from(old_flags));
    for (kind, value) in attributes(message.body.get(ADDR_HEADER..)?) {
        match kind {
            // On a point-to-point link IFA_ADDRESS is the peer and IFA_LOCAL our own address.
            IFA_LOCAL => own = ip(family, value),
            IFA_ADDRESS => other = ip(family, value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let duplicate = flags & IFA_F_DADFAILED != 0;
    let checked = flags & IFA_F_TENTATIVE == 0 || flags & IFA_F_OPTIMISTIC != 0;
    let (ip, scope) = (own.or(other)?, scope_of(scope)?);
    let tentative = duplicate || !checked;
    Some((index, Address { ip, prefix_len, scope, tentative, duplicate }))
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Converts an `RT_SCOPE_*`. Administrators may define the numbers between the named ones.
fn scope_of(number: u8) -> Option<Scope> {
    match number {
        0..200 => Some(Scope::Global),
        200..253 => Some(Scope::Site),
        253 => Some(Scope::Link),
        254 => Some(Scope::Host),
        255 => None,
    }
}

/// Returns a name without its terminating zero byte.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
        out.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    fn link_message(hardware: u16, index: u32, flags: u32, name: &str, mac: &[u8]) -> Vec<u8> {
        let mut body = vec![AF_UNSPEC, 0];
        body.extend(hardware.to_ne_bytes());
        body.extend(index.to_ne_bytes());
        body.extend(flags.to_ne_bytes());
        body.extend([0; 4]);
        attribute(&mut body, IFLA_IFNAME, format!("{name}\0").as_bytes());
        attribute(&mut body, IFLA_MTU, &1500_u32.to_ne_bytes());
        attribute(&mut body, IFLA_ADDRESS, mac);
        body
    }

    fn addr_message(index: u32, scope: u8, flags: u32, values: &[(u16, &str)]) -> Vec<u8> {
        let v6 = values[0].1.contains(':');
        let mut body = vec![if v6 { AF_INET6 } else { AF_INET }, 24, 0, scope];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, IFA_FLAGS, &flags.to_ne_bytes());
        for (kind, value) in values {
            match value.parse().unwrap() {
                IpAddr::V4(ip) => attribute(&mut body, *kind, &ip.octets()),
                IpAddr::V6(ip) => attribute(&mut body, *kind, &ip.octets()),
            }
        }
        body
    }

    #[test]
    fn addresses_join_their_interface_ipv4_first() {
        let links = Reply::from_messages(&[
            (RTM_NEWLINK, link_message(1, 7, IFF_UP, "eth1", &[2; 6])),
            (RTM_NEWLINK, link_message(1, 2, IFF_UP | IFF_LOWER_UP, "eth0", &[4; 6])),
        ]);
        let addresses = Reply::from_messages(&[
            (RTM_NEWADDR, addr_message(2, 0, 0x80, &[(IFA_ADDRESS, "fd00::2")])),
            (RTM_NEWADDR, addr_message(2, 253, 0xc0, &[(IFA_ADDRESS, "fe80::1")])),
            (RTM_NEWADDR, addr_message(2, 0, 0x80, &[(IFA_ADDRESS, "10.0.0.2")])),
            (RTM_NEWADDR, addr_message(9, 0, 0, &[(IFA_ADDRESS, "10.9.9.9")])),
        ]);
        let got = assemble(&links, &addresses);
        let names: Vec<_> = got.iter().map(|i| (i.name.as_str(), i.up, i.running)).collect();
        assert_eq!(names, [("eth0", true, true), ("eth1", true, false)]);
        assert_eq!(got[0].mac, Some(MacAddr([4; 6])));
        assert_eq!(got[0].mtu, 1500);
        let ips: Vec<_> =
            got[0].addresses.iter().map(|a| (a.ip.to_string(), a.scope, a.tentative)).collect();
        let expected = [
            ("10.0.0.2".to_string(), Scope::Global, false),
            ("fd00::2".to_string(), Scope::Global, false),
            ("fe80::1".to_string(), Scope::Link, true),
        ];
        assert_eq!(ips, expected);
    }

    #[test]
    fn point_to_point_gives_our_own_end() {
        let values = [(IFA_ADDRESS, "10.0.0.9"), (IFA_LOCAL, "10.0.0.1")];
        let body = addr_message(3, 0, 0, &values);
        let message = Reply::from_messages(&[(RTM_NEWADDR, body)]);
        let (index, got) = address(&message.messages().next().unwrap()).unwrap();
        assert_eq!((index, got.ip.to_string()), (3, "10.0.0.1".to_string()));
    }

    #[test]
    fn a_tunnel_has_no_mac() {
        // ARPHRD_TUNNEL has an IPv4 address in the place of the Ethernet address.
        let body = link_message(768, 4, IFF_UP, "tunl0", &[10, 0, 0, 1]);
        let reply = Reply::from_messages(&[(RTM_NEWLINK, body)]);
        assert_eq!(link(&reply.messages().next().unwrap()).unwrap().mac, None);
    }

    #[test]
    fn cut_off_messages_are_skipped() {
        let whole = link_message(1, 2, IFF_UP, "eth0", &[4; 6]);
        for len in 0..whole.len() {
            let reply = Reply::from_messages(&[(RTM_NEWLINK, whole[..len].to_vec())]);
            assert!(assemble(&reply, &Reply::from_messages(&[])).len() <= 1);
        }
        let whole = addr_message(2, 0, 0, &[(IFA_ADDRESS, "10.0.0.2")]);
        for len in 0..whole.len() {
            let reply = Reply::from_messages(&[(RTM_NEWADDR, whole[..len].to_vec())]);
            assert_eq!(reply.messages().filter_map(|m| address(&m)).count(), 0, "{len} bytes");
        }
    }

    #[test]
    fn the_owner_of_a_port_is_found_and_a_vrf_is_none() {
        let port = |index, master: u32, kind: &str| {
            let mut body = link_message(1, index, IFF_UP, &format!("eth{index}"), &[2; 6]);
            attribute(&mut body, IFLA_MASTER, &master.to_ne_bytes());
            let mut info = Vec::new();
            attribute(&mut info, IFLA_INFO_SLAVE_KIND, format!("{kind}\0").as_bytes());
            attribute(&mut body, IFLA_LINKINFO, &info);
            (RTM_NEWLINK, body)
        };
        let links = Reply::from_messages(&[
            (RTM_NEWLINK, link_message(1, 7, IFF_UP, "br0", &[4; 6])),
            port(1, 7, "bridge"),
            port(2, 7, "vrf"),
            port(3, 9, "bond"),
        ]);
        let owners = [1, 2, 3, 7, 8].map(|index| owner(&links, index));
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(owners, [name("br0"), None, name("interface 9"), None, None]);
    }
}

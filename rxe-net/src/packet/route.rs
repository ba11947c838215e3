//! How to reach an address: which interface, and whose Ethernet address. Asks the kernel's routing
//! and neighbour tables (rtnetlink(7)); keeps the answers for a short while.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::netlink::{self, attributes, u16_at, u32_at};

/// Where to put a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// To this Ethernet address, out of the interface of this number.
    Direct { interface: u32, mac: [u8; 6] },
    /// Only the kernel knows yet (or at all): let it route the packet, and find the neighbour.
    Kernel,
}

/// Paths lately used.
#[derive(Debug, Default)]
pub(super) struct Paths {
    known: HashMap<IpAddr, (Path, Instant)>,
}

/// A path is used this long; then one run goes through the kernel, which so notices that the
/// neighbour is in use and whether it is still there.
const FRESH: Duration = Duration::from_secs(1);
/// An answer that there is no neighbour yet is believed this long.
const UNKNOWN: Duration = Duration::from_millis(2);
/// Destinations kept at most; far more than one engine talks to.
const MANY: usize = 4096;

impl Paths {
    /// The path to `dst`, whose link-local addresses are on the interface `scope`.
    pub(super) fn to(&mut self, dst: IpAddr, scope: u32) -> Path {
        if dst.is_multicast() {
            // The kernel also brings them to the others on this host.
            return Path::Kernel;
        }
        let now = Instant::now();
        match self.known.get(&dst) {
            Some((path, until)) if now < *until => return *path,
            Some((Path::Direct { .. }, _)) => {
                self.known.insert(dst, (Path::Kernel, now));
                return Path::Kernel;
            }
            _ => {}
        }
        if self.known.len() >= MANY {
            self.known.clear();
        }
        // Not being able to ask is no worse than not being told.
        let path = resolve(dst, scope).unwrap_or(Path::Kernel);
        let keep = if path == Path::Kernel { UNKNOWN } else { FRESH };
        self.known.insert(dst, (path, now + keep));
        path
    }

    /// What was known of `dst` did not work.
    pub(super) fn forget(&mut self, dst: IpAddr) {
        self.known.remove(&dst);
    }
}

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;

/// `struct rtmsg` and `struct ndmsg`.
const FIXED: usize = 12;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// NUD_REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: there is an address to send to.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

fn resolve(dst: IpAddr, scope: u32) -> io::Result<Path> {
    let reply = netlink::get(RTM_GETROUTE, &route_request(dst, scope))?;
    for message in reply.messages().filter(|m| m.kind == RTM_NEWROUTE) {
        let Some(route) = parse_route(message.body) else { continue };
        return match route {
            Route { kind: RTN_UNICAST, interface, gateway, foreign: false } => {
                Ok(neighbour(gateway.unwrap_or(dst), interface)?
                    .map_or(Path::Kernel, |mac| Path::Direct { interface, mac }))
            }
            // To this host above all: a frame put onto loopback from outside the IP layer would
            // be taken for a forged one, unless a packet socket is its receiver.
            _ => Ok(Path::Kernel),
        };
    }
    Ok(Path::Kernel)
}

#[derive(Debug, PartialEq, Eq)]
struct Route {
    kind: u8,
    interface: u32,
    gateway: Option<IpAddr>,
    /// The gateway's address is of the other family.
    foreign: bool,
}

fn route_request(dst: IpAddr, scope: u32) -> Vec<u8> {
    let mut m = vec![0; FIXED];
    m[0] = family(dst);
    m[1] = if dst.is_ipv4() { 32 } else { 128 };
    push_attribute(&mut m, RTA_DST, &octets(dst));
    if matches!(dst, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        push_attribute(&mut m, RTA_OIF, &scope.to_ne_bytes());
    }
    m
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let mut route = Route { kind: *body.get(7)?, interface: 0, gateway: None, foreign: false };
    for (kind, value) in attributes(body.get(FIXED..)?) {
        match kind {
            RTA_OIF => route.interface = u32_at(value, 0)?,
            RTA_GATEWAY => route.gateway = Some(address(value)?),
            RTA_VIA => route.foreign = true,
            _ => {}
        }
    }
    Some(route)
}

/// The Ethernet address of a neighbour, if the kernel has one.
fn neighbour(ip: IpAddr, interface: u32) -> io::Result<Option<[u8; 6]>> {
    let mut m = vec![0; FIXED];
    m[0] = family(ip);
    m[4..8].copy_from_slice(&interface.to_ne_bytes());
    push_attribute(&mut m, NDA_DST, &octets(ip));
    let reply = netlink::get(RTM_GETNEIGH, &m)?;
    Ok(reply.messages().filter(|m| m.kind == RTM_NEWNEIGH).find_map(|m| parse_neighbour(m.body)))
}

fn parse_neighbour(body: &[u8]) -> Option<[u8; 6]> {
    if u16_at(body, 8)? & NUD_VALID == 0 {
        return None;
    }
    attributes(body.get(FIXED..)?)
        .find(|(kind, _)| *kind == NDA_LLADDR)
        .and_then(|(_, value)| value.try_into().ok())
}

fn push_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(4 + value.len()).expect("attributes here are a few bytes");
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_and_neighbours_are_read() {
        let mut m = vec![0; FIXED];
        m[7] = RTN_UNICAST;
        push_attribute(&mut m, RTA_OIF, &3u32.to_ne_bytes());
        push_attribute(&mut m, RTA_GATEWAY, &[10, 0, 0, 254]);
        let gateway = Some("10.0.0.254".parse().unwrap());
        let expected = Route { kind: RTN_UNICAST, interface: 3, gateway, foreign: false };
        assert_eq!(parse_route(&m), Some(expected));

        let mut m = vec![0; FIXED];
        m[8] = 0x04;
        push_attribute(&mut m, NDA_LLADDR, &[2, 0, 0, 0, 0, 1]);
        assert_eq!(parse_neighbour(&m), Some([2, 0, 0, 0, 0, 1]));
        m[8] = 0x01; // incomplete
        assert_eq!(parse_neighbour(&m), None);
        assert_eq!(parse_neighbour(&m[..5]), None);
    }
}

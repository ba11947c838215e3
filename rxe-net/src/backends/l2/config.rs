//! The configuration of a layer 2 endpoint, and its textual form.

use std::fmt;
use std::net::IpAddr;
use std::path::{PathBuf, absolute};
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::interface::{Address, Interface, MacAddr, Scope};

/// A layer 2 endpoint with its own Ethernet and IP addresses.
///
/// As text, a link and words after it: `qemu:PATH address 10.0.0.2/24 gateway 10.0.0.1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2Config {
    /// The link that carries the frames.
    pub link: L2Link,
    /// The Ethernet address.
    pub mac: MacAddr,
    /// The largest IP packet that the endpoint sends, in bytes.
    pub mtu: u32,
    /// The addresses and their prefix lengths, in addition to the link-local address made of `mac`.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The gateways to other networks, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// Request an IPv4 address by DHCP.
    pub dhcp: bool,
    /// Perform duplicate address detection before using the addresses.
    pub dad: bool,
    /// The file whose lock keeps other processes from the same endpoint.
    pub lock: Option<PathBuf>,
}

/// The link that carries the frames of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L2Link {
    /// The Unix socket of QEMU's `-netdev stream`.
    Qemu(PathBuf),
    /// The Unix sockets of QEMU's `-netdev dgram`.
    Dgram {
        /// The path of this end: QEMU's `remote.path`.
        own: PathBuf,
        /// The path of the other end: QEMU's `local.path`.
        peer: PathBuf,
    },
    /// The TAP interface with this name.
    Tap(String),
    /// The interface with this name, beside the host's network stack.
    Interface(String),
    /// The interface with this name, beside the host's network stack, by pnet's channel.
    Pnet(String),
}

/// The error of an invalid endpoint configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2ConfigError {
    /// What is wrong.
    pub what: String,
}

/// The maximum number of configured addresses; there is room for a link-local and a DHCP address
/// too.
const MAX_ADDRESSES: usize = 6;
/// The valid MTUs: an IPv6 link must carry 1280 bytes (RFC 8200), and an IP packet has at most
/// 65,535.
const MTUS: std::ops::RangeInclusive<u32> = 1280..=65_535;

impl L2Config {
    /// The syntax of the configuration.
    pub const FORM: &str = "qemu:PATH | dgram:PATH,PATH | tap:NAME | if:NAME | pnet:NAME  \
                            address ADDRESS/LENGTH … [dhcp] [gateway ADDRESS] [mac MAC] \
                            [mtu BYTES] [nodad]";

    /// Returns an endpoint on this link with a random Ethernet address. Its only IP address is the
    /// link-local one.
    pub fn new(link: L2Link) -> Self {
        Self {
            link,
            mac: random_mac(),
            mtu: 1500,
            addresses: Vec::new(),
            gateways: Vec::new(),
            dhcp: false,
            dad: true,
            lock: None,
        }
    }

    /// Parses the words of a configuration, the link first.
    ///
    /// # Errors
    /// A word is unknown, or a value is invalid.
    pub fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, L2ConfigError> {
        let mut words = words.into_iter();
        let link = words.next().ok_or_else(|| wrong("no link is named".into()))?;
        let mut config = Self::new(link.parse()?);
        while let Some(key) = words.next() {
            match key {
                "dhcp" => config.dhcp = true,
                "nodad" => config.dad = false,
                "address" | "gateway" | "mac" | "mtu" => {
                    let Some(value) = words.next() else {
                        return Err(wrong(format!("nothing stands after {key:?}")));
                    };
                    config.set(key, value)?;
                }
                _ => return Err(wrong(format!("{key:?} is no word of an endpoint"))),
            }
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), L2ConfigError> {
        let bad = || wrong(format!("{value:?} is no {key}"));
        match key {
            "address" => {
                let (ip, prefix) = address(value).ok_or_else(|| {
                    wrong(format!(
                        "{value:?} is no address of a host with the length of its network"
                    ))
                })?;
                if self.addresses.len() >= MAX_ADDRESSES {
                    return Err(wrong(format!("there are more than {MAX_ADDRESSES} addresses")));
                }
                if self.addresses.iter().any(|(other, _)| *other == ip) {
                    return Err(wrong(format!("the address {ip} is named twice")));
                }
                self.addresses.push((ip, prefix));
            }
            "gateway" => {
                let ip: IpAddr = value.parse().map_err(|_| bad())?;
                if !is_host(ip) {
                    return Err(bad());
                }
                if self.gateways.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
                    return Err(wrong(format!("{ip} is a second gateway of its family")));
                }
                self.gateways.push(ip);
            }
            "mac" => self.mac = mac(value).ok_or_else(bad)?,
            _ => {
                let mtu = value.parse().ok().filter(|mtu| MTUS.contains(mtu));
                self.mtu = mtu.ok_or_else(bad)?;
            }
        }
        Ok(())
    }

    /// Returns the initial addresses: the configured ones and the link-local one.
    pub fn own_addresses(&self) -> Vec<Address> {
        let named = self.addresses.iter().map(|&(ip, prefix_len)| Address {
            ip,
            prefix_len,
            scope: match ip {
                IpAddr::V6(v6) if v6.is_unicast_link_local() => Scope::Link,
                _ => Scope::Global,
            },
            tentative: false,
            duplicate: false,
        });
        let mut all: Vec<_> = named.collect();
        // IPv4 first, as the kernel lists them.
        all.sort_by_key(|a| a.ip.is_ipv6());
        let local = self.mac.link_local().into();
        if all.iter().all(|a| a.ip != local) {
            all.push(Address {
                ip: local,
                prefix_len: 64,
                scope: Scope::Link,
                tentative: false,
                duplicate: false,
            });
        }
        all
    }

    /// Returns the description of the endpoint as an interface before it is opened.
    pub fn interface(&self, name: &str, index: u32) -> Interface {
        Interface {
            name: name.into(),
            index,
            mac: Some(self.mac),
            mtu: self.mtu,
            up: true,
            running: true,
            loopback: false,
            addresses: self.own_addresses(),
        }
    }
}

/// Writes the words that [`L2Config::from_words`] reads.
impl fmt::Display for L2Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.link)?;
        for (ip, prefix) in &self.addresses {
            write!(f, " address {ip}/{prefix}")?;
        }
        if self.dhcp {
            f.write_str(" dhcp")?;
        }
        for gateway in &self.gateways {
            write!(f, " gateway {gateway}")?;
        }
        write!(f, " mac {} mtu {}", self.mac, self.mtu)?;
        if self.dad { Ok(()) } else { f.write_str(" nodad") }
    }
}

impl fmt::Display for L2Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qemu(path) => write!(f, "qemu:{}", path.display()),
            Self::Dgram { own, peer } => write!(f, "dgram:{},{}", own.display(), peer.display()),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Interface(name) => write!(f, "if:{name}"),
            Self::Pnet(name) => write!(f, "pnet:{name}"),
        }
    }
}

impl FromStr for L2Link {
    type Err = L2ConfigError;

    fn from_str(text: &str) -> Result<Self, L2ConfigError> {
        match text.split_once(':') {
            Some(("qemu", path)) => Ok(Self::Qemu(whole(path)?)),
            Some(("dgram", paths)) => match paths.split_once(',') {
                Some((own, peer)) if !peer.contains(',') && own != peer => {
                    Ok(Self::Dgram { own: whole(own)?, peer: whole(peer)? })
                }
                _ => Err(wrong(format!("{paths:?} are not the paths of two sockets"))),
            },
            Some((kind @ ("tap" | "if" | "pnet"), name)) => {
                if !is_interface_name(name) {
                    return Err(wrong(format!("{name:?} is no name of an interface")));
                }
                let name = name.into();
                Ok(match kind {
                    "tap" => Self::Tap(name),
                    "if" => Self::Interface(name),
                    _ => Self::Pnet(name),
                })
            }
            _ => Err(wrong(format!("{text:?} is no link of layer 2"))),
        }
    }
}

impl fmt::Display for L2ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the form is `{}`", self.what, L2Config::FORM)
    }
}

impl std::error::Error for L2ConfigError {}

/// Returns the absolute path, because commands in other directories read it too.
fn whole(path: &str) -> Result<PathBuf, L2ConfigError> {
    let whole = absolute(path)
        .ok()
        .filter(|path| path.to_str().is_some_and(|text| !text.contains(char::is_whitespace)));
    whole.ok_or_else(|| wrong(format!("{path:?} is no path, or one with white space in it")))
}

fn wrong(what: String) -> L2ConfigError {
    L2ConfigError { what }
}

fn address(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = text.split_once('/')?;
    let (ip, len): (IpAddr, u8) = (ip.parse().ok()?, len.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (is_host(ip) && (1..=most).contains(&len)).then_some((ip, len))
}

fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast)
}

/// Returns whether an interface can have this name. The kernel would replace a `%d` by a number.
fn is_interface_name(name: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "/:%".contains(c);
    (1..=15).contains(&name.len()) && !name.contains(bad) && !matches!(name, "." | "..")
}

fn mac(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    let usable = parts.next().is_none() && bytes[0] & 1 == 0 && bytes != [0; 6];
    usable.then_some(MacAddr(bytes))
}

/// Returns a random, locally administered Ethernet address.
fn random_mac() -> MacAddr {
    let mut bytes = [0; 6];
    // Fails only before the kernel has collected any randomness.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    bytes[0] = bytes[0] & 0xfc | 0x02;
    MacAddr(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<L2Config, String> {
        L2Config::from_words(text.split_whitespace()).map_err(|e| e.what)
    }

    #[test]
    fn the_words_are_read_as_they_are_written() {
        let text = "qemu:/tmp/vm.sock address 10.0.0.2/24 address fd00::2/64 dhcp gateway 10.0.0.1 \
                    mac 02:00:00:00:00:07 mtu 4200 nodad";
        let config = read(text).unwrap();
        assert_eq!(config.to_string(), text);
        assert_eq!(read(&config.to_string()).unwrap(), config);
        let tap = read("tap:tap0 address 10.0.0.2/24").unwrap();
        assert_eq!(tap.link, L2Link::Tap("tap0".into()));
        assert_eq!(read(&tap.to_string()).unwrap(), tap);
        let interface = read("if:eth0.5 address 10.0.0.2/24").unwrap();
        assert_eq!(interface.link, L2Link::Interface("eth0.5".into()));
        assert_eq!(read(&interface.to_string()).unwrap(), interface);
        let pnet = read("pnet:en0 address 10.0.0.2/24").unwrap();
        assert_eq!(pnet.link, L2Link::Pnet("en0".into()));
        assert_eq!(read(&pnet.to_string()).unwrap(), pnet);
        let dgram = read("dgram:/tmp/rxe.sock,/tmp/vm.sock dhcp").unwrap();
        let [own, peer] = ["/tmp/rxe.sock", "/tmp/vm.sock"].map(PathBuf::from);
        assert_eq!(dgram.link, L2Link::Dgram { own, peer });
        assert_eq!(read(&dgram.to_string()).unwrap(), dgram);
    }

    #[test]
    fn an_endpoint_has_a_link_local_address_after_those_that_are_named() {
        let config = read("qemu:/x address fd00::2/64 address 10.0.0.2/8 mac 52:54:00:12:34:56");
        let interface = config.unwrap().interface("vm0", 7);
        let ips: Vec<_> = interface.gids().iter().map(|e| e.gid.to_ip().to_string()).collect();
        assert_eq!(ips, ["fe80::5054:ff:fe12:3456", "10.0.0.2", "fd00::2"]);
        assert!(interface.gids().iter().all(crate::GidEntry::is_usable));
    }

    #[test]
    fn random_ethernet_addresses_are_local_and_differ() {
        let [a, b] = [read("qemu:/x").unwrap().mac, read("qemu:/x").unwrap().mac];
        assert_eq!(a.0[0] & 3, 2);
        assert_ne!(a, b);
    }

    #[test]
    fn what_can_not_be_is_refused() {
        for text in [
            "",
            "eth0",
            "qemu:",
            "tap:",
            "tap:tap%d",
            "tap:a/b",
            "tap:sixteen-letters-",
            "if:",
            "if:a/b",
            "pnet:",
            "dgram:",
            "dgram:/a",
            "dgram:/a,",
            "dgram:/a,/a",
            "dgram:/a,/b,/c",
            "qemu:/x address",
            "qemu:/x address 10.0.0.1",
            "qemu:/x address 10.0.0.1/33",
            "qemu:/x address 10.0.0.1/0",
            "qemu:/x address 224.0.0.1/24",
            "qemu:/x address 127.0.0.1/8",
            "qemu:/x address ::/64",
            "qemu:/x address 10.0.0.1/24 address 10.0.0.1/8",
            "qemu:/x gateway 0.0.0.0",
            "qemu:/x gateway 10.0.0.1 gateway 10.0.0.2",
            "qemu:/x mac 01:00:00:00:00:01",
            "qemu:/x mac 2:0:0:0:0:1",
            "qemu:/x mac 02:00:00:00:00:01:02",
            "qemu:/x mtu 1279",
            "qemu:/x mtu 65536",
            "qemu:/x netmask 24",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let many: String = (1..=7).map(|n| format!(" address 10.0.0.{n}/24")).collect();
        assert!(read(&format!("qemu:/x{many}")).unwrap_err().contains("more than 6"));
    }
}

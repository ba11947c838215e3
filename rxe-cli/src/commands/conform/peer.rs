//! The TCP connection to the peer program (`peer.c`, which documents the requests).

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::time::Duration;

use rxe_core::types::Gid;

use super::verdict::{Outcome, Stop};
use crate::common::Error;
use crate::common::rendezvous;

/// The peer program.
pub(super) const SOURCE: &str = include_str!("peer.c");

/// Its TCP port.
pub(super) const PORT: u16 = 18520;

/// The version of the requests.
const PROTOCOL: &str = "1";

/// The most bytes of an answer.
const MOST: u64 = 16 << 10;

/// The most time that the peer may take for an answer, beyond what it was told to wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connected peer.
pub(super) struct Peer {
    input: BufReader<TcpStream>,
    out: TcpStream,
    /// The address that the connection leaves from.
    pub(super) own: IpAddr,
    pub(super) device: String,
    /// The address of its GID.
    pub(super) address: IpAddr,
    pub(super) active_mtu: u32,
    pub(super) atomics: bool,
}

impl Peer {
    /// Connects to `host`, which is `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`.
    pub(super) fn connect(host: &str) -> Result<Self, Error> {
        let (host, port) = split(host)?;
        let addresses = rendezvous::resolve(host, port)?;
        let stream = rendezvous::connect(&addresses, "./peer")?;
        let failed =
            |e| Error::new(format!("cannot use the connection to {host}: {e}"), "try again");
        let own = unmapped(stream.local_addr().map_err(failed)?.ip());
        let out = stream.try_clone().map_err(failed)?;
        let mut peer = Self {
            input: BufReader::new(stream),
            out,
            own,
            device: String::new(),
            address: own,
            active_mtu: 0,
            atomics: false,
        };
        let words = match peer.answer(PATIENCE) {
            Ok(words) => words,
            Err(Stop::Broken(e)) => return Err(e),
            Err(Stop::NotTestable(why) | Stop::Deviates(why)) => {
                return Err(Error::new("the peer cannot serve", why));
            }
        };
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let [PROTOCOL, device, _index, gid, mtu, _max_rd, atomics] = words[..] else {
            let todo =
                "compile what `rxe conform --print-peer` of this version prints, and start that";
            return Err(Error::new("the peer speaks another version, or is no peer", todo));
        };
        let strange = || Error::new("the peer says things that are no numbers", "compile it again");
        peer.device = device.into();
        peer.address = Gid::from(gid.parse::<Ipv6Addr>().map_err(|_| strange())?).to_ip();
        peer.active_mtu = mtu.parse().map_err(|_| strange())?;
        peer.atomics = atomics == "1";
        Ok(peer)
    }

    /// Sends a request and returns the words of its answer.
    pub(super) fn ask(&mut self, request: &str) -> Outcome<Vec<String>> {
        self.ask_for(request, Duration::ZERO)
    }

    /// The same for a request that lets the peer wait so long.
    pub(super) fn ask_for(&mut self, request: &str, wait: Duration) -> Outcome<Vec<String>> {
        if let Err(e) = self.out.write_all(format!("{request}\n").as_bytes()) {
            return Err(gone(&e.to_string()));
        }
        self.answer(PATIENCE + wait)
    }

    fn answer(&mut self, wait: Duration) -> Outcome<Vec<String>> {
        let mut line = String::new();
        // No timeout of zero, the one that the system refuses.
        let _ = self.out.set_read_timeout(Some(wait));
        match (&mut self.input).take(MOST).read_line(&mut line) {
            Ok(0) => return Err(gone("it has closed the connection")),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(gone(&format!("no answer within {} s", wait.as_secs())));
            }
            Err(e) => return Err(gone(&e.to_string())),
        }
        let Some(line) = line.strip_suffix('\n') else {
            return Err(gone("its answer is cut or too long"));
        };
        let printable: String = line.chars().filter(|c| !c.is_control()).collect();
        let mut words = printable.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(words.collect()),
            Some("err") => Err(Stop::NotTestable(words.collect::<Vec<_>>().join(" "))),
            _ => Err(gone("it answers in a way that no peer does")),
        }
    }
}

fn gone(why: &str) -> Stop {
    let todo = "look at what it printed there, and start it again";
    Stop::Broken(Error::new(format!("the peer is gone: {why}"), todo))
}

/// An address of IPv4 as such, also if it is written as one of IPv6.
fn unmapped(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Host and port.
fn split(text: &str) -> Result<(&str, u16), Error> {
    let wrong = || {
        let what = format!("\"{text}\" names no peer");
        Error::new(what, "write HOST, HOST:PORT, or [IPV6]:PORT")
    };
    if text.is_empty() {
        return Err(wrong());
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (host, rest.strip_prefix(':').or(if rest.is_empty() { None } else { Some(rest) }))
        }
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    match port {
        None => Ok((host, PORT)),
        Some(port) => Ok((host, port.parse().map_err(|_| wrong())?)),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_peer_has_a_port_or_not() {
        let of = |text| split(text).ok();
        assert_eq!(of("host"), Some(("host", super::PORT)));
        assert_eq!(of("10.0.0.1:5"), Some(("10.0.0.1", 5)));
        assert_eq!(of("fd00::1"), Some(("fd00::1", super::PORT)));
        assert_eq!(of("[fd00::1]:7"), Some(("fd00::1", 7)));
        assert_eq!(of("[fd00::1]"), Some(("fd00::1", super::PORT)));
        for bad in ["", "host:", "host:x", "host:70000", "[fd00::1", "[fd00::1]x"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}

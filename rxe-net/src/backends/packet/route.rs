//! The interface and the Ethernet address of the next hop to an address.
//!
//! Paths come from the kernel's routing and neighbour tables (rtnetlink(7)), and are cached for a
//! short time. The source is part of the key, because rules of the administrator may depend on it
//! (ip-rule(8)).
//!
//! A request to the kernel may sleep, because it waits for other changes of the network
//! configuration. So a thread makes it ([`Resolver`]). Until the answer arrives, packets go through
//! the kernel, which routes them itself and queues some of them until it knows the neighbour.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rxe_sys::netlink::{self, attributes, u16_at, u32_at};
use rxe_sys::spawn_thread;

/// How a frame is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// To this Ethernet address, over the interface with this index.
    Direct { interface: u32, mac: [u8; 6] },
    /// Through the kernel, which routes the packet and finds the neighbour: the path is unknown.
    Kernel,
}

/// The source and the destination of a packet.
pub(crate) type Ends = (IpAddr, IpAddr);

/// A cache of recently used paths.
#[derive(Debug)]
pub(crate) struct Paths {
    known: HashMap<Ends, Known>,
    resolver: Option<Resolver>,
}

#[derive(Debug)]
struct Known {
    path: Path,
    /// When the path must be requested again.
    until: Instant,
    /// The path has been requested.
    asked: bool,
}

/// How long a path is used. Then one burst goes through the kernel, which thereby learns that the
/// neighbour is in use and checks that it still exists.
const PATH_TTL: Duration = Duration::from_secs(1);
/// How long the answer "there is no neighbour yet" is cached.
const NO_PATH_TTL: Duration = Duration::from_millis(2);
/// The maximum number of cached paths; far more than one engine has peers.
const MAX_PATHS: usize = 4096;
/// The maximum number of waiting requests. A request without room is repeated with the next burst.
const MAX_REQUESTS: usize = 256;

impl Paths {
    /// Creates an empty cache. Its paths are those of the calling thread's network namespace,
    /// whichever thread requests them later.
    pub(crate) fn new() -> Self {
        // Without a thread the kernel routes all packets.
        Self { known: HashMap::new(), resolver: Resolver::start().ok() }
    }

    /// Returns the path between these ends. Link-local addresses are on the interface `scope`.
    /// Never waits.
    pub(crate) fn between(&mut self, ends: Ends, scope: u32) -> Path {
        if ends.1.is_multicast() {
            // The kernel also delivers multicast to the other sockets on this host.
            return Path::Kernel;
        }
        self.take_answers();
        let now = Instant::now();
        let known = self.known.get(&ends);
        match known {
            Some(known) if now < known.until || known.asked => return known.path,
            _ => {}
        }
        let before = known.map(|known| known.path);
        if before.is_none() && self.known.len() >= MAX_PATHS {
            self.known.clear();
        }
        let asked = self.ask(ends, scope);
        let path = before.unwrap_or(Path::Kernel);
        self.known.insert(ends, Known { path, until: now, asked });
        Path::Kernel
    }

    /// Returns the path between these ends, or `None` if [`Paths::between`] must request it. Never
    /// waits.
    pub(crate) fn known(&mut self, ends: Ends) -> Option<Path> {
        self.take_answers();
        let known = self.known.get(&ends)?;
        (known.asked || Instant::now() < known.until).then_some(known.path)
    }

    /// Removes the path between these ends, because it did not work.
    pub(crate) fn forget(&mut self, ends: Ends) {
        self.known.remove(&ends);
    }

    /// Requests a path. Returns whether there will be an answer.
    fn ask(&self, ends: Ends, scope: u32) -> bool {
        self.resolver.as_ref().is_some_and(|resolver| resolver.ask(ends, scope))
    }

    fn take_answers(&mut self) {
        let Some(resolver) = &self.resolver else { return };
        if !resolver.0.answered.swap(false, Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        for (ends, path) in std::mem::take(&mut resolver.0.lock().answers) {
            let keep = if path == Path::Kernel { NO_PATH_TTL } else { PATH_TTL };
            // A path that was removed meanwhile is not added: it will be requested again.
            if let Some(known) = self.known.get_mut(&ends) {
                *known = Known { path, until: now + keep, asked: false };
            }
        }
    }
}

/// The thread that queries the kernel. It ends when this is dropped.
#[derive(Debug)]
struct Resolver(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is a request, or when the thread must end.
    changed: Condvar,
    /// Set when there are answers, so that the data path needs no lock.
    answered: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The requests, with the interface of link-local addresses.
    requests: VecDeque<(Ends, u32)>,
    answers: Vec<(Ends, Path)>,
    closed: bool,
}

impl Resolver {
    fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        // The thread is not joined.
        let _ = spawn_thread("rxe-resolver", move || theirs.run(resolve))?;
        Ok(Self(shared))
    }

    /// Queues a request. Returns `false` if too many wait.
    fn ask(&self, ends: Ends, scope: u32) -> bool {
        let mut state = self.0.lock();
        if state.requests.len() >= MAX_REQUESTS {
            return false;
        }
        state.requests.push_back((ends, scope));
        drop(state);
        self.0.changed.notify_one();
        true
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn run(&self, resolve: impl Fn(Ends, u32) -> io::Result<Path>) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            let Some((ends, scope)) = state.requests.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            // On an error the kernel routes the packets.
            let path = resolve(ends, scope).unwrap_or(Path::Kernel);
            state = self.lock();
            state.answers.push((ends, path));
            self.answered.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;

/// The size of `struct rtmsg` and of `struct ndmsg` in bytes.
const FIXED: usize = 12;

const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTA_ENCAP_TYPE: u16 = 21;
const RTN_UNICAST: u8 = 1;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// NUD_REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: the states with a valid Ethernet address.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

fn resolve(ends: Ends, scope: u32) -> io::Result<Path> {
    let reply = netlink::get(RTM_GETROUTE, &route_request(ends, scope))?;
    for message in reply.messages().filter(|m| m.kind == RTM_NEWROUTE) {
        let Some(route) = parse_route(message.body) else { continue };
        return match route {
            Route {
                kind: RTN_UNICAST,
                interface,
                gateway,
                gateway_other_family: false,
                encapsulated: false,
            } => Ok(neighbour(gateway.unwrap_or(ends.1), interface)?
                .map_or(Path::Kernel, |mac| Path::Direct { interface, mac })),
            // This includes packets to this host: the IP layer treats a frame that a packet socket
            // sends on loopback as spoofed.
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
    /// The gateway's address has the other address family.
    gateway_other_family: bool,
    /// The kernel encapsulates the packet: in an MPLS label, or for a tunnel.
    encapsulated: bool,
}

fn route_request((src, dst): Ends, scope: u32) -> Vec<u8> {
    let mut m = vec![0; FIXED];
    m[0] = family(dst);
    let bits = if dst.is_ipv4() { 32 } else { 128 };
    (m[1], m[2]) = (bits, bits);
    push_attribute(&mut m, RTA_DST, &octets(dst));
    push_attribute(&mut m, RTA_SRC, &octets(src));
    if matches!(dst, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        push_attribute(&mut m, RTA_OIF, &scope.to_ne_bytes());
    }
    m
}

fn parse_route(body: &[u8]) -> Option<Route> {
    let kind = *body.get(7)?;
    let mut route = Route {
        kind,
        interface: 0,
        gateway: None,
        gateway_other_family: false,
        encapsulated: false,
    };
    for (kind, value) in attributes(body.get(FIXED..)?) {
        match kind {
            RTA_OIF => route.interface = u32_at(value, 0)?,
            RTA_GATEWAY => route.gateway = Some(address(value)?),
            RTA_VIA => route.gateway_other_family = true,
            RTA_ENCAP_TYPE => route.encapsulated = true,
            _ => {}
        }
    }
    Some(route)
}

/// Returns the Ethernet address of a neighbour, if the kernel knows one.
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
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use rxe_sys::NonBlocking;

    #[test]
    fn nobody_waits_for_an_answer_and_it_is_used_when_it_is_there() {
        let direct = |last| Path::Direct { interface: 3, mac: [2, 0, 0, 0, 0, last] };
        let shared = Arc::new(Shared::default());
        let (answer, answers) = mpsc::channel();
        let (theirs, resolver) = (Arc::clone(&shared), Resolver(Arc::clone(&shared)));
        let thread = thread::spawn(move || theirs.run(|_, _| Ok(answers.recv().unwrap())));
        let mut paths = Paths { known: HashMap::new(), resolver: Some(resolver) };
        // As under a shard's lock.
        let _mark = NonBlocking::enter();
        let ends: Ends = ("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let until = |paths: &mut Paths, path| {
            while paths.between(ends, 3) != path {
                thread::yield_now();
            }
        };
        assert_eq!(paths.known(ends), None);
        assert_eq!((paths.between(ends, 3), paths.between(ends, 3)), (Path::Kernel, Path::Kernel));
        answer.send(direct(1)).unwrap();
        until(&mut paths, direct(1));
        // When the path is old, one burst goes through the kernel, and the others use the old path.
        assert_eq!(paths.known(ends), Some(direct(1)));
        paths.known.get_mut(&ends).unwrap().until = Instant::now();
        assert_eq!((paths.known(ends), paths.between(ends, 3)), (None, Path::Kernel));
        assert_eq!(paths.known(ends), Some(direct(1)), "it is used until there is an answer");
        assert_eq!((paths.between(ends, 3), paths.between(ends, 3)), (direct(1), direct(1)));
        answer.send(direct(2)).unwrap();
        until(&mut paths, direct(2));
        // The number of requests is bounded.
        for n in 0..5000u32 {
            paths.between((ends.0, Ipv4Addr::from(n).into()), 3);
        }
        assert!(shared.lock().requests.len() <= MAX_REQUESTS);
        assert!(paths.known.len() <= MAX_PATHS);
        drop(paths);
        let _ = answer.send(Path::Kernel);
        thread.join().unwrap();
    }

    #[test]
    fn routes_and_neighbours_are_read() {
        let mut m = vec![0; FIXED];
        m[7] = RTN_UNICAST;
        push_attribute(&mut m, RTA_OIF, &3u32.to_ne_bytes());
        push_attribute(&mut m, RTA_GATEWAY, &[10, 0, 0, 254]);
        let gateway = Some("10.0.0.254".parse().unwrap());
        let expected = Route {
            kind: RTN_UNICAST,
            interface: 3,
            gateway,
            gateway_other_family: false,
            encapsulated: false,
        };
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

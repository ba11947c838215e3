//! The live peer of `rxe conform`, `rxe send` and `rxe replay`.
//!
//! The peer is an RDMA device of another host. The peer program there (`peer.c`, which documents
//! the requests) obeys requests over TCP. The local end of its queue pair is an [`Endpoint`],
//! without an engine.

mod connection;
mod done;
mod endpoint;
mod given;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rxe_core::types::{Gid, Qpn};

pub(crate) use self::connection::{Event, Space};
pub(crate) use self::done::Done;
pub(crate) use self::endpoint::{Endpoint, Numbers, Way, WayArgs};
use self::given::Feature;
pub(crate) use self::given::{
    ATOMIC_WRITE, CM, FLUSH, Given, RC, RC_SRQ, RC_WINDOWS, Service, UC, UD, UD_SRQ, XRC_INITIATOR,
    XRC_TARGET, access,
};
use super::{Error, rendezvous};

/// The source of the peer program.
pub(crate) const SOURCE: &str = include_str!("peer.c");

/// The default TCP port of the peer program.
pub(crate) const PORT: u16 = 18520;

/// The advice for a refused TCP connection.
const START: &str = "start `./peer` there first; if it has another port (-p), write HOST:PORT here";

/// The version of the request protocol.
const PROTOCOL: &str = "2";

/// The most bytes of the peer's memory that one request reads, and that one writes.
/// `peer.c` has the same limits, as `MAX_READ` and `MAX_DATA`.
pub(crate) const MAX_READ: usize = 2048;
const MAX_WRITE: usize = 100;

/// The most bytes of an answer.
const MOST: usize = 16 << 10;

/// The time limit for an answer in a run, beyond the peer's own waiting time.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connected peer.
pub(crate) struct Peer {
    input: BufReader<TcpStream>,
    out: TcpStream,
    /// The local address of the TCP connection.
    pub(crate) own: IpAddr,
    /// The remote address of the TCP connection.
    host: IpAddr,
    pub(crate) device: String,
    /// The IP address of the device's GID.
    pub(crate) address: IpAddr,
    pub(crate) active_mtu: u32,
    pub(crate) atomics: bool,
    /// The READs and atomics that a queue pair of the device accepts outstanding as responder.
    pub(crate) max_rd_atomic: u8,
    /// `device_cap_flags_ex`.
    capabilities: u64,
    /// The deadline of the set-up, and its time limit; `None` in a run.
    set_up: Option<(Instant, Duration)>,
}

/// The reason why the peer did not answer a request with "ok".
#[derive(Debug)]
pub(crate) enum PeerError {
    /// The device or the peer program refuses, for this reason.
    Refused(String),
    /// The connection to the peer program failed.
    Gone(Error),
}

impl From<PeerError> for Error {
    fn from(e: PeerError) -> Self {
        match e {
            PeerError::Refused(why) => Self::new("the peer refuses", why),
            PeerError::Gone(e) => e,
        }
    }
}

/// A queue pair of the peer, and its memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerQp {
    pub(crate) qpn: Qpn,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// The region's length in bytes.
    pub(crate) len: u64,
    /// The number of the shared receive queue of an XRC target.
    pub(crate) srqn: u32,
}

impl Peer {
    /// Connects to `host`, which is `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`. The set-up, from this
    /// call to [`Peer::begin_run`], may take `most`.
    pub(crate) fn connect(host: &str, most: Duration) -> Result<Self, Error> {
        let (host, port) = split(host)?;
        let addresses = rendezvous::resolve(host, port)?;
        let deadline = Instant::now() + most;
        let each = most / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let stream = rendezvous::connect_within(&addresses, each, START)?;
        let failed =
            |e| Error::new(format!("cannot use the connection to {host}: {e}"), "try again");
        let own = stream.local_addr().map_err(failed)?.ip().to_canonical();
        let other = stream.peer_addr().map_err(failed)?.ip().to_canonical();
        let out = stream.try_clone().map_err(failed)?;
        let mut peer = Self {
            input: BufReader::new(stream),
            out,
            own,
            host: other,
            device: String::new(),
            address: own,
            active_mtu: 0,
            atomics: false,
            max_rd_atomic: 0,
            capabilities: 0,
            set_up: Some((deadline, most)),
        };
        let words = match peer.answer(Duration::ZERO) {
            Ok(words) => words,
            Err(PeerError::Gone(e)) => return Err(e),
            Err(PeerError::Refused(why)) => return Err(Error::new("the peer cannot serve", why)),
        };
        let capabilities = number(&words, 7);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let [PROTOCOL, device, _index, gid, mtu, max_rd, atomics, _] = words[..] else {
            let todo =
                "compile what `rxe conform --print-peer` of this version prints, and start that";
            return Err(Error::new("the peer speaks another version, or is no peer", todo));
        };
        let strange = || Error::new("the peer says things that are no numbers", "compile it again");
        peer.device = device.into();
        peer.address = Gid::from(gid.parse::<Ipv6Addr>().map_err(|_| strange())?).to_ip();
        peer.active_mtu = mtu.parse().map_err(|_| strange())?;
        peer.atomics = atomics == "1";
        let max_rd: u64 = max_rd.parse().map_err(|_| strange())?;
        peer.max_rd_atomic = u8::try_from(max_rd).unwrap_or(u8::MAX);
        peer.capabilities = capabilities.ok_or_else(strange)?;
        Ok(peer)
    }

    /// Ends the set-up, and with it the time limit for it.
    pub(crate) fn begin_run(&mut self) {
        self.set_up = None;
    }

    /// Lets the peer program create a region and a queue pair.
    pub(crate) fn open(&mut self, given: &Given) -> Result<PeerQp, PeerError> {
        if let Some(feature) = given.needs
            && self.capabilities & feature.capability() == 0
        {
            return Err(PeerError::Refused(format!("the device has no {feature}")));
        }
        let mut request = format!("open {} {}", given.service, given.mr_access);
        let posts = given.needs.filter(|_| given.posts).map(Feature::word);
        for word in given.srq.then_some("srq").into_iter().chain(posts) {
            request.push(' ');
            request.push_str(word);
        }
        let words = self.ask(&request)?;
        let number = |i: usize| number(&words, i).ok_or_else(|| strange("open"));
        let low = |n: u64| u32::try_from(n).unwrap_or(0);
        Ok(PeerQp {
            qpn: Qpn::from_wire(low(number(0)?)),
            addr: number(1)?,
            rkey: low(number(2)?),
            len: number(3)?,
            srqn: low(number(4)?),
        })
    }

    /// Connects the peer's queue pair with `own_qpn` at the address `own`.
    /// A UD queue pair is brought to RTS instead.
    pub(crate) fn join(
        &mut self,
        given: &Given,
        own: IpAddr,
        own_qpn: Qpn,
    ) -> Result<(), PeerError> {
        if given.service == Service::Ud {
            return self.ask(&format!("ready {}", given.qkey)).map(drop);
        }
        let Given { timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic, .. } = given;
        let Given { rq_psn, sq_psn, path_mtu, qp_access, max_dest_rd_atomic, .. } = given;
        let (gid, qpn) = (Ipv6Addr::from(*Gid::from(own).as_bytes()), own_qpn.value());
        self.ask(&format!(
            "connect {gid} {qpn} {rq_psn} {sq_psn} {path_mtu} {qp_access} {timeout} {retry_cnt} \
             {rnr_retry} {min_rnr_timer} {max_dest_rd_atomic} {max_rd_atomic}"
        ))
        .map(drop)
    }

    /// Brings the peer's queue pair into RESET, from which it can be connected again.
    pub(crate) fn reset(&mut self) -> Result<(), PeerError> {
        self.ask("reset").map(drop)
    }

    /// Lets the peer program destroy its queue pair, its region and what belongs to them.
    pub(crate) fn close(&mut self) -> Result<(), PeerError> {
        self.ask("close").map(drop)
    }

    /// Returns the device's next asynchronous event (`IBV_EVENT_*`), or `None` after `wait`.
    pub(crate) fn async_event(&mut self, wait: Duration) -> Result<Option<u32>, PeerError> {
        let words = self.ask_for(&format!("async {}", wait.as_millis()), wait)?;
        if words.is_empty() {
            return Ok(None);
        }
        let kind = number(&words, 0).and_then(|kind| u32::try_from(kind).ok());
        kind.map(Some).ok_or_else(|| strange("async"))
    }

    /// Waits until the peer program has polled `count` completions, or for `wait`.
    pub(crate) fn poll(&mut self, count: usize, wait: Duration) -> Result<Vec<Done>, PeerError> {
        self.begin_poll(count, wait)?;
        self.end_poll(count, wait)
    }

    /// Sends the request of [`Peer::poll`]. The answer makes the connection readable.
    pub(crate) fn begin_poll(&mut self, count: usize, wait: Duration) -> Result<(), PeerError> {
        self.say(&format!("poll {count} {}", wait.as_millis()))
    }

    /// Reads the answer to [`Peer::begin_poll`].
    pub(crate) fn end_poll(
        &mut self,
        count: usize,
        wait: Duration,
    ) -> Result<Vec<Done>, PeerError> {
        let words = self.answer(wait)?;
        let strange = || strange("poll");
        let words = words.get(1..).filter(|all| all.len() <= count).ok_or_else(strange)?;
        words.iter().map(|word| Done::parse(word).ok_or_else(strange)).collect()
    }

    /// Returns `len` bytes of the region from `offset` on, at most [`MAX_READ`].
    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, PeerError> {
        let words = self.ask(&format!("read {offset} {len}"))?;
        let bytes = words.first().and_then(|hex| bytes_of(hex)).filter(|bytes| bytes.len() == len);
        bytes.ok_or_else(|| strange("read"))
    }

    /// Writes bytes into the region from `offset` on.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), PeerError> {
        for (chunk, offset) in bytes.chunks(MAX_WRITE).zip((offset..).step_by(MAX_WRITE)) {
            self.ask(&format!("write {offset} {}", hex_of(chunk)))?;
        }
        Ok(())
    }

    /// Sends a request whose answer is an rkey, and returns the rkey.
    pub(crate) fn ask_for_rkey(&mut self, request: &str) -> Result<u32, PeerError> {
        let words = self.ask(request)?;
        let rkey = number(&words, 0).and_then(|rkey| u32::try_from(rkey).ok());
        rkey.ok_or_else(|| strange(request))
    }

    /// Sends a request, and returns the words of its answer.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Vec<String>, PeerError> {
        self.ask_for(request, Duration::ZERO)
    }

    /// Like [`Peer::ask`], for a request that lets the peer program wait for `wait`.
    pub(crate) fn ask_for(
        &mut self,
        request: &str,
        wait: Duration,
    ) -> Result<Vec<String>, PeerError> {
        self.say(request)?;
        self.answer(wait)
    }

    fn say(&mut self, request: &str) -> Result<(), PeerError> {
        self.out.write_all(format!("{request}\n").as_bytes()).map_err(|e| gone(&e.to_string()))
    }

    /// Reads the answer to a request that lets the peer program wait for `wait`.
    fn answer(&mut self, wait: Duration) -> Result<Vec<String>, PeerError> {
        let (until, late) = match self.set_up {
            Some((deadline, most)) => (deadline, silent(most)),
            None => {
                let wait = PATIENCE + wait;
                (Instant::now() + wait, gone(&format!("no answer within {} s", wait.as_secs())))
            }
        };
        let mut line = Vec::new();
        // The deadline also holds for a peer that sends single bytes.
        while !line.ends_with(b"\n") {
            let left = until.saturating_duration_since(Instant::now());
            // A socket timeout of zero is refused.
            let _ = self.out.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match self.input.fill_buf() {
                Ok([]) if line.is_empty() => return Err(gone("it has closed the connection")),
                Ok([]) => return Err(gone("its answer is cut or too long")),
                Ok(bytes) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let len = end.map_or(bytes.len(), |end| end + 1);
                    line.extend_from_slice(&bytes[..len]);
                    self.input.consume(len);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(late);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(gone(&e.to_string())),
            }
            if line.len() > MOST {
                return Err(gone("its answer is cut or too long"));
            }
            if left.is_zero() && !line.ends_with(b"\n") {
                return Err(late);
            }
        }
        let line = String::from_utf8(line).map_err(|_| gone("its answer is no text"))?;
        let printable: String = line.chars().filter(|c| !c.is_control()).collect();
        let mut words = printable.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(words.collect()),
            Some("err") => Err(PeerError::Refused(words.collect::<Vec<_>>().join(" "))),
            _ => Err(gone("it answers in a way that no peer does")),
        }
    }
}

/// The TCP connection, to poll for an answer.
impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }
}

/// Parses word `i` of an answer as a decimal number, or hexadecimal with 0x.
fn number(words: &[String], i: usize) -> Option<u64> {
    let word = words.get(i)?;
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let byte = |i| u8::from_str_radix(hex.get(i..i + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn strange(request: &str) -> PeerError {
    PeerError::Refused(format!("the peer's answer to {request} is strange"))
}

fn gone(why: &str) -> PeerError {
    let todo = "look at what it printed there, and start it again";
    PeerError::Gone(Error::new(format!("the peer is gone: {why}"), todo))
}

/// Returns the error of a peer that is silent in the set-up, which may take `most`.
fn silent(most: Duration) -> PeerError {
    let what = format!("the peer takes the connection and is silent for {} s", most.as_secs());
    let todo = "is it `./peer` that listens there, and is no other run using it? --timeout gives it more time";
    PeerError::Gone(Error::new(what, todo))
}

/// Splits `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT` into host and port.
fn split(text: &str) -> Result<(&str, u16), Error> {
    let wrong = || {
        let what = format!("\"{text}\" names no peer");
        Error::new(what, "write HOST, HOST:PORT, or [IPV6]:PORT, with a port from 1 to 65535")
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
        Some(port) => Ok((host, port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn the_whole_set_up_takes_no_longer_than_it_may() {
        let most = Duration::from_secs(2);
        let connect = |greeting: &'static [u8]| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let host = listener.local_addr().unwrap().to_string();
            // The server repeats the greeting until it has sent a line, and answers nothing.
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                while stream.write_all(greeting).is_ok() && !greeting.ends_with(b"\n") {
                    thread::sleep(Duration::from_millis(10));
                }
                thread::sleep(Duration::from_secs(60));
            });
            Peer::connect(&host, most)
        };
        let began = Instant::now();
        let silent = "the peer takes the connection and is silent for 2 s: ";
        let said = connect(b"o").err().unwrap().to_string();
        assert!(said.starts_with(silent), "{said}");
        let mut peer = connect(b"ok 2 dev0 1 ::1 1024 16 1 0x0\n").unwrap();
        let said = Error::from(peer.open(&RC).unwrap_err()).to_string();
        assert!(said.starts_with(silent), "{said}");
        assert!((2 * most..6 * most).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

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

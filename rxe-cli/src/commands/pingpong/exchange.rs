//! The exchange of ibv_rc_pingpong over TCP.
//! The client sends its address, the server connects its queue pair and answers with its own
//! address, and the client sends "done".
//!
//! A message is 52 bytes, text and a NUL: `LID:QPN:PSN:GID` in hex, with 4, 6, 6 and 32 digits.
//!
//! The LID is always 0. Two `rxe pingpong` recognise each other, and each other's service, by the
//! spelling of this 0 ([`Transport::zero`]). They then keep the TCP connection ([`super::peer`]).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

use rxe_core::types::{Gid, Psn, Qpn};

use super::in6;
use super::transport::Transport;
use crate::common::{Error, rendezvous};

/// The address that one side sends to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The InfiniBand LID; 0 on Ethernet.
    pub(super) lid: u16,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
    /// The transport service, if the peer is `rxe pingpong`.
    pub(super) told: Option<Transport>,
}

/// The length of a message in bytes, with the NUL.
const LEN: usize = 52;
const DONE: [u8; 5] = *b"done\0";

/// Runs the client's exchange. Returns the server's addresses; the server is then ready to receive.
pub(super) fn as_client(
    stream: &mut (impl Read + Write),
    own: &[Address],
    transport: Transport,
) -> Result<Vec<Address>, Error> {
    let sent = send(stream, own, transport.messages());
    // A peer with another service answers the first message and closes the connection. Its answer
    // says more than a failed send.
    let peer = receive_all(stream, transport, |_| {})?;
    sent?;
    stream.write_all(&DONE).map_err(|e| rendezvous::broken(&e))?;
    Ok(peer)
}

/// Runs the server's exchange. `connect` makes the queue pair ready to receive before the server
/// answers.
pub(super) fn as_server(
    stream: &mut (impl Read + Write),
    own: &[Address],
    transport: Transport,
    connect: impl FnOnce(&[Address]) -> Result<(), Error>,
) -> Result<Vec<Address>, Error> {
    let peer = receive_all(stream, transport, |stream| {
        // This answer tells the client that the services differ. The client may still be sending.
        // If the connection were closed with unread data, it would be reset and the answer lost.
        if send(stream, own, 1).is_ok() {
            hear_out(stream);
        }
    })?;
    let connected = connect(&peer);
    if connected.is_err() && peer[0].told.is_none() {
        // Send no answer, which ibv_rc_pingpong would take for success.
        return connected.map(|()| peer);
    }
    send(stream, own, transport.messages())?;
    connected?;
    // The contents and the length of this message do not matter, because they differ among versions
    // of ibv_rc_pingpong.
    match stream.read(&mut [0; LEN]) {
        Ok(0) => Err(rendezvous::broken(&ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(peer),
        Err(e) => Err(rendezvous::broken(&e)),
    }
}

/// Sends the local addresses. If the peer expects more messages, the remaining ones are zeros.
fn send(stream: &mut impl Write, own: &[Address], messages: usize) -> Result<(), Error> {
    let nothing =
        Address { lid: 0, qpn: Qpn::from_wire(0), psn: Psn::ZERO, gid: Gid::ZERO, told: None };
    for address in own.iter().chain(std::iter::repeat(&nothing)).take(messages) {
        // The peer reads each message with one call, so each is written with one.
        stream.write_all(&address.to_message()).map_err(|e| rendezvous::broken(&e))?;
    }
    Ok(())
}

/// Reads until the peer closes the connection, is silent, or has sent 64 messages.
fn hear_out(stream: &mut impl Read) {
    const MESSAGES: usize = 64;
    let more = |_: &usize| matches!(stream.read(&mut [0; LEN]), Ok(1..));
    (0..MESSAGES).take_while(more).for_each(drop);
}

/// Receives all addresses of the peer. Calls `refuse` before it fails if the first message names
/// another service.
fn receive_all<S: Read>(
    stream: &mut S,
    transport: Transport,
    refuse: impl FnOnce(&mut S),
) -> Result<Vec<Address>, Error> {
    let first = receive_message(stream)?;
    let address = Address::from_message(&first);
    let told = match address {
        None if first.split(|b| *b == b':').count() > FIELDS => Some(Transport::Xrc),
        _ => address.and_then(|address| address.told),
    };
    if let Some(other) = told.filter(|told| *told != transport) {
        refuse(stream);
        return Err(other_service(transport, other));
    }
    let mut all = vec![address.ok_or_else(|| stranger(&first))?];
    for _ in 1..transport.messages() {
        let message = receive_message(stream)?;
        all.push(Address::from_message(&message).ok_or_else(|| stranger(&message))?);
    }
    Ok(all)
}

/// The number of fields in a message. Messages of XRC have more.
const FIELDS: usize = 4;

/// Returns the error for ends with different services.
pub(super) fn other_service(own: Transport, peer: Transport) -> Error {
    let (own, peer) = (own.name(), peer.name());
    let what = format!("this side runs --transport {own}, the peer --transport {peer}");
    Error::new(what, "give the same on both ends")
}

fn receive_message(stream: &mut impl Read) -> Result<[u8; LEN], Error> {
    let mut message = [0; LEN];
    read_text(stream, &mut message)?;
    Ok(message)
}

/// Fills `message` from the stream. Fails early if a byte cannot belong to an exchange.
pub(super) fn read_text(stream: &mut impl Read, message: &mut [u8]) -> Result<(), Error> {
    let mut have = 0;
    while have < message.len() {
        match stream.read(&mut message[have..]) {
            Ok(0) if have == 0 => return Err(rendezvous::broken(&ErrorKind::UnexpectedEof.into())),
            Ok(0) => return Err(stranger(&message[..have])),
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if have > 0 && timed_out(&e) => return Err(stranger(&message[..have])),
            Err(e) => return Err(rendezvous::broken(&e)),
        }
        // Another program may send fewer bytes, so they are checked as they arrive.
        if !message[..have].iter().all(|b| b.is_ascii_hexdigit() || b": xX\0".contains(b)) {
            return Err(stranger(&message[..have]));
        }
    }
    Ok(())
}

fn timed_out(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the error for a peer that does not speak this exchange.
pub(super) fn stranger(said: &[u8]) -> Error {
    if said.starts_with(b"{\"rxe-perf\"") || said.starts_with(b"{\"Failed\"") {
        return Error::new("the peer runs `rxe perf`", "run the same command on both ends");
    }
    let what = format!("the peer speaks something else: \"{}\"", said.escape_ascii());
    Error::new(what, "run `rxe pingpong` or ibv_rc_pingpong there")
}

impl Address {
    fn to_message(self) -> [u8; LEN] {
        let Self { lid, qpn, psn, gid, told } = self;
        let lid = match told {
            Some(transport) => transport.zero().into(),
            None => format!("{lid:04x}"),
        };
        let mut text = format!("{lid}:{:06x}:{:06x}:", qpn.value(), psn.value());
        text += &hex(gid);
        let mut message = [0; LEN];
        message[..LEN - 1].copy_from_slice(text.as_bytes());
        message
    }

    fn from_message(message: &[u8; LEN]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?.split('\0').next()?;
        let (lid, rest) = text.split_once(':')?;
        let told = Transport::of_zero(lid);
        let lid = if told.is_some() { 0 } else { u16::from_str_radix(lid, 16).ok()? };
        let mut parts = rest.split(':');
        let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
        let (qpn, psn) = (Qpn::new(number()?)?, Psn::new(number()?));
        Some(Self { lid, qpn, psn, gid: unhex(parts.next()?)?, told })
    }

    /// Returns the service of a message; RC if it does not say, `None` if it is no message.
    pub(super) fn of_other(message: &[u8]) -> Option<Transport> {
        let message: &[u8; LEN] = message.try_into().ok()?;
        Self::from_message(message).map(|address| address.told.unwrap_or_default())
    }
}

/// Formats a GID as 32 hex digits.
pub(super) fn hex(gid: Gid) -> String {
    gid.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a GID of 32 hex digits.
pub(super) fn unhex(text: &str) -> Option<Gid> {
    let digits = Some(text).filter(|text| text.len() == 32)?;
    Some(Gid::from_bytes(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()))
}

/// Formats the address like ibv_rc_pingpong.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid, .. } = self;
        write!(f, "LID 0x{lid:04x}, QPN {qpn}, PSN {psn}, GID {}", in6(*gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MESSAGE: &[u8; LEN] = b"0000:000011:0a0b0c:00000000000000000000ffff0a000001\0";

    fn address() -> Address {
        Address {
            lid: 0,
            qpn: Qpn::new(0x11).unwrap(),
            psn: Psn::new(0x0a_0b0c),
            gid: Gid::from("10.0.0.1".parse::<std::net::IpAddr>().unwrap()),
            told: None,
        }
    }

    /// A peer that has already sent everything.
    struct Peer {
        says: VecDeque<u8>,
        hears: Vec<u8>,
    }

    impl Peer {
        fn saying(bytes: &[u8]) -> Self {
            Self { says: bytes.iter().copied().collect(), hears: Vec::new() }
        }
    }

    impl Read for Peer {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            // Reads return pieces, as a network may deliver them.
            let n = out.len().min(self.says.len()).min(20);
            out.iter_mut().zip(self.says.drain(..n)).for_each(|(o, b)| *o = b);
            Ok(n)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.hears.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_is_what_ibv_rc_pingpong_writes() {
        assert_eq!(&address().to_message(), MESSAGE);
        assert_eq!(Address::from_message(MESSAGE), Some(address()));
        assert_eq!(
            address().to_string(),
            "LID 0x0000, QPN 0x000011, PSN 0x0a0b0c, GID ::ffff:10.0.0.1"
        );
    }

    /// Returns the LID as `sscanf` with `%x` reads it.
    fn read_by_c(message: &[u8]) -> u32 {
        let text = std::str::from_utf8(message).unwrap().split(':').next().unwrap().trim_start();
        let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
        u32::from_str_radix(digits, 16).unwrap()
    }

    #[test]
    fn the_spelling_of_the_lid_tells_the_service_to_those_who_know() {
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Srq] {
            let own = Address { told: Some(transport), ..address() };
            let message = own.to_message();
            assert_eq!(message[4..], MESSAGE[4..]);
            assert_eq!(read_by_c(&message), 0);
            assert_eq!(Address::from_message(&message), Some(own));
        }
    }

    #[test]
    fn ends_of_different_services_both_learn_of_it() {
        let uc = Address { told: Some(Transport::Uc), ..address() };
        let rc = Address { told: Some(Transport::Rc), ..address() };
        let mut client = Peer::saying(&uc.to_message());
        let error = as_server(&mut client, &[rc], Transport::Rc, |_| unreachable!()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this side runs --transport rc, the peer --transport uc: give the same on both ends"
        );
        assert_eq!(client.hears, rc.to_message());
        let mut server = Peer::saying(&client.hears);
        let error = as_client(&mut server, &[uc], Transport::Uc).unwrap_err();
        assert!(error.to_string().starts_with("this side runs --transport uc, the peer"));
        let xrc = b"0000:000011:000012:0a0b0c:000003:0000000000000000000";
        let error = as_client(&mut Peer::saying(xrc), &[uc], Transport::Uc).unwrap_err();
        assert!(
            error.to_string().ends_with("the peer --transport xrc: give the same on both ends")
        );
    }

    #[test]
    fn the_client_speaks_first_and_ends_with_done() {
        let mut peer = Peer::saying(MESSAGE);
        assert_eq!(as_client(&mut peer, &[address()], Transport::Rc).unwrap(), [address()]);
        assert_eq!(peer.hears, [&MESSAGE[..], b"done\0"].concat());
    }

    #[test]
    fn a_stranger_is_named_and_one_who_hangs_up_too() {
        let error = |says: &[u8]| {
            let mut peer = Peer::saying(says);
            as_client(&mut peer, &[address()], Transport::Rc).unwrap_err().to_string()
        };
        assert!(error(b"").starts_with("the peer hung up"));
        for says in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"0000:0000", &[b'0'; LEN], b"\xff"] {
            assert!(error(says).starts_with("the peer speaks something else: \""), "{says:?}");
        }
        for says in [&b"{\"rxe-perf\":2,\"mtu\":4096}\n"[..], b"{\"Failed\":{\"why\":\"\"}}\n"] {
            let says = [says, &[b' '; LEN]].concat();
            assert!(error(&says).starts_with("the peer runs `rxe perf`: run the same command"));
        }
    }

    #[test]
    fn where_more_messages_are_expected_the_rest_is_zeros() {
        let count = Transport::Srq.messages();
        let mut peer = Peer { says: MESSAGE.repeat(count).into(), hears: Vec::new() };
        let theirs = as_client(&mut peer, &[address(); 2], Transport::Srq).unwrap();
        assert_eq!(theirs, vec![address(); count]);
        let nothing = b"0000:000000:000000:00000000000000000000000000000000\0";
        let hears = [MESSAGE.repeat(2), nothing.repeat(count - 2), DONE.to_vec()].concat();
        assert_eq!(peer.hears, hears);
    }
}

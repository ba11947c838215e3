//! The exchange of ibv_rc_pingpong over TCP: the client sends its address, the server connects its
//! QP and answers with its own, the client says "done".
//!
//! A message is 52 bytes, text and a NUL: `LID:QPN:PSN:GID` in hex, 4, 6, 6 and 32 digits.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use rxe_core::types::{Gid, Psn, Qpn};

use super::in6;
use crate::common::{Error, rendezvous};

/// What one side tells the other of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Of InfiniBand; 0 on Ethernet.
    pub(super) lid: u16,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

/// Bytes of a message, the NUL among them.
const LEN: usize = 52;
const DONE: [u8; 5] = *b"done\0";

/// The side that connects. Gives the server's address; the server is ready to receive then.
pub(super) fn as_client(
    mut stream: impl Read + Write,
    own: &[Address],
    messages: usize,
) -> Result<Vec<Address>, Error> {
    send(&mut stream, own, messages)?;
    let peer = receive_all(&mut stream, messages)?;
    stream.write_all(&DONE).map_err(|e| rendezvous::broken(&e))?;
    Ok(peer)
}

/// The side that waited. `connect` makes the QP ready to receive before the client learns of it.
pub(super) fn as_server(
    mut stream: TcpStream,
    own: &[Address],
    messages: usize,
    connect: impl FnOnce(&[Address]) -> Result<(), Error>,
) -> Result<Vec<Address>, Error> {
    let peer = receive_all(&mut stream, messages)?;
    connect(&peer)?;
    send(&mut stream, own, messages)?;
    // What it says does not matter, nor how long it is: there have been versions of it.
    match stream.read(&mut [0; LEN]) {
        Ok(0) => Err(rendezvous::broken(&ErrorKind::UnexpectedEof.into())),
        Ok(_) => Ok(peer),
        Err(e) => Err(rendezvous::broken(&e)),
    }
}

/// Tells the own addresses, and nothing more where more messages are expected.
fn send(stream: &mut impl Write, own: &[Address], messages: usize) -> Result<(), Error> {
    let nothing = Address { lid: 0, qpn: Qpn::from_wire(0), psn: Psn::ZERO, gid: Gid::ZERO };
    for address in own.iter().chain(std::iter::repeat(&nothing)).take(messages) {
        // One write each, for the other side reads each at once.
        stream.write_all(&address.to_message()).map_err(|e| rendezvous::broken(&e))?;
    }
    Ok(())
}

fn receive_all(stream: &mut impl Read, messages: usize) -> Result<Vec<Address>, Error> {
    (0..messages).map(|_| receive(stream)).collect()
}

fn receive(stream: &mut impl Read) -> Result<Address, Error> {
    let mut message = [0; LEN];
    let mut have = 0;
    while have < LEN {
        match stream.read(&mut message[have..]) {
            Ok(0) if have == 0 => return Err(rendezvous::broken(&ErrorKind::UnexpectedEof.into())),
            Ok(0) => return Err(stranger(&message[..have])),
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if have > 0 && timed_out(&e) => return Err(stranger(&message[..have])),
            Err(e) => return Err(rendezvous::broken(&e)),
        }
        // Somebody who speaks something else need not send as much.
        if !message[..have].iter().all(|b| b.is_ascii_hexdigit() || b":\0".contains(b)) {
            return Err(stranger(&message[..have]));
        }
    }
    Address::from_message(&message).ok_or_else(|| stranger(&message))
}

fn timed_out(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn stranger(said: &[u8]) -> Error {
    let what = format!("the peer speaks something else: \"{}\"", said.escape_ascii());
    Error::new(what, "run `rxe pingpong` or ibv_rc_pingpong there")
}

impl Address {
    fn to_message(self) -> [u8; LEN] {
        let Self { lid, qpn, psn, gid } = self;
        let mut text = format!("{lid:04x}:{:06x}:{:06x}:", qpn.value(), psn.value());
        for byte in gid.as_bytes() {
            text += &format!("{byte:02x}");
        }
        let mut message = [0; LEN];
        message[..LEN - 1].copy_from_slice(text.as_bytes());
        message
    }

    fn from_message(message: &[u8; LEN]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?.split('\0').next()?;
        let mut parts = text.split(':');
        let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
        let (lid, qpn, psn) = (number()?, number()?, number()?);
        let gid = parts.next().filter(|gid| gid.len() == 32)?;
        let gid = u128::from_str_radix(gid, 16).ok()?;
        Some(Self {
            lid: u16::try_from(lid).ok()?,
            qpn: Qpn::new(qpn)?,
            psn: Psn::new(psn),
            gid: Gid::from_bytes(gid.to_be_bytes()),
        })
    }
}

/// As ibv_rc_pingpong prints it.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid } = self;
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
        }
    }

    /// A peer that has said all it will say.
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
            // In pieces, as a network may.
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

    #[test]
    fn the_client_speaks_first_and_ends_with_done() {
        let mut peer = Peer::saying(MESSAGE);
        assert_eq!(as_client(&mut peer, &[address()], 1).unwrap(), [address()]);
        assert_eq!(peer.hears, [&MESSAGE[..], b"done\0"].concat());
    }

    #[test]
    fn a_stranger_is_named_and_one_who_hangs_up_too() {
        let error = |says: &[u8]| {
            let mut peer = Peer::saying(says);
            as_client(&mut peer, &[address()], 1).unwrap_err().to_string()
        };
        assert!(error(b"").starts_with("the peer hung up"));
        for says in [&b"SSH-2.0-OpenSSH_9.2\r\n"[..], b"0000:0000", &[b'0'; LEN], b"\xff"] {
            assert!(error(says).starts_with("the peer speaks something else: \""), "{says:?}");
        }
    }

    #[test]
    fn where_more_messages_are_expected_the_rest_is_zeros() {
        let mut peer = Peer { says: MESSAGE.repeat(3).into(), hears: Vec::new() };
        assert_eq!(as_client(&mut peer, &[address()], 3).unwrap(), [address(); 3]);
        let nothing = b"0000:000000:000000:00000000000000000000000000000000\0";
        assert_eq!(peer.hears, [&MESSAGE[..], nothing, nothing, &DONE].concat());
    }
}

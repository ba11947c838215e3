//! The TCP connection after the exchange, which both `rxe pingpong` keep open.
//! Through it, each end learns immediately that the other has ended, and why.
//!
//! A message ends with a NUL. It is "END" from an end that has finished (as in ibv_xsrq_pingpong),
//! or "!" and the reason from an end that cannot continue. ibv_rc_pingpong and its variants for UC,
//! UD and SRQ close the TCP connection after the exchange, so with them this module is not used.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::common::Error;

const END: &[u8] = b"END\0";
const FAILED: u8 = b'!';

/// The most bytes of a message, more than any message has.
const MAX_MESSAGE: usize = 4096;

/// The state of the peer. `Running` may change; the others are final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// The peer runs and has not finished.
    Running,
    /// The peer has sent and received all its messages.
    Finished,
    /// The peer gave up, for this reason.
    Failed(String),
    /// The peer closed the connection without a message, or sent an unknown one.
    Gone,
}

/// The TCP connection to one peer.
#[derive(Debug)]
pub(super) struct PeerConnection {
    stream: TcpStream,
    heard: Vec<u8>,
    peer: PeerState,
}

impl PeerConnection {
    /// Watches a TCP connection after the exchange of addresses.
    pub(super) fn new(stream: TcpStream) -> Result<Self, Error> {
        let set = stream.set_nonblocking(true);
        set.map_err(|e| Error::new("cannot watch the connection to the peer", e))?;
        Ok(Self { stream, heard: Vec::new(), peer: PeerState::Running })
    }

    /// Reads what has arrived, without waiting, and returns the peer's state.
    pub(super) fn look(&mut self) -> &PeerState {
        let mut bytes = [0; 256];
        while self.peer == PeerState::Running {
            match self.stream.read(&mut bytes) {
                Ok(n) if n > 0 && self.heard.len() < MAX_MESSAGE => self.hear(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.peer = PeerState::Gone,
            }
        }
        &self.peer
    }

    /// Tells the peer that this end has finished. A peer that has ended is not an error.
    pub(super) fn finished(&mut self) {
        let _ = self.stream.write_all(END);
    }

    /// Tells the peer why this end cannot continue.
    pub(super) fn failed(&mut self, why: &Error) {
        let text = why.to_string().replace('\0', " ");
        let _ = self.stream.write_all(format!("!{text}\0").as_bytes());
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.heard.extend(bytes);
        if !self.heard.ends_with(b"\0") {
            return;
        }
        self.peer = match self.heard.strip_suffix(b"\0") {
            Some([FAILED, why @ ..]) => {
                PeerState::Failed(String::from_utf8_lossy(why).into_owned())
            }
            Some(b"END") => PeerState::Finished,
            // An unknown message.
            _ => PeerState::Gone,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (PeerConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (PeerConnection::new(near).unwrap(), listener.accept().unwrap().0)
    }

    /// Waits until the peer's state is final.
    fn fate(peer: &mut PeerConnection) -> PeerState {
        loop {
            match peer.look() {
                PeerState::Running => std::thread::yield_now(),
                fate => return fate.clone(),
            }
        }
    }

    #[test]
    fn a_silent_peer_is_running_until_it_disconnects() {
        let (mut peer, far) = pair();
        assert_eq!(peer.look(), &PeerState::Running);
        drop(far);
        assert_eq!(fate(&mut peer), PeerState::Gone);
    }

    #[test]
    fn what_the_peer_says_before_it_disconnects_counts() {
        let (mut peer, far) = pair();
        let mut far = PeerConnection::new(far).unwrap();
        far.finished();
        drop(far);
        assert_eq!(fate(&mut peer), PeerState::Finished);
        assert_eq!(peer.look(), &PeerState::Finished, "it stays so");

        let (mut peer, far) = pair();
        PeerConnection::new(far).unwrap().failed(&Error::new("no", "try yes"));
        assert_eq!(fate(&mut peer), PeerState::Failed("no: try yes".into()));
    }

    #[test]
    fn nonsense_is_no_word() {
        for said in [&b"END"[..], b"DONE\0", &[b'!'; 2 * MAX_MESSAGE]] {
            let (mut peer, mut far) = pair();
            far.write_all(said).unwrap();
            drop(far);
            assert_eq!(fate(&mut peer), PeerState::Gone, "{said:?}");
        }
    }
}

//! The TCP connection after the exchange, which stays open while both ends live. Through it each end
//! notices at once that the other has ended, and why.
//!
//! A message ends with a NUL. It is "END" from an end that has finished (as in ibv_xsrq_pingpong), or
//! "!" and the reason from an end that cannot continue. ibv_rc_pingpong and its variants for UC, UD and
//! SRQ close the connection after the exchange, so with them there is no lifeline.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::common::Error;

const END: &[u8] = b"END\0";
const FAILED: u8 = b'!';

/// The most bytes of a message, which is more than any of ours has.
const LONGEST: usize = 4096;

/// The state of the other end. `There` may change; the others are final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It runs and has not finished.
    There,
    /// It has sent and received all its messages.
    Finished,
    /// It gave up, for this reason.
    Failed(String),
    /// It has closed the connection without a message.
    Gone,
}

/// The connection to one peer.
#[derive(Debug)]
pub(super) struct Lifeline {
    stream: TcpStream,
    heard: Vec<u8>,
    peer: Peer,
}

impl Lifeline {
    /// Watches a TCP connection after the exchange of addresses.
    pub(super) fn new(stream: TcpStream) -> Result<Self, Error> {
        let set = stream.set_nonblocking(true);
        set.map_err(|e| Error::new("cannot watch the connection to the peer", e))?;
        Ok(Self { stream, heard: Vec::new(), peer: Peer::There })
    }

    /// Reads what has come, without waiting, and returns the peer's state.
    pub(super) fn look(&mut self) -> &Peer {
        let mut bytes = [0; 256];
        while self.peer == Peer::There {
            match self.stream.read(&mut bytes) {
                Ok(n) if n > 0 && self.heard.len() < LONGEST => self.hear(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => self.peer = Peer::Gone,
            }
        }
        &self.peer
    }

    /// Tells the peer that this end has finished. It is no error if the peer has ended.
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
            Some([FAILED, why @ ..]) => Peer::Failed(String::from_utf8_lossy(why).into_owned()),
            Some(b"END") => Peer::Finished,
            // An unknown message.
            _ => Peer::Gone,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Lifeline, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Lifeline::new(near).unwrap(), listener.accept().unwrap().0)
    }

    /// Waits until the peer's state is final.
    fn fate(line: &mut Lifeline) -> Peer {
        loop {
            match line.look() {
                Peer::There => std::thread::yield_now(),
                fate => return fate.clone(),
            }
        }
    }

    #[test]
    fn a_silent_peer_is_there_until_it_hangs_up() {
        let (mut line, far) = pair();
        assert_eq!(line.look(), &Peer::There);
        drop(far);
        assert_eq!(fate(&mut line), Peer::Gone);
    }

    #[test]
    fn what_the_peer_says_before_it_hangs_up_counts() {
        let (mut line, far) = pair();
        let mut far = Lifeline::new(far).unwrap();
        far.finished();
        drop(far);
        assert_eq!(fate(&mut line), Peer::Finished);
        assert_eq!(line.look(), &Peer::Finished, "it stays so");

        let (mut line, far) = pair();
        Lifeline::new(far).unwrap().failed(&Error::new("no", "try yes"));
        assert_eq!(fate(&mut line), Peer::Failed("no: try yes".into()));
    }

    #[test]
    fn nonsense_is_no_word() {
        for said in [&b"END"[..], b"DONE\0", &[b'!'; 2 * LONGEST]] {
            let (mut line, mut far) = pair();
            far.write_all(said).unwrap();
            drop(far);
            assert_eq!(fate(&mut line), Peer::Gone, "{said:?}");
        }
    }
}

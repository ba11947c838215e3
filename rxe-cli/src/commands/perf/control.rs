//! The exchange of the two sides of `rxe perf` over TCP: one JSON object per line.
//!
//! The first line of each side has the version of this exchange under the key `rxe-perf`. It
//! identifies another program or another version, whatever the rest of the line is.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Plan;
use super::stats::Row;
use crate::common::Error;
use crate::common::rendezvous::{self, TIMEOUT};

/// The version of the exchange. Increase it when an older side would misunderstand a change.
const VERSION: u64 = 2;
const KEY: &str = "rxe-perf";

/// The most bytes of a line, more than any message has.
const LINE: u64 = 1 << 20;

/// The first message of the client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    #[serde(rename = "rxe-perf")]
    version: u64,
    /// The path MTU in bytes that the user asked for, or the largest that the link carries.
    pub(super) mtu: usize,
    pub(super) mtu_asked: bool,
    pub(super) plan: Plan,
}

impl Hello {
    pub(super) fn new(mtu: usize, mtu_asked: bool, plan: Plan) -> Self {
        Self { version: VERSION, mtu, mtu_asked, plan }
    }
}

/// The first message of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Welcome {
    #[serde(rename = "rxe-perf")]
    version: u64,
    /// The path MTU to use, in bytes.
    pub(super) mtu: usize,
    pub(super) ends: Ends,
}

impl Welcome {
    pub(super) fn new(mtu: usize, ends: Ends) -> Self {
        Self { version: VERSION, mtu, ends }
    }
}

/// The queue pairs and the memory of one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ends {
    /// A [`rxe_verbs::Endpoint`] per queue pair, as text.
    pub(super) qps: Vec<String>,
    pub(super) addr: u64,
    pub(super) rkey: u32,
}

/// The messages after the first of each side.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The queue pairs and memory of the client.
    Ends(Ends),
    /// The server is ready.
    Ready {},
    /// The client is about to measure a size.
    Start { size: u32 },
    /// A side has sent all its messages: their number on all queue pairs, and its result.
    Sent { messages: u64, row: Option<Row> },
    /// A side has counted the messages that arrived, for services that lose messages.
    Arrived { row: Row },
    /// The measurement is finished.
    Bye {},
    /// A side cannot continue.
    Failed { why: String },
}

/// The TCP connection to the other side.
pub(super) struct ControlChannel {
    out: TcpStream,
    inbox: Receiver<io::Result<String>>,
    /// A line that was taken from the inbox and not returned yet.
    next: Option<io::Result<String>>,
}

impl ControlChannel {
    /// Starts a thread that reads what the other side sends.
    pub(super) fn new(stream: TcpStream) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::new("cannot set up the connection to the peer", e);
        stream.set_read_timeout(None).map_err(failed)?;
        let input = BufReader::new(stream.try_clone().map_err(failed)?);
        let (post, inbox) = channel();
        // A measuring loop can check the channel for messages without a system call.
        thread::Builder::new()
            .name("exchange".into())
            .spawn(move || {
                let mut input = input;
                loop {
                    let line = read_line(&mut input);
                    let last = line.is_err();
                    if post.send(line).is_err() || last {
                        return;
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self { out: stream, inbox, next: None })
    }

    /// Returns the address of the other side.
    pub(super) fn host(&self) -> Result<IpAddr, Error> {
        Ok(rendezvous::addresses(&self.out)?.1)
    }

    /// Sends the client's first message.
    pub(super) fn hello(&mut self, hello: &Hello) -> Result<(), Error> {
        self.write(hello)
    }

    /// Waits for the server's first message.
    pub(super) fn welcomed(&mut self) -> Result<Welcome, Error> {
        let line = self.line()?;
        if let Ok(Message::Failed { why }) = serde_json::from_str(&line) {
            return Err(refused(&why));
        }
        versioned(&line)
    }

    /// Waits for the client's first message.
    pub(super) fn greeted(&mut self) -> Result<Hello, Error> {
        let greeted = self.line().and_then(|line| versioned(&line));
        if let Err(e) = &greeted {
            // A client of another version understands this message.
            let _ = self.send(&Message::Failed { why: e.to_string() });
        }
        greeted
    }

    /// Sends the server's first message.
    pub(super) fn welcome(&mut self, welcome: &Welcome) -> Result<(), Error> {
        self.write(welcome)
    }

    pub(super) fn send(&mut self, what: &Message) -> Result<(), Error> {
        self.write(what)
    }

    /// Waits for the next message.
    pub(super) fn receive(&mut self) -> Result<Message, Error> {
        understood(&self.line()?)
    }

    /// Returns the next message, if one has arrived.
    pub(super) fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        self.receive_within(Duration::ZERO)
    }

    /// Returns the next message, if one arrives within `time`.
    pub(super) fn receive_within(&mut self, time: Duration) -> Result<Option<Message>, Error> {
        match self.next_line(time) {
            Ok(line) => understood(&line.map_err(|e| rendezvous::broken(&e))?).map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    /// Fails if the other side has failed or is gone. The next message stays in the inbox.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.next_line(Duration::ZERO) {
            Ok(Ok(line)) => {
                let failed = understood(&line).map(|_| ());
                self.next = Some(Ok(line));
                failed
            }
            Ok(Err(e)) => Err(rendezvous::broken(&e)),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    fn next_line(&mut self, time: Duration) -> Result<io::Result<String>, RecvTimeoutError> {
        match self.next.take() {
            Some(line) => Ok(line),
            None if time.is_zero() => self.inbox.try_recv().map_err(|e| match e {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
            None => self.inbox.recv_timeout(time),
        }
    }

    pub(super) fn expect_ready(&mut self) -> Result<(), Error> {
        match self.receive()? {
            Message::Ready {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn line(&mut self) -> Result<String, Error> {
        match self.next_line(TIMEOUT) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(e)) if e.kind() == ErrorKind::InvalidData => Err(stranger(&e.to_string())),
            Ok(Err(e)) => Err(rendezvous::broken(&e)),
            Err(RecvTimeoutError::Timeout) => Err(rendezvous::broken(&ErrorKind::TimedOut.into())),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    fn write(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let line = serde_json::to_string(what).map_err(io::Error::from).map(|line| line + "\n");
        let sent = line.and_then(|line| self.out.write_all(line.as_bytes()));
        match sent {
            Ok(()) => Ok(()),
            // The other side may have sent a reason before it closed the connection.
            Err(e) => Err(
                match self
                    .next
                    .take()
                    .into_iter()
                    .chain(self.inbox.try_iter())
                    .flatten()
                    .last()
                    .map(|l| understood(&l))
                {
                    Some(Err(why)) => why,
                    _ => rendezvous::broken(&e),
                },
            ),
        }
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        // The shutdown ends the reading thread.
        let _ = self.out.shutdown(Shutdown::Both);
    }
}

/// Returns the error for a message out of turn.
pub(super) fn unexpected(message: &Message) -> Error {
    Error::new(format!("the peer said {message:?} out of turn"), "is it of the same release?")
}

fn read_line(input: &mut impl BufRead) -> io::Result<String> {
    // The first byte is checked early, because another program may wait for an answer before it
    // ends its line.
    let begin = input.fill_buf()?;
    if begin.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    if begin[0] != b'{' {
        let said = begin[..begin.len().min(60)].escape_ascii().to_string();
        return Err(io::Error::new(ErrorKind::InvalidData, said));
    }
    let mut line = String::new();
    input.take(LINE).read_line(&mut line)?;
    if line.ends_with('\n') { Ok(line) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Parses the first line of a side, which must be of this program and version.
fn versioned<T: for<'de> Deserialize<'de>>(line: &str) -> Result<T, Error> {
    let shown = || line.trim().chars().take(60).collect::<String>();
    let value: Value = serde_json::from_str(line).map_err(|_| stranger(&shown()))?;
    match value.get(KEY).and_then(Value::as_u64) {
        None => Err(stranger(&shown())),
        Some(VERSION) => serde_json::from_value(value).map_err(|e| {
            Error::new(format!("the peer's first line makes no sense: {e}"), "is it `rxe perf`?")
        }),
        Some(other) => {
            let what = format!("the peer speaks version {other} of this exchange, not {VERSION}");
            Err(Error::new(what, "use the same release of rxe on both ends"))
        }
    }
}

fn understood(line: &str) -> Result<Message, Error> {
    match serde_json::from_str(line) {
        Ok(Message::Failed { why }) => Err(refused(&why)),
        Ok(message) => Ok(message),
        Err(e) => Err(Error::new("the peer's words make no sense", e)),
    }
}

fn refused(why: &str) -> Error {
    Error::new("the peer says", why)
}

fn stranger(said: &str) -> Error {
    Error::new(format!("the peer speaks something else: \"{said}\""), "run `rxe perf` there")
}

fn ended() -> Error {
    rendezvous::broken(&ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Returns the error of a client whose server sends `says`.
    fn client_of(says: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(says).unwrap();
        drop(server);
        ControlChannel::new(stream).unwrap().welcomed().unwrap_err().to_string()
    }

    #[test]
    fn a_look_leaves_the_next_word_where_it_was() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut control = ControlChannel::new(stream).unwrap();
        control.check().unwrap();
        server.write_all(b"{\"Ready\":{}}\n").unwrap();
        while control.next.is_none() {
            control.check().unwrap();
            thread::yield_now();
        }
        drop(server);
        control.check().unwrap();
        control.expect_ready().unwrap();
        let gone = std::iter::repeat_with(|| control.check()).find_map(Result::err).unwrap();
        assert!(gone.to_string().starts_with("the peer hung up"), "{gone}");
    }

    #[test]
    fn who_is_no_peer_is_told_so() {
        assert!(client_of(b"").starts_with("the peer hung up"));
        assert!(client_of(b"0000:000011:").starts_with("the peer speaks something else: \"0000:"));
        assert!(client_of(b"{\"a\": 1}\n").starts_with("the peer speaks something else"));
        assert!(client_of(b"{\"rxe-perf\": 99}\n").contains("version 99"));
        assert!(client_of(b"{\"rxe-perf\": 2}\n").contains("makes no sense"));
        let refusal = b"{\"Failed\": {\"why\": \"not today\"}}\n";
        assert_eq!(client_of(refusal), "the peer says: not today");
    }
}

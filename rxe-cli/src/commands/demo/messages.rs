//! The messages that the demo's two processes exchange outside of RDMA.
//! Each is one JSON object on a line. Each request gets one answer.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::PathOptions;
use super::place::Place;
use super::steps::Step;
use crate::common::Error;

/// A request of the leading process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Open this device, and create a queue pair.
    Open { place: Place, mtu: usize, path: PathOptions },
    /// Bring the queue pair to RTS.
    Connect { endpoint: String },
    /// Prepare memory and receives for this step.
    Prepare(Step),
    /// Verify the result of this step.
    Verify(Step),
    /// Prepare for the deliberate mistake.
    PrepareMistake,
    /// Report the effects of the mistake.
    Aftermath,
}

/// An answer of the peer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Opened {
        pid: u32,
        endpoint: String,
        addr: u64,
        rkey: u32,
    },
    Ready,
    /// The error in the result, if any.
    Verified {
        wrong: Option<String>,
    },
    Aftermath(Seen),
    Failed {
        why: String,
    },
}

/// The effects of the mistake at one end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// The request that the completion belongs to.
    pub(super) request: String,
    /// The text of `ibv_wc_status_str`.
    pub(super) status: String,
    pub(super) code: u8,
    /// The meaning of the status.
    pub(super) meaning: String,
    /// The lines of [`rxe_verbs::Device::explain`].
    pub(super) events: Vec<String>,
    pub(super) qp_state: String,
    /// Whether every byte of the region is unchanged.
    pub(super) memory_unchanged: bool,
}

/// The second process, which ends when this value is dropped.
pub(super) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the second process.
    pub(super) fn start() -> Result<Self, Error> {
        let failed = |e: io::Error| {
            Error::new(format!("cannot start a second process: {e}"), "is there a process limit?")
        };
        let me = env::current_exe().map_err(failed)?;
        let mut child = Command::new(me)
            .args(["demo", "--peer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Sends a request and waits for the answer.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Answer, Error> {
        let answer = self.stdin.as_mut().map_or(Ok(None), |stdin| {
            say(stdin, ask)?;
            hear(&mut self.stdout)
        });
        match answer {
            Ok(Some(Answer::Failed { why })) => Err(Error::new("the second process failed", why)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Error::new("the second process ended early", "see what it said above")),
            Err(e) => Err(Error::new("cannot talk to the second process", e)),
        }
    }

    /// Sends a request that has no result.
    pub(super) fn order(&mut self, ask: &Ask) -> Result<(), Error> {
        match self.ask(ask)? {
            Answer::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// The error for an answer that does not fit the request.
pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::new("the second process answered something else", format!("{answer:?}"))
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process ends at the end of its input.
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// Writes a value as a line of JSON.
pub(super) fn say(out: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads a value from a line of JSON; `None` at the end of the input.
pub(super) fn hear<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

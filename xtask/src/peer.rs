//! Talks to a scriptable verbs endpoint (`tests/peer/peer.py`, or its twin on our own stack) by the
//! protocol in `tests/peer/protocol.md`: JSON, a line each way.

use crate::vm::{Cmd, Error, Proc, Result, Vm};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// One end of a conversation.
pub struct Peer {
    input: Box<dyn Write + Send>,
    /// The lines that it writes, as a thread reads them.
    output: Receiver<io::Result<String>>,
    process: Process,
    name: String,
}

/// What runs the peer; it ends when this is dropped.
enum Process {
    Guest(Proc),
    Host(Child),
}

impl Peer {
    /// Starts the kernel's peer in a VM. The repository must be readable there, as it is wherever
    /// the host's files are.
    ///
    /// # Errors
    /// When the VM is gone.
    pub fn in_vm(vm: &Vm) -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/peer/peer.py");
        // Debian's own interpreter is the one that has pyverbs.
        let proc = vm.spawn(Cmd::new("/usr/bin/python3").arg(script))?;
        let name = format!("the peer in {}", vm.v4());
        let (input, output) = (Box::new(proc.stdin()), lines(proc.stdout()));
        Ok(Self { input, output, process: Process::Guest(proc), name })
    }

    /// Starts a peer as a process of the host; `command` is best made by [`crate::vm::Net::command`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn on_host(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |why: &str| Error::Failed(format!("{name}: {why}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = crate::vm::spawn(command).map_err(|e| failed(&e.to_string()))?;
        let input = child.stdin.take().ok_or_else(|| failed("no input"))?;
        let output = child.stdout.take().ok_or_else(|| failed("no output"))?;
        let (input, output) = (Box::new(input), lines(output));
        Ok(Self { input, output, process: Process::Host(child), name })
    }

    /// Sends a request and returns the answer if it is a good one. `fields` is an object
    /// (`serde_json::json!({…})`) or null.
    ///
    /// # Errors
    /// What the peer says went wrong, or that it is gone.
    pub fn call(&mut self, cmd: &str, fields: Value) -> Result<Value> {
        self.send(cmd, fields)?;
        let answer = self.receive()?;
        if answer["ok"] == true {
            return Ok(answer);
        }
        let (error, message) = (text(&answer["error"]), text(&answer["message"]));
        Err(Error::Failed(format!("{}: {cmd}: {error}: {message}", self.name)))
    }

    /// Sends a request without waiting for its answer: for two peers to work at the same time.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn send(&mut self, cmd: &str, fields: Value) -> Result<()> {
        let mut request = match fields {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        request.insert("cmd".into(), cmd.into());
        let line = format!("{}\n", Value::Object(request));
        let sent = self.input.write_all(line.as_bytes()).and_then(|()| self.input.flush());
        sent.map_err(|e| Error::Failed(format!("{} is gone: {e}", self.name)))
    }

    /// The next answer, good or bad.
    ///
    /// # Errors
    /// When the peer is gone, answers no JSON, or does not answer in time.
    pub fn receive(&mut self) -> Result<Value> {
        /// More than any request asks it to wait.
        const LIMIT: Duration = Duration::from_secs(300);
        let failed = |why: String| Error::Failed(format!("{}: {why}", self.name));
        match self.output.recv_timeout(LIMIT) {
            Ok(Ok(line)) => serde_json::from_str(&line).map_err(|e| failed(format!("{e}: {line}"))),
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(RecvTimeoutError::Timeout) => {
                Err(failed(format!("no answer in {} s", LIMIT.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(failed(format!("ended{}", self.process.last_words())))
            }
        }
    }

    /// Ends it at once, as a crash would: nothing is closed in good order.
    pub fn kill(&mut self) {
        match &mut self.process {
            Process::Guest(proc) => {
                proc.kill("KILL");
                let _ = proc.wait();
            }
            Process::Host(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Reads lines until the end of the output, or until nobody takes them.
fn lines(output: impl Read + Send + 'static) -> Receiver<io::Result<String>> {
    let (found, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if found.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

impl Process {
    fn last_words(&self) -> String {
        let Self::Guest(proc) = self else { return String::new() };
        let out = proc.output().map(|o| String::from_utf8_lossy(&o.stderr).trim().to_owned());
        out.map_or_else(|e| format!(": {e}"), |said| format!(": {said}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Bytes `at..at + len` of the pattern of `seed`, as the protocol defines it.
pub fn pattern(seed: u32, at: u64, len: usize) -> Vec<u8> {
    let byte = |i: u64| {
        // The protocol counts rows in 32 bits.
        let row = u32::try_from((i / 64) & 0xffff_ffff).unwrap_or_default();
        match usize::try_from(i % 64).unwrap_or_default() {
            n @ 0..4 => seed.to_le_bytes()[n],
            n @ 4..8 => row.to_le_bytes()[n - 4],
            n => {
                let [low, ..] = seed.wrapping_add(row).to_le_bytes();
                low.wrapping_add(u8::try_from(n - 8).unwrap_or_default())
            }
        }
    };
    (at..).take(len).map(byte).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

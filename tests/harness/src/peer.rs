//! A client for a scriptable verbs endpoint. The endpoint is `tests/peer/peer.py`, or its
//! counterpart on our own stack. The protocol is described in `tests/peer/protocol.md`: JSON, one
//! line in each direction.

use crate::vm::{Cmd, Error, Proc, Result, Vm};
use serde_json::{Map, Value};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// One end of a conversation.
pub struct Peer {
    input: Box<dyn Write + Send>,
    /// The output lines, as a thread reads them.
    output: Receiver<io::Result<String>>,
    process: Process,
    name: String,
    /// Set at the end of the output.
    ended: Arc<AtomicBool>,
    group: Arc<PeerGroup>,
}

/// The state shared by the peers of a conversation: a time limit, and the peers that ended
/// unexpectedly. The others would wait for them in vain.
#[derive(Debug, Default)]
pub struct PeerGroup(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    until: Option<Instant>,
    members: Vec<(String, Arc<AtomicBool>)>,
}

impl PeerGroup {
    /// Begins a conversation in which every answer must arrive before `until`.
    pub fn begin(&self, until: Instant) {
        self.lock().until = Some(until);
    }

    /// Returns the name of a member that has ended.
    fn ended(&self) -> Option<String> {
        let state = self.lock();
        let mut ended = state.members.iter().filter(|(_, ended)| ended.load(Ordering::Acquire));
        ended.next().map(|(name, _)| name.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process of the peer, which ends when this is dropped.
enum Process {
    Guest(Proc),
    Host(Child),
}

impl Peer {
    /// Starts the kernel's peer in a VM. The repository must be readable there, as it is wherever
    /// the host's files are.
    ///
    /// # Errors
    /// The VM is gone.
    /// When the VM is gone.
    pub fn in_vm(vm: &Vm) -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../peer/peer.py");
        // Debian's own interpreter has pyverbs.
        let proc = vm.spawn(Cmd::new("/usr/bin/python3").arg(script))?;
        let name = format!("the peer in {}", vm.v4());
        let (input, output) = (Box::new(proc.stdin()), proc.stdout());
        Ok(Self::new(input, output, Process::Guest(proc), name))
    }

    /// Starts a peer as a process of the host. `command` is usually created by
    /// [`crate::vm::Net::command`].
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn on_host(mut command: Command) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |why: &str| Error::Failed(format!("{name}: {why}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = crate::vm::spawn(command).map_err(|e| failed(&e.to_string()))?;
        let input = child.stdin.take().ok_or_else(|| failed("no input"))?;
        let output = child.stdout.take().ok_or_else(|| failed("no output"))?;
        Ok(Self::new(Box::new(input), output, Process::Host(child), name))
    }

    fn new(
        input: Box<dyn Write + Send>,
        output: impl Read + Send + 'static,
        process: Process,
        name: String,
    ) -> Self {
        let (found, output_lines) = mpsc::channel();
        let ended = Arc::<AtomicBool>::default();
        let end = ended.clone();
        thread::spawn(move || {
            read_lines(output, &found);
            end.store(true, Ordering::Release);
        });
        Self { input, output: output_lines, process, name, ended, group: Arc::default() }
    }

    /// Adds the peer to a conversation.
    #[must_use]
    pub fn join(mut self, group: &Arc<PeerGroup>) -> Self {
        group.lock().members.push((self.name.clone(), self.ended.clone()));
        self.group = group.clone();
        self
    }

    /// Sends a request and returns the answer if it is successful. `fields` is an object
    /// (`serde_json::json!({…})`) or null.
    ///
    /// # Errors
    /// The peer reports an error, or is gone.
    pub fn call(&mut self, cmd: &str, fields: Value) -> Result<Value> {
        self.send(cmd, fields)?;
        let answer = self.receive()?;
        if answer["ok"] == true {
            return Ok(answer);
        }
        let (error, message) = (text(&answer["error"]), text(&answer["message"]));
        Err(Error::Failed(format!("{}: {cmd}: {error}: {message}", self.name)))
    }

    /// Sends a request without waiting for its answer, so that two peers can work simultaneously.
    ///
    /// # Errors
    /// The peer is gone.
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

    /// Returns the next answer, successful or not.
    ///
    /// # Errors
    /// The peer or another one of the conversation is gone, the answer is not JSON, or it is late.
    pub fn receive(&mut self) -> Result<Value> {
        /// Longer than the wait of any request.
        const LIMIT: Duration = Duration::from_secs(300);
        const TURN: Duration = Duration::from_secs(1);
        let failed = |why: String| Error::Failed(format!("{}: {why}", self.name));
        let start = Instant::now();
        let until = self.group.lock().until.unwrap_or(start + LIMIT).min(start + LIMIT);
        loop {
            match self.output.recv_timeout(TURN) {
                Ok(Ok(line)) => {
                    return serde_json::from_str(&line).map_err(|e| failed(format!("{e}: {line}")));
                }
                Ok(Err(e)) => return Err(failed(e.to_string())),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed(format!("ended{}", self.process.last_words())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(other) = self.group.ended() {
                return Err(failed(format!("no answer, and {other} has ended")));
            }
            if Instant::now() > until {
                return Err(failed(format!("no answer in {} s", start.elapsed().as_secs())));
            }
        }
    }

    /// Kills the peer, as a crash would: no object is closed properly.
    pub fn kill(&mut self) {
        self.group.lock().members.retain(|(_, ended)| !Arc::ptr_eq(ended, &self.ended));
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

/// Reads lines until the end of the output, or until the receiver is dropped.
fn read_lines(output: impl Read, found: &Sender<io::Result<String>>) {
    for line in BufReader::new(output).lines() {
        if found.send(line).is_err() {
            break;
        }
    }
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

/// Returns bytes `at..at + len` of the pattern of `seed`, as the protocol defines it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peer(script: &str, group: &Arc<PeerGroup>) -> Peer {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        Peer::on_host(shell).unwrap().join(group)
    }

    /// A peer that answers after the test has ended.
    const SILENT: &str = "exec sleep 1000";

    #[test]
    fn the_end_of_a_partner_ends_a_wait_but_not_if_it_was_meant() {
        let group = Arc::default();
        let mut silent = peer(SILENT, &group);
        let mut told = peer(SILENT, &group);
        told.kill();
        let mut late = peer("sleep 2; echo '{\"ok\": true}'", &group);
        late.call("hello", Value::Null).unwrap();
        // The partner has ended now.
        silent.send("hello", json!({})).unwrap();
        let why = silent.receive().unwrap_err().to_string();
        assert_eq!(why, "sh: no answer, and sh has ended");
        drop(late);
        assert_eq!(group.ended(), None);
    }

    #[test]
    fn a_conversation_has_a_bound() {
        let group = Arc::<PeerGroup>::default();
        let mut silent = peer(SILENT, &group);
        group.begin(Instant::now());
        let why = silent.call("hello", Value::Null).unwrap_err().to_string();
        assert!(why.starts_with("sh: no answer in "), "{why}");
    }
}

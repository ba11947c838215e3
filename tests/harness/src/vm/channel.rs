//! The host's half of the control channel: processes in a VM, as if they were children here.

use super::frame::{self, Kind};
use super::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A command for a VM: program, arguments, environment, working directory. Programs and paths are
/// the host's own.
#[derive(Clone, Debug, Default)]
pub struct Cmd {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
}

impl Cmd {
    /// A program and no arguments yet.
    pub fn new(program: impl Into<String>) -> Self {
        Self { argv: vec![program.into()], ..Self::default() }
    }

    /// A script for `/bin/sh`.
    pub fn sh(script: impl Into<String>) -> Self {
        Self::new("/bin/sh").arg("-c").arg(script)
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// One more variable of the environment; nothing is inherited but what [`super::Vm`] sets.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// The directory to start in.
    #[must_use]
    pub fn cwd(mut self, dir: impl Into<String>) -> Self {
        self.cwd = dir.into();
        self
    }

    fn encode(&self, base: &[(String, String)]) -> Vec<u8> {
        let mut items = vec![self.cwd.clone(), (base.len() + self.env.len()).to_string()];
        items.extend(base.iter().chain(&self.env).map(|(k, v)| format!("{k}={v}")));
        items.extend(self.argv.iter().cloned());
        frame::encode_list(&items)
    }
}

impl<const N: usize> From<[&str; N]> for Cmd {
    fn from(argv: [&str; N]) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl From<&[String]> for Cmd {
    fn from(argv: &[String]) -> Self {
        Self { argv: argv.to_vec(), ..Self::default() }
    }
}

/// What a finished command leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit code; 128 + n for signal n.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard output if the command ended well.
    ///
    /// # Errors
    /// Its code and standard error otherwise.
    pub fn ok(self) -> Result<String> {
        if self.code == 0 {
            return Ok(self.text());
        }
        let why = String::from_utf8_lossy(&self.stderr);
        Err(Error::Failed(format!("exit code {}: {}", self.code, why.trim())))
    }
}

/// The channel to one VM's agent.
#[derive(Debug)]
pub(super) struct Channel {
    up: Arc<Mutex<UnixStream>>,
    shared: Arc<Shared>,
    next: AtomicU32,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: bool,
    /// Why the VM is gone, once it is.
    gone: Option<Error>,
    procs: HashMap<u32, ProcState>,
}

#[derive(Debug, Default)]
struct ProcState {
    stdout: VecDeque<u8>,
    stderr: VecDeque<u8>,
    end: Option<std::result::Result<i32, String>>,
}

impl Shared {
    /// Ends all waits: the VM answers no more.
    fn end(&self, why: String) {
        self.lock().gone.get_or_insert(Error::Failed(why));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `f` gives something or `until` passes.
    fn wait<T>(
        &self,
        until: Option<Instant>,
        mut f: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(v) = f(&mut state) {
                return Some(v);
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(t) => {
                    let left = t.checked_duration_since(Instant::now())?;
                    let woken = self.changed.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Channel {
    /// `why` tells why the VM has ended.
    pub(super) fn new(
        stream: UnixStream,
        why: Arc<impl Fn() -> String + Send + Sync + 'static>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut down = stream.try_clone()?;
        thread::spawn({
            let shared = shared.clone();
            move || {
                while let Ok(f) = frame::read(&mut down) {
                    receive(&shared, f);
                }
                shared.end(why());
            }
        });
        Ok(Self { up: Arc::new(Mutex::new(stream)), shared, next: AtomicU32::new(1) })
    }

    /// Waits for the agent; `false` when the VM ended or `timeout` passed first.
    pub(super) fn ready(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        self.shared
            .wait(Some(until), |s| (s.ready || s.gone.is_some()).then_some(s.ready))
            .unwrap_or(false)
    }

    pub(super) fn spawn(&self, cmd: &Cmd, env: &[(String, String)]) -> Result<Proc> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.shared.lock().procs.insert(id, ProcState::default());
        let proc = Proc { id, up: self.up.clone(), shared: self.shared.clone() };
        proc.send(Kind::Run, &cmd.encode(env))
            .map_err(|_| self.shared.lock().gone.clone().unwrap_or_else(gone))?;
        Ok(proc)
    }

    /// What ends all waits when it is called with a reason.
    pub(super) fn end(&self) -> impl FnOnce(String) + Send + use<> {
        let shared = self.shared.clone();
        move |why| shared.end(why)
    }
}

fn receive(shared: &Shared, f: frame::Frame) {
    let mut state = shared.lock();
    if f.kind == Kind::Ready {
        state.ready = true;
    } else if let Some(p) = state.procs.get_mut(&f.id) {
        match f.kind {
            Kind::Stdout => p.stdout.extend(f.data),
            Kind::Stderr => p.stderr.extend(f.data),
            Kind::Refused => p.end = Some(Err(String::from_utf8_lossy(&f.data).into_owned())),
            Kind::Exit => {
                p.end = Some(Ok(f.data.first_chunk().map_or(-1, |b| i32::from_le_bytes(*b))));
            }
            _ => {}
        }
    }
    drop(state);
    shared.changed.notify_all();
}

fn gone() -> Error {
    Error::Failed("the VM is gone".into())
}

/// A process in a VM. Dropping it kills its process group if it still runs.
#[derive(Debug)]
pub struct Proc {
    id: u32,
    up: Arc<Mutex<UnixStream>>,
    shared: Arc<Shared>,
}

impl Proc {
    /// Its standard output, to be read as it comes.
    pub fn stdout(&self) -> Pipe {
        Pipe { id: self.id, err: false, shared: self.shared.clone() }
    }

    /// Its standard error, to be read as it comes.
    pub fn stderr(&self) -> Pipe {
        Pipe { id: self.id, err: true, shared: self.shared.clone() }
    }

    /// Its standard input.
    pub fn stdin(&self) -> Stdin {
        Stdin { id: self.id, up: self.up.clone() }
    }

    /// Waits for its end: the exit code, 128 + n for signal n.
    ///
    /// # Errors
    /// When it could not be started, or the VM ended first.
    pub fn wait(&self) -> Result<i32> {
        self.shared.wait(None, |s| self.end(s)).unwrap_or_else(|| Err(gone()))
    }

    /// As [`Proc::wait`], but gives up after `timeout` with `None`.
    ///
    /// # Errors
    /// As [`Proc::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<i32>> {
        self.shared.wait(Some(Instant::now() + timeout), |s| self.end(s)).transpose()
    }

    /// Waits for its end and takes what is left of its output.
    ///
    /// # Errors
    /// As [`Proc::wait`].
    pub fn output(&self) -> Result<Output> {
        let code = self.wait()?;
        let mut out = Output { code, stdout: Vec::new(), stderr: Vec::new() };
        if let Some(p) = self.shared.lock().procs.get_mut(&self.id) {
            out.stdout = p.stdout.drain(..).collect();
            out.stderr = p.stderr.drain(..).collect();
        }
        Ok(out)
    }

    /// Sends a signal (`"TERM"`, `"9"`) to its process group.
    pub fn kill(&self, signal: &str) {
        let ended = self.shared.wait(Some(Instant::now()), |s| self.end(s)).is_some();
        if !ended {
            let _ = self.send(Kind::Kill, signal.as_bytes());
        }
    }

    fn end(&self, state: &mut State) -> Option<Result<i32>> {
        match state.procs.get(&self.id).and_then(|p| p.end.clone()) {
            Some(Ok(code)) => Some(Ok(code)),
            Some(Err(why)) => Some(Err(Error::Failed(format!("cannot start the command: {why}")))),
            None => state.gone.clone().map(Err),
        }
    }

    fn send(&self, kind: Kind, data: &[u8]) -> io::Result<()> {
        send(&self.up, kind, self.id, data)
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill("KILL");
    }
}

fn send(up: &Mutex<UnixStream>, kind: Kind, id: u32, data: &[u8]) -> io::Result<()> {
    let mut up = up.lock().unwrap_or_else(PoisonError::into_inner);
    frame::write(&mut *up, kind, id, data)
}

/// Standard output or error of a [`Proc`]; it ends when the process has.
#[derive(Debug)]
pub struct Pipe {
    id: u32,
    err: bool,
    shared: Arc<Shared>,
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.shared.wait(None, |s| {
            let gone = s.gone.is_some();
            let Some(p) = s.procs.get_mut(&self.id) else { return Some(0) };
            let q = if self.err { &mut p.stderr } else { &mut p.stdout };
            match q.read(buf) {
                Ok(n) if n > 0 => Some(n),
                _ => (p.end.is_some() || gone).then_some(0),
            }
        });
        Ok(got.unwrap_or(0))
    }
}

/// Standard input of a [`Proc`]; dropping it closes it.
#[derive(Debug)]
pub struct Stdin {
    id: u32,
    up: Arc<Mutex<UnixStream>>,
}

impl Write for Stdin {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(64 << 10);
        send(&self.up, Kind::Stdin, self.id, &buf[..n])?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        let _ = send(&self.up, Kind::CloseStdin, self.id, b"");
    }
}

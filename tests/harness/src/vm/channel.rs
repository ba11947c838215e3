//! The host's side of the control channel: processes in a VM, used like child processes.

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
/// those of the host.
#[derive(Clone, Debug, Default)]
pub struct Cmd {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: String,
}

impl Cmd {
    /// Creates a command without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self { argv: vec![program.into()], ..Self::default() }
    }

    /// Creates a command that runs a script with `/bin/sh`.
    pub fn sh(script: impl Into<String>) -> Self {
        Self::new("/bin/sh").arg("-c").arg(script)
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.argv.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable; only the variables that [`super::Vm`] sets are inherited.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Sets the working directory.
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

/// The result of a finished command.
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
    /// Returns the standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the standard output if the command succeeded.
    ///
    /// # Errors
    /// The exit code and the standard error, if the command failed.
    pub fn ok(self) -> Result<String> {
        if self.code == 0 {
            return Ok(self.text());
        }
        let why = String::from_utf8_lossy(&self.stderr);
        Err(Error::Failed(format!("exit code {}: {}", self.code, why.trim())))
    }
}

/// The channel to the agent of one VM.
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
    /// The reason why the VM is gone, once it is.
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
    /// Ends all waits, because the VM no longer answers.
    fn end(&self, why: String) {
        self.lock().gone.get_or_insert(Error::Failed(why));
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `f` returns a value or `until` passes.
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
    /// Creates a channel. `why` returns the reason why the VM has ended.
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

    /// Waits for the agent. Returns `false` if the VM ended or `timeout` passed first.
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

    /// Returns a function that ends all waits with a reason.
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

/// A process in a VM. Dropping this kills the process group if it still runs.
#[derive(Debug)]
pub struct Proc {
    id: u32,
    up: Arc<Mutex<UnixStream>>,
    shared: Arc<Shared>,
}

impl Proc {
    /// Returns the standard output, to be read while the process runs.
    pub fn stdout(&self) -> Pipe {
        Pipe { id: self.id, err: false, shared: self.shared.clone() }
    }

    /// Returns the standard error, to be read while the process runs.
    pub fn stderr(&self) -> Pipe {
        Pipe { id: self.id, err: true, shared: self.shared.clone() }
    }

    /// Returns the standard input.
    pub fn stdin(&self) -> Stdin {
        Stdin { id: self.id, up: self.up.clone() }
    }

    /// Waits for the end of the process. Returns the exit code, 128 + n for signal n.
    ///
    /// # Errors
    /// The process could not be started, or the VM ended first.
    pub fn wait(&self) -> Result<i32> {
        self.shared.wait(None, |s| self.end(s)).unwrap_or_else(|| Err(gone()))
    }

    /// Like [`Proc::wait`], but returns `None` after `timeout`.
    ///
    /// # Errors
    /// As for [`Proc::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<i32>> {
        self.shared.wait(Some(Instant::now() + timeout), |s| self.end(s)).transpose()
    }

    /// Waits for the end of the process and returns the rest of its output.
    ///
    /// # Errors
    /// As for [`Proc::wait`].
    pub fn output(&self) -> Result<Output> {
        let code = self.wait()?;
        let mut out = Output { code, stdout: Vec::new(), stderr: Vec::new() };
        if let Some(p) = self.shared.lock().procs.get_mut(&self.id) {
            out.stdout = p.stdout.drain(..).collect();
            out.stderr = p.stderr.drain(..).collect();
        }
        Ok(out)
    }

    /// Sends a signal (`"TERM"`, `"9"`) to the process group.
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

/// The standard output or error of a [`Proc`]; it ends when the process has ended.
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

/// The standard input of a [`Proc`]; dropping this closes it.
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

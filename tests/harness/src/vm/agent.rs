//! The agent in a VM. It starts processes for the host and transfers their input and output.
//!
//! Its argument is the virtio-serial port that leads to the host. One reader (the main thread)
//! handles frames. Each process has a thread for its input and one for each output, so that a
//! process that does not read or write cannot block another. The agent uses only the standard
//! library, so one call of `rustc` compiles it.

#[path = "frame.rs"]
#[allow(dead_code, reason = "shared with the host's half")]
mod frame;

use frame::Kind;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, thread};

fn main() -> io::Result<()> {
    let path = env::args_os().nth(1).unwrap_or_else(|| "/dev/vport0p1".into());
    let mut port = File::options().read(true).write(true).open(path)?;
    let up = Up(Arc::new(Mutex::new(port.try_clone()?)));
    up.send(Kind::Ready, 0, b"");
    let mut running: HashMap<u32, Running> = HashMap::new();
    loop {
        let f = frame::read(&mut port)?;
        match f.kind {
            Kind::Run => match start(&f.data) {
                Ok(child) => {
                    running.insert(f.id, attend(f.id, child, &up));
                }
                Err(e) => up.send(Kind::Refused, f.id, e.to_string().as_bytes()),
            },
            Kind::Stdin => {
                if let Some(r) = running.get(&f.id) {
                    let _ = r.stdin.send(Some(f.data));
                }
            }
            Kind::CloseStdin => {
                if let Some(r) = running.get(&f.id) {
                    let _ = r.stdin.send(None);
                }
            }
            Kind::Kill => {
                if let Some(r) = running.get(&f.id) {
                    let signal = String::from_utf8_lossy(&f.data).into_owned();
                    signal_group(&signal, r.pid);
                }
            }
            _ => {}
        }
    }
}

/// The output port to the host. Frames of several threads are not mixed.
#[derive(Clone)]
struct Up(Arc<Mutex<File>>);

impl Up {
    fn send(&self, kind: Kind, id: u32, data: &[u8]) {
        if let Ok(mut port) = self.0.lock() {
            let _ = frame::write(&mut *port, kind, id, data);
        }
    }
}

struct Running {
    pid: u32,
    stdin: Sender<Option<Vec<u8>>>,
}

fn start(data: &[u8]) -> io::Result<Child> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "malformed request");
    let mut items = frame::decode_list(data).ok_or_else(bad)?.into_iter().map(OsString::from_vec);
    let cwd = items.next().ok_or_else(bad)?;
    let envs = items.next().and_then(|n| n.to_str()?.parse::<usize>().ok()).ok_or_else(bad)?;
    let mut vars = Vec::new();
    for _ in 0..envs {
        let var = items.next().ok_or_else(bad)?.into_vec();
        let eq = var.iter().position(|b| *b == b'=').ok_or_else(bad)?;
        let (k, v) = var.split_at(eq);
        vars.push((OsString::from_vec(k.to_vec()), OsString::from_vec(v[1..].to_vec())));
    }
    let program = items.next().ok_or_else(bad)?;
    let mut cmd = Command::new(program);
    cmd.args(items).env_clear().envs(vars).process_group(0);
    if !cwd.is_empty() {
        cmd.current_dir(cwd);
    }
    cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Transfers a child's input and output, and reports its end after the last byte of output.
fn attend(id: u32, mut child: Child, up: &Up) -> Running {
    let (stdin, input) = channel();
    let pid = child.id();
    let pipe = child.stdin.take();
    thread::spawn(move || feed(&input, pipe));
    let out = child.stdout.take();
    let err = child.stderr.take();
    let readers = [
        thread::spawn({
            let up = up.clone();
            move || drain(out, Kind::Stdout, id, &up)
        }),
        thread::spawn({
            let up = up.clone();
            move || drain(err, Kind::Stderr, id, &up)
        }),
    ];
    let up = up.clone();
    thread::spawn(move || {
        let code = match child.wait() {
            Ok(status) => status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(-1),
            Err(_) => -1,
        };
        // A process that the child left behind may hold the pipes open forever, so the output is
        // read only for a moment.
        let end = Instant::now() + Duration::from_secs(1);
        while readers.iter().any(|r| !r.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
        up.send(Kind::Exit, id, &code.to_le_bytes());
    });
    Running { pid, stdin }
}

fn feed(input: &Receiver<Option<Vec<u8>>>, mut pipe: Option<impl Write>) {
    while let Ok(Some(data)) = input.recv() {
        if let Some(p) = &mut pipe
            && p.write_all(&data).is_err()
        {
            pipe = None;
        }
    }
}

fn drain(pipe: Option<impl Read>, kind: Kind, id: u32, up: &Up) {
    let Some(mut pipe) = pipe else { return };
    let mut buf = vec![0; 64 << 10];
    while let Ok(n) = pipe.read(&mut buf) {
        if n == 0 {
            break;
        }
        up.send(kind, id, &buf[..n]);
    }
}

/// Sends a signal to a process group by the shell's `kill`, because the standard library has no
/// such function.
fn signal_group(signal: &str, pid: u32) {
    let script = "kill -s \"$0\" -- \"-$1\"";
    let _ = Command::new("/bin/sh").args(["-c", script, signal, &pid.to_string()]).status();
}

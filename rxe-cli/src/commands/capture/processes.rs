//! Captures the packets of running processes.

use std::collections::BTreeSet;
use std::iter;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_lab::capture::Blocks;
use rxe_net::report::Timeout;
use rxe_net::{missing_before, process_parent};
use rxe_verbs::observe::{self, CapturePiece, DeviceCapture, OpenedDevices, Silence, Subject};

use super::sink::Sink;
use super::{Of, Until};
use crate::common::running::{comm, named, no_answer};
use crate::common::{Error, print_error};

/// The time between two searches for opened devices. Devices of this user also announce themselves.
const LOOK: Duration = Duration::from_millis(500);
/// The time that stopped processes have to answer, and to send the rest at the end. Running
/// processes have longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most messages that are taken from a device before the others have their turn.
const MESSAGES: usize = 16;

/// A device that is captured.
struct Source {
    capture: DeviceCapture,
    patience: Timeout,
    /// The number of the device's interface in the capture, once its capture has begun.
    interface: Option<u32>,
    /// The packets that the device reported as missing so far.
    missing: u64,
    ended: bool,
}

/// Captures until `until`, until the sink is full, or until the named process has ended.
pub(super) fn capture(of: Of, sink: &mut Sink, until: &Until) -> Result<(), Error> {
    // Listen before the first search, so that each device is either found or announces itself.
    let opened = matches!(of, Of::All).then(OpenedDevices::listen).flatten();
    let mut sources = Sources { of, opened, all: Vec::new(), said: Vec::new() };
    let mut looked: Option<Instant> = None;
    while let Some(left) = until.left(LOOK).filter(|_| !sink.is_full()) {
        let is_told = sources.opened.as_mut().is_some_and(OpenedDevices::accept);
        if is_told || looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            sources.look();
            if sources.all.is_empty() {
                match of {
                    Of::Process(pid) if looked.is_none() => {
                        let open = observe::ask(Subject::Summary).into_iter();
                        let open = open.filter_map(|report| report.pid).collect();
                        return Err(no_device(pid, open));
                    }
                    Of::Process(pid) if !sink.has_device() => {
                        return Err(reason(Some(pid), NoCapture::Silent(Silence::HungUp)).into());
                    }
                    Of::Process(_) => break,
                    Of::All if looked.is_none() => {
                        sink.notice("no process has a device open: waiting for one");
                    }
                    Of::All => {}
                }
            }
            if looked.is_none() {
                sources.begin_all(sink, until)?;
            }
            looked = Some(Instant::now());
        }
        sources.wait(left, sources.opened.as_ref(), |_| true);
        sources.take(sink, MESSAGES, |_| true)?;
        sources.release();
        sink.flush()?;
        if let Of::Process(pid) = of
            && let Some(&(_, why)) = sources.said.iter().find(|(of, _)| *of == Some(pid))
            && sources.all.is_empty()
        {
            return Err(reason(Some(pid), why).into());
        }
    }
    sources.end(sink)
}

/// Returns the error for a process without a device. `open` has the processes with a device: the
/// process may be a wrapper (a shell, `timeout`, `mpirun`) that has started one of them.
fn no_device(pid: u32, open: BTreeSet<u32>) -> Error {
    let parents = |of| iter::successors(process_parent(of), |parent| process_parent(*parent));
    let started: Vec<_> = open.into_iter().filter(|of| parents(*of).any(|it| it == pid)).collect();
    let todo = match started[..] {
        [] => "`rxe stat` lists the processes that have".to_owned(),
        [one] => {
            let process = named(Some(one));
            format!("{process}, which it started, has: use `rxe capture --of {one}`")
        }
        [first, ..] => {
            let all: Vec<_> = started.iter().map(|it| format!("{it} ({})", comm(*it))).collect();
            let all = all.join(", ");
            format!(
                "processes that it started have: {all}: choose one, as in `rxe capture --of {first}`"
            )
        }
    };
    Error::new(format_args!("process {pid} has no device open"), todo)
}

/// The reason why a device is not captured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoCapture {
    Taken,
    Silent(Silence),
}

fn reason(pid: Option<u32>, why: NoCapture) -> String {
    match why {
        NoCapture::Taken => {
            format!("{} is captured by another command: end that first", named(pid))
        }
        NoCapture::Silent(Silence::HungUp) => {
            format!("{} hangs up: start it again, with this version of rxe", named(pid))
        }
        NoCapture::Silent(silence) => no_answer(pid, silence),
    }
}

struct Sources {
    of: Of,
    /// The socket on which devices announce themselves, if all are captured.
    opened: Option<OpenedDevices>,
    all: Vec<Source>,
    /// The processes that are not captured, and why.
    said: Vec<(Option<u32>, NoCapture)>,
}

impl Sources {
    /// Asks the processes that are not known yet.
    fn look(&mut self) {
        let known: Vec<_> = self.all.iter().map(|source| &source.capture).collect();
        let of = match self.of {
            Of::All => None,
            Of::Process(pid) => Some(pid),
        };
        let new = DeviceCapture::begin(of, &known);
        self.all.extend(new.into_iter().map(|capture| Source {
            capture,
            patience: Timeout::new(PATIENCE),
            interface: None,
            missing: 0,
            ended: false,
        }));
    }

    /// Waits until every device that was found has begun or failed. Takes no packets before that,
    /// or those counted by `-c` would all come from the first device that answers.
    fn begin_all(&mut self, sink: &mut Sink, until: &Until) -> Result<(), Error> {
        while self.all.iter().any(Source::is_asked)
            && let Some(left) = until.left(LOOK)
        {
            self.wait(left, None, Source::is_asked);
            self.take(sink, 1, Source::is_asked)?;
        }
        Ok(())
    }

    /// Lets new devices continue, which wait to be captured, if every device has answered.
    fn release(&mut self) {
        if let Some(opened) = &mut self.opened
            && !self.all.iter().any(Source::is_asked)
        {
            opened.release();
        }
    }

    /// Waits until a source that `of` selects is readable, or a device is opened.
    fn wait(
        &self,
        timeout: Duration,
        opened: Option<&OpenedDevices>,
        of: impl Fn(&Source) -> bool,
    ) {
        let fds = self.all.iter().filter(|source| of(source)).map(|source| source.capture.as_fd());
        let fds = fds.chain(opened.map(AsFd::as_fd));
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // A signal may end the wait early.
        let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
    }

    /// Takes available messages, up to `messages` from each source that `of` selects.
    fn take(
        &mut self,
        sink: &mut Sink,
        messages: usize,
        of: impl Fn(&Source) -> bool,
    ) -> Result<(), Error> {
        let mut failed = Vec::new();
        for source in self.all.iter_mut().filter(|source| of(source)) {
            if let Some(why) = source.take(sink, messages)? {
                source.ended = true;
                failed.push((source.capture.pid(), why));
            }
        }
        for (pid, why) in failed {
            self.say(pid, why);
        }
        self.all.retain(|source| !source.ended);
        Ok(())
    }

    /// Reports why a device is not captured, once per process. Reports nothing for a process of
    /// which a device is captured: this command may have found that device by another of its names.
    fn say(&mut self, pid: Option<u32>, why: NoCapture) {
        let is_captured =
            |source: &Source| source.capture.pid() == pid && source.interface.is_some();
        if self.all.iter().any(is_captured) || self.said.contains(&(pid, why)) {
            return;
        }
        self.said.push((pid, why));
        if matches!(self.of, Of::All) && pid.is_some() {
            print_error(&reason(pid, why));
        }
    }

    /// Ends all captures, and takes the remaining packets.
    fn end(&mut self, sink: &mut Sink) -> Result<(), Error> {
        self.opened = None;
        self.all.retain(|source| source.interface.is_some());
        self.all.iter().for_each(|source| source.capture.end());
        let patience = Timeout::new(PATIENCE);
        loop {
            let left = self.all.iter().map(|source| patience.left(source.capture.pid())).max();
            let Some(left) = left.filter(|left| !left.is_zero()) else { break };
            self.wait(left, None, |_| true);
            self.take(sink, MESSAGES, |_| true)?;
        }
        Ok(())
    }
}

impl Source {
    /// Returns whether the device's process has not answered yet.
    fn is_asked(&self) -> bool {
        self.interface.is_none()
    }

    /// Takes up to `messages` available messages. Returns the reason if the device is not captured.
    fn take(&mut self, sink: &mut Sink, messages: usize) -> Result<Option<NoCapture>, Error> {
        for _ in 0..messages {
            let Some(piece) = self.capture.receive() else {
                let is_late = self.is_asked() && self.patience.left(self.capture.pid()).is_zero();
                return Ok(is_late.then_some(NoCapture::Silent(Silence::Late)));
            };
            match piece {
                CapturePiece::Begun => {}
                CapturePiece::Blocks(bytes) => {
                    if let Some(interface) = self.interface
                        && !packets(bytes, interface, &mut self.missing, sink)?
                    {
                        return Ok(Some(NoCapture::Silent(Silence::Nonsense)));
                    }
                    continue;
                }
                CapturePiece::Ended(dropped) => {
                    self.ended = true;
                    if let Some(interface) = self.interface {
                        // Packets missing before a captured packet were counted with that packet.
                        sink.dropped(interface, dropped.saturating_sub(self.missing));
                    }
                    return Ok(None);
                }
                CapturePiece::Taken => return Ok(Some(NoCapture::Taken)),
                CapturePiece::Broken(Silence::HungUp) => {
                    // The process has ended, or this socket was another one of a known device.
                    self.ended = true;
                    return Ok(None);
                }
                CapturePiece::Broken(silence) => return Ok(Some(NoCapture::Silent(silence))),
            }
            self.begin(sink)?;
        }
        Ok(None)
    }

    fn begin(&mut self, sink: &mut Sink) -> Result<(), Error> {
        let of = |key| self.capture.device(key).unwrap_or("?");
        let who = named(self.capture.pid());
        let name = of("name");
        sink.notice(&format!("capturing {name} of {who}"));
        self.interface = Some(sink.add_interface(name, format!("{who}, on {}", of("netdev")))?);
        Ok(())
    }
}

/// Passes the packets of a message to the sink, and counts packets missing before them.
/// A process that is killed cannot report the total at its end. Returns whether the message was
/// valid.
fn packets(
    bytes: &[u8],
    interface: u32,
    missing: &mut u64,
    sink: &mut Sink,
) -> Result<bool, Error> {
    let mut blocks = Blocks::new(bytes);
    loop {
        match blocks.next(sink.next()) {
            Ok(Some(mut record)) => {
                record.interface = interface;
                let before = record.comments.iter().filter_map(|comment| missing_before(comment));
                let before = before.fold(0, u64::saturating_add);
                *missing = missing.saturating_add(before);
                sink.dropped(interface, before);
                sink.packet(&record)?;
            }
            Ok(None) => return Ok(true),
            Err(_) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio, id};

    use super::*;

    /// A running program, which ends with this value.
    struct Running(Child);

    impl Running {
        fn start() -> Self {
            Self(Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_wrapper_without_a_device_names_the_processes_that_it_started() {
        let running = [Running::start(), Running::start()];
        let mut started = running.each_ref().map(|it| it.0.id());
        started.sort_unstable();
        let [first, second] = started;
        let said = |of: u32, open: &[u32], todo: &str| {
            let text = format!("process {of} has no device open: {todo}");
            assert_eq!(no_device(of, open.iter().copied().collect()).to_string(), text);
        };
        let todo = format!(
            "process {first} (sleep), which it started, has: use `rxe capture --of {first}`"
        );
        said(id(), &[first], &todo);
        said(process_parent(id()).unwrap(), &[first], &todo);
        let todo = format!(
            "processes that it started have: {first} (sleep), {second} (sleep): choose one, as in \
             `rxe capture --of {first}`"
        );
        said(id(), &[second, first], &todo);
        // A process does not start its sibling, its parent or itself.
        for other in [second, id(), first] {
            said(first, &[other], "`rxe stat` lists the processes that have");
        }
    }
}

//! Time limits for other processes. A running process may be slow, because the host is busy, so it
//! gets more time than a stopped one.

use std::time::{Duration, Instant};

use crate::host::port_owner::process_is_stopped;

/// How many times longer a running process may take than a stopped one.
const RUNNING: u32 = 5;
/// How often to check whether a process has been stopped meanwhile.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The time that another process has to answer.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    stopped: Instant,
    running: Instant,
}

impl Timeout {
    /// Starts the time now. The limit is `stopped` for a process that is stopped or unknown, and
    /// five times as much for a running one.
    pub fn new(stopped: Duration) -> Self {
        let now = Instant::now();
        Self { stopped: now + stopped, running: now + stopped * RUNNING }
    }

    /// Returns how long to wait for this process before the next check, or zero if its time is
    /// over.
    pub fn left(&self, pid: Option<u32>) -> Duration {
        let now = Instant::now();
        if now < self.stopped {
            return self.stopped - now;
        }
        let left = self.running.saturating_duration_since(now).min(CHECK_EVERY);
        if left.is_zero() || !pid.is_some_and(runs) { Duration::ZERO } else { left }
    }
}

/// Returns whether the process exists and is not stopped.
fn runs(pid: u32) -> bool {
    process_is_stopped(pid) == Some(false)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    #[test]
    fn one_that_runs_gets_more_time_than_one_that_is_stopped() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let (pid, of) = (Some(child.id()), Pid::from_child(&child));
        let hour = Duration::from_secs(3600);
        let timeout = Timeout::new(hour);
        assert!(!timeout.left(pid).is_zero() && !timeout.left(None).is_zero());
        // The time of a stopped process is over.
        let now = Instant::now();
        let timeout = Timeout { stopped: now, running: now + hour };
        assert_eq!([timeout.left(pid), timeout.left(None)], [CHECK_EVERY, Duration::ZERO]);
        kill_process(of, Signal::STOP).unwrap();
        waitpid(Some(of), WaitOptions::UNTRACED).unwrap();
        assert!(timeout.left(pid).is_zero());
        kill_process(of, Signal::CONT).unwrap();
        waitpid(Some(of), WaitOptions::CONTINUED).unwrap();
        assert_eq!(timeout.left(pid), CHECK_EVERY);
        let timeout = Timeout { stopped: now, running: now };
        assert!(timeout.left(pid).is_zero());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

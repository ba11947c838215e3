//! Starts MPI's ranks on two hosts, one of which is a VM. A launcher (`mpirun`, `mpiexec`) reaches
//! another host by a program like ssh, its agent. This agent is a script: it runs commands for this
//! host itself, and passes those for the VM to the harness, which starts them there.

use super::world::failed;
use crate::vm::{Cmd, HOST_V4, Net, Proc, Result, Vm, spawn};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// A directory with the agent, which both hosts can read.
#[derive(Debug)]
pub struct Launcher {
    dir: TempDir,
}

impl Launcher {
    /// Creates the directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn new() -> Result<Self> {
        let open = Permissions::from_mode(0o755);
        let dir = tempfile::Builder::new().prefix("rxe-launcher-").permissions(open).tempdir();
        let this = Self { dir: dir.map_err(|e| failed(format!("a directory for an agent: {e}")))? };
        let (new, ended) = (this.path("new"), this.path("ended"));
        let (command, new, ended) =
            (this.command().display().to_string(), new.display(), ended.display());
        this.script(
            "agent",
            &format!(
                r#"while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
[ "$host" != {HOST_V4} ] || exec sh -c "$*"
echo "$*" > {new}
mv {new} {command}
while [ ! -e {ended} ] && kill -0 $PPID 2> /dev/null; do sleep 0.1; done"#
            ),
        )?;
        Ok(this)
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a shell script.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn script(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        let written = fs::write(&path, format!("#!/bin/sh\n{text}\n"))
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)));
        written.map(|()| path.clone()).map_err(|e| failed(format!("{}: {e}", path.display())))
    }

    /// Runs a launcher, given as a shell command, whose agent is the file `agent`. The launcher
    /// runs on this end of the link, under the host name `here`. `variables` have the form
    /// NAME=VALUE. Returns whether it succeeded, and its output.
    ///
    /// # Errors
    /// The launcher cannot be started, or the VM is gone.
    /// When it cannot be started, or the VM is gone.
    pub fn run(
        &self,
        net: &Net,
        vm: &Vm,
        variables: &[&str],
        launch: &str,
    ) -> Result<(bool, String)> {
        let mut command = net.command("unshare");
        command.args(["--uts", "sh", "-c", &format!("hostname here; exec timeout 240 {launch}")]);
        command.env("TMPDIR", self.dir.path());
        command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let launcher = spawn(command).map_err(|e| failed(format!("unshare: {e}")))?;
        let output = thread::spawn(move || launcher.wait_with_output());
        let mut there = None;
        while !output.is_finished() {
            self.attend(vm, &mut there)?;
            thread::sleep(Duration::from_millis(20));
        }
        let out = output.join().map_err(|_| failed("the launcher cannot be read"))?;
        let out = out.map_err(|e| failed(format!("the launcher: {e}")))?;
        let mut said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        if let (Some(there), false) = (there, out.status.success()) {
            there.kill("KILL");
            let out = there.output()?;
            said += &String::from_utf8_lossy(&[out.stdout, out.stderr].concat());
        }
        Ok((out.status.success(), said))
    }

    /// Starts the command for the VM once the agent has written it, and ends the agent with it.
    fn attend(&self, vm: &Vm, there: &mut Option<Proc>) -> Result<()> {
        match there {
            None => {
                if let Ok(command) = fs::read_to_string(self.command()) {
                    let script = format!("cd; export TMPDIR=$HOME; {command}");
                    *there = Some(vm.spawn(Cmd::sh(script))?);
                }
            }
            Some(proc) => {
                if proc.wait_timeout(Duration::ZERO)?.is_some() {
                    let ended = fs::write(self.path("ended"), "");
                    ended.map_err(|e| failed(format!("the agent: {e}")))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the path at which the agent writes the command for the VM.
    fn command(&self) -> PathBuf {
        self.path("command")
    }
}

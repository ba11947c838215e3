//! The ends of a run with one kernel, created when they are first needed and again after a failure.

use super::end::{Conn, End, Link, Pair, failed};
use super::{Backend, Options, Requester};
use crate::peer::{Peer, PeerGroup};
use crate::vm::{HOST_V4, HOST_V6, LINK, Net, Result, Vm};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A feature that some kernels lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelFeature {
    Nothing,
    /// Memory windows of the responder.
    Windows,
    /// ATOMIC WRITE and FLUSH at both ends.
    Placed,
}

/// The options of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) requester: Requester,
    pub(super) backend: Backend,
    pub(super) v6: bool,
    /// Whether our end loses and reorders packets.
    pub(super) faulty: bool,
}

/// One kernel in a VM, and the ends in the VM and on the host.
pub(super) struct World<'a> {
    pub(super) vm: &'a Vm,
    pub(super) net: &'a Net,
    pub(super) options: &'a Options,
    /// The runtime directory in which our end's endpoint of layer 2 is configured.
    runtime: TempDir,
    kernel: Option<End>,
    /// A second process in the VM, for conversations of two kernels.
    second: Option<End>,
    ours: Option<(OurKind, End)>,
    steady: Option<(Setting, &'static str, Conn)>,
    connections: u64,
    group: Arc<PeerGroup>,
    pub(super) quirks: Quirks,
    /// The remark on the current cell.
    pub(super) remark: Option<String>,
}

/// The defects of a kernel, which also affect another kernel as peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quirks {
    /// 5.10: answers to atomics over IPv4 do not leave the host. The kernel keeps a pointer where
    /// the output routine of IPv4 looks for a fragment size.
    pub(super) mute_atomics: bool,
    /// 5.10: no NAK for an error in a request that takes no receive; and after an error in its own
    /// request, the requester does not flush.
    pub(super) mute_faults: bool,
    /// Before 5.14: memory windows are not supported.
    no_windows: bool,
    /// Before 6.2: neither ATOMIC WRITE nor FLUSH is supported.
    no_placed: bool,
    /// 6.1: on a busy machine, the requester stops forever in the middle of long messages, although
    /// everything it sent was acknowledged.
    pub(super) stops: bool,
}

impl Quirks {
    fn of(kernel: &str) -> Self {
        let old = kernel == "5.10";
        let no_placed = old || kernel == "6.1";
        let stops = kernel == "6.1";
        Self { mute_atomics: old, mute_faults: old, no_windows: old, no_placed, stops }
    }

    /// Returns whether this kernel supports the feature in its role.
    pub(super) fn have(self, needs: KernelFeature, requester: Requester) -> bool {
        match needs {
            KernelFeature::Nothing => true,
            KernelFeature::Windows => requester == Requester::Kernel || !self.no_windows,
            KernelFeature::Placed => !self.no_placed,
        }
    }
}

/// The configuration of our end: backend, IPv6, faults.
type OurKind = (Backend, bool, bool);

impl<'a> World<'a> {
    pub(super) fn new(
        kernel: &str,
        vm: &'a Vm,
        net: &'a Net,
        options: &'a Options,
    ) -> Result<Self> {
        Ok(Self {
            runtime: add_endpoints(net, options)?,
            vm,
            net,
            options,
            kernel: None,
            second: None,
            ours: None,
            steady: None,
            connections: 0,
            group: Arc::default(),
            quirks: Quirks::of(kernel),
            remark: None,
        })
    }

    /// Returns the two ends for a setting.
    pub(super) fn pair(&mut self, setting: Setting) -> Result<Pair<'_>> {
        let vm_ip = if setting.v6 { IpAddr::V6(self.vm.v6()) } else { self.vm.v4().into() };
        let (v4, v6) = match setting.backend {
            Backend::Interface | Backend::Pnet => (OWN_V4, OWN_V6),
            _ => (HOST_V4, HOST_V6),
        };
        let host_ip = if setting.v6 { IpAddr::V6(v6) } else { v4.into() };
        self.start_kernel()?;
        let mut ips = [host_ip, vm_ip];
        if setting.requester == Requester::Baseline {
            if self.second.is_none() {
                self.second = Some(End::open(self.in_vm()?, "second kernel")?);
            }
            ips = [vm_ip, vm_ip];
        } else {
            let kind = (setting.backend, setting.v6, setting.faulty);
            if self.ours.as_ref().is_some_and(|(have, _)| *have != kind) {
                // The address and its port 4791 must be free for the next end.
                self.stop_ours();
            }
            if self.ours.is_none() {
                self.ours = Some((kind, self.start_ours(kind, host_ip)?));
            }
        }
        let none = || failed("an end is missing");
        let kernel = self.kernel.as_mut().ok_or_else(none)?;
        let (req, resp) = match setting.requester {
            Requester::Ours => (self.ours.as_mut().map(|(_, e)| e).ok_or_else(none)?, kernel),
            Requester::Kernel => {
                ips.reverse();
                (kernel, self.ours.as_mut().map(|(_, e)| e).ok_or_else(none)?)
            }
            Requester::Baseline => (kernel, self.second.as_mut().ok_or_else(none)?),
        };
        let kernel_answers = setting.requester == Requester::Ours && !setting.v6;
        let atomics = !(kernel_answers && self.quirks.mute_atomics);
        Ok(Pair { req, resp, ips, atomics, connections: &mut self.connections })
    }

    /// Returns the two ends for a setting and a connection between them, which the next call
    /// reuses.
    pub(super) fn steady(
        &mut self,
        setting: Setting,
        service: &'static str,
    ) -> Result<(Pair<'_>, Conn)> {
        let have = self.steady.filter(|(of, by, _)| (*of, *by) == (setting, service));
        let have = have.map(|(_, _, conn)| conn);
        let conn = match have {
            Some(conn) => conn,
            None => {
                self.steady = None;
                self.pair(setting)?.connect(&Link { service, ..Link::default() })?
            }
        };
        self.steady = Some((setting, service, conn));
        Ok((self.pair(setting)?, conn))
    }

    /// Returns the GID index of an address on the VM's device.
    pub(super) fn kernel_gid(&mut self, ip: IpAddr) -> Result<u64> {
        self.start_kernel()?;
        let kernel = self.kernel.as_ref().ok_or_else(|| failed("an end is missing"))?;
        kernel.gid(ip).map(|(index, _)| index)
    }

    fn in_vm(&self) -> Result<Peer> {
        Ok(Peer::in_vm(self.vm)?.join(&self.group))
    }

    /// Begins a cell: neither end waits longer than `limit` for an answer.
    pub(super) fn begin(&self, limit: Duration) {
        self.group.begin(Instant::now() + limit);
    }

    fn start_kernel(&mut self) -> Result<()> {
        if self.kernel.is_none() {
            self.kernel = Some(End::open(self.in_vm()?, "kernel")?);
        }
        Ok(())
    }

    /// Ends all processes. They are started again when they are needed.
    pub(super) fn forget(&mut self) {
        self.steady = None;
        self.kernel = None;
        self.second = None;
        self.stop_ours();
    }

    /// Ends our end, so that its address is free.
    pub(super) fn stop_ours(&mut self) {
        self.steady = None;
        if let Some((_, mut end)) = self.ours.take() {
            end.kill();
        }
    }

    /// Kills the responder of a setting, as a crash would end it.
    pub(super) fn crash_responder(&mut self, setting: Setting) {
        let end = match setting.requester {
            Requester::Ours => &mut self.kernel,
            Requester::Baseline => &mut self.second,
            Requester::Kernel => return self.stop_ours(),
        };
        self.steady = None;
        if let Some(mut end) = end.take() {
            end.kill();
        }
    }

    /// Returns the requester of a setting that has been used before.
    pub(super) fn requester(&mut self, setting: Setting) -> Result<&mut End> {
        let end = match setting.requester {
            Requester::Ours => self.ours.as_mut().map(|(_, e)| e),
            Requester::Kernel | Requester::Baseline => self.kernel.as_mut(),
        };
        end.ok_or_else(|| failed("the requester is gone"))
    }

    fn start_ours(&self, (backend, _, faulty): OurKind, address: IpAddr) -> Result<End> {
        let mut cmd = self.net.command(&self.options.peer);
        match backend {
            Backend::L2 | Backend::Interface | Backend::Pnet => {
                let name = if backend == Backend::Pnet { BY_PNET } else { ENDPOINT };
                cmd.args(["--device", name]).env("XDG_RUNTIME_DIR", self.runtime.path());
            }
            _ => {
                cmd.args(["--device", LINK, "--backend", backend.name()]);
            }
        }
        cmd.args(["--address", &address.to_string()]);
        if faulty {
            cmd.args(["--fault", "drop 2%; reorder 2% by 3", "--seed", "1"]);
        }
        End::open(Peer::on_host(cmd)?.join(&self.group), "ours")
    }
}

/// The names of our endpoints of layer 2. Only one of them is open at a time.
const ENDPOINT: &str = "rxe_l2";
const BY_PNET: &str = "rxe_pnet";

/// The addresses of the endpoint next to the host's network stack.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 47, 91, 2);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd47, 0x91, 0, 0, 0, 0, 0, 2);

/// Configures our endpoints in a runtime directory of its own: at the other end of a VM's socket,
/// with the host's usual addresses, or on the link in addition to the host.
fn add_endpoints(net: &Net, options: &Options) -> Result<TempDir> {
    let runtime = tempfile::Builder::new().prefix("rxe-run-").tempdir();
    let runtime = runtime.map_err(|e| failed(format!("a runtime directory: {e}")))?;
    let (links, v4, v6) = match net.socket_path() {
        Some(socket) => (vec![(ENDPOINT, format!("qemu:{}", socket.display()))], HOST_V4, HOST_V6),
        None => {
            let links = vec![(ENDPOINT, format!("if:{LINK}")), (BY_PNET, format!("pnet:{LINK}"))];
            (links, OWN_V4, OWN_V6)
        }
    };
    for (name, link) in links {
        let mut cmd = net.command(&options.rxe);
        cmd.args(["link", "add", name, "type", "rxe", "l2", &link]);
        cmd.args(["address", &format!("{v4}/24"), "address", &format!("{v6}/64")]);
        // No other host has these addresses.
        cmd.args(["mtu", &net.mtu().to_string(), "nodad"]).env("XDG_RUNTIME_DIR", runtime.path());
        let out = cmd.output().map_err(|e| failed(format!("{}: {e}", options.rxe.display())))?;
        if !out.status.success() {
            return Err(failed(String::from_utf8_lossy(&out.stderr).trim()));
        }
    }
    Ok(runtime)
}

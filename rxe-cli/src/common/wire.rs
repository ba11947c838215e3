//! Opens the device of a command that connects.

use std::net::IpAddr;
use std::path::PathBuf;

use rxe_core::types::{AckTimeout, Gid, Mtu};
use rxe_net::{BackendKind, NetError};
use rxe_verbs::device::{DeviceError, DeviceInfo, PortAttr};
use rxe_verbs::{Device, OpenOptions, SourcePortPolicy, VerbsFault};

use super::faults::{FaultArgs, FaultSummary};
use super::output::print_error;
use super::select::check_port;
use super::{DeviceArgs, Error, check_capture, units};

/// Options that ibv_rc_pingpong and perftest do not have.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WireArgs {
    /// Use this address of the device; on loopback any of 127.0.0.0/8
    #[arg(long, value_name = "IP", conflicts_with = "gid_idx", help_heading = OWN)]
    pub(crate) address: Option<IpAddr>,
    /// How packets are sent: udp needs nothing, packet CAP_NET_RAW, xdp (AF_XDP) also CAP_BPF and
    /// CAP_NET_ADMIN
    #[arg(long, value_name = "KIND", default_value_t, help_heading = OWN)]
    pub(crate) backend: BackendKind,
    /// Use the network also between processes on this host, instead of shared memory
    #[arg(long, help_heading = OWN)]
    pub(crate) no_shm: bool,
    /// Hand packets to the system one by one: captures of the interface then show each of them
    #[arg(long, help_heading = OWN)]
    pub(crate) no_gso: bool,
    /// Do not give the device's threads a real-time priority, where the process may have one
    #[arg(long, help_heading = OWN)]
    pub(crate) no_realtime: bool,
    /// Send all packets from this UDP port, for a firewall that wants one, or from one for each queue
    /// pair, so that receivers and networks spread them
    #[arg(long, value_name = "PORT|per-qp", default_value_t, hide_default_value = true, help_heading = OWN)]
    pub(crate) source_port: SourcePortPolicy,
    /// Ask the system for a receive buffer of so many bytes, as in 208K [default: 8 MiB]
    #[arg(long, value_parser = units::parse_size, value_name = "BYTES", help_heading = OWN)]
    pub(crate) recv_buffer: Option<u64>,
    /// Capture all packets to this file, which Wireshark opens
    #[arg(long, value_name = "FILE", help_heading = OWN, value_hint = clap::ValueHint::FilePath)]
    pub(crate) pcap: Option<PathBuf>,
    #[command(flatten, next_help_heading = OWN)]
    pub(crate) faults: FaultArgs,
    /// Print JSON
    #[arg(long, help_heading = OWN)]
    pub(crate) json: bool,
}

const OWN: &str = "Options of rxe's own";

/// The encoded Local ACK Timeout of the commands that connect: 0.54 s.
/// With 7 retries, a silent peer is given up after 4.3 s. With 14, which most programs choose, that
/// happens after 0.54 s. On a busy machine, a process may be without a processor for that long. A
/// hardware device would acknowledge meanwhile; this one does not run either.
pub(crate) const ACK_TIMEOUT: u8 = 17;

/// Returns [`ACK_TIMEOUT`] as its type.
pub(crate) fn ack_timeout() -> AckTimeout {
    AckTimeout::new(ACK_TIMEOUT).unwrap_or_default()
}

/// A device that is open on one of its addresses.
pub(crate) struct Opened {
    pub(crate) device: Device,
    pub(crate) gid: Gid,
    /// The index of `gid` in the GID table of `device`, which is open on this one address.
    pub(crate) gid_index: u16,
    /// The index of `gid` in the table that `rxe gids` shows.
    pub(crate) gid_number: u16,
    _summary: FaultSummary,
}

impl Opened {
    /// Checks that the open device carries the path MTU `asked` (bytes).
    pub(crate) fn check_mtu(&self, asked: usize) -> Result<Mtu, Error> {
        let mtu = check_mtu(self.device.info(), asked)?;
        let most = self.device.active_mtu();
        if mtu <= most {
            return Ok(mtu);
        }
        let (backend, name) = (self.device.backend_name(), self.device.info().name());
        let what =
            format!("path MTU {mtu} does not fit the frames of the {backend} backend on {name}");
        Err(Error::new(what, format!("use -m {most}, or another backend")))
    }

    /// Fails if there is a capture and it lacks packets.
    pub(crate) fn finish_capture(&self) -> Result<(), Error> {
        let Some(capture) = self.device.capture() else { return Ok(()) };
        if capture.finish().stopped.is_none() {
            return Ok(());
        }
        // The capture has already reported the reason.
        let what = format!("the capture {} lacks packets", capture.path().display());
        Err(Error::new(what, "name another file with --pcap"))
    }
}

/// Returns a warning if the interface is down or has no carrier.
fn without_link(info: &DeviceInfo) -> Option<Error> {
    let (interface, netdev) = (info.interface(), &info.interface().name);
    let (what, todo) = if !interface.up {
        ("is down", format!("`ip link set {netdev} up`"))
    } else if !interface.running {
        ("has no carrier", "connect it, or set the link up at its other end".into())
    } else {
        return None;
    };
    Some(Error::new(format!("interface {netdev} {what}, so only this host can be reached"), todo))
}

impl WireArgs {
    /// Fails if a fault would have no effect here, or if the capture has no file.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.pcap.as_deref().map_or(Ok(()), |file| check_capture(file, "--pcap"))?;
        let of_calls = |fault: &VerbsFault| matches!(fault, VerbsFault::Errno { .. });
        if self.faults.fault.as_ref().is_none_or(|plan| !plan.verbs().iter().any(of_calls)) {
            return Ok(());
        }
        let what = "errno= makes calls of libibverbs fail, of which this command makes none";
        Err(Error::new(what, "use it with `rxe run`, or leave it out"))
    }

    /// Opens the device that `device` chooses. `peer` is the address that the user named, if any.
    /// Without options, a device is chosen from which the peer can be reached. `mtu` is the path
    /// MTU in bytes that the user asked for.
    pub(crate) fn open(
        &self,
        device: &DeviceArgs,
        peer: Option<IpAddr>,
        mtu: Option<usize>,
    ) -> Result<Opened, Error> {
        let (info, ip) = match self.address {
            Some(ip) => (device_with(ip, device)?, ip),
            None => {
                let chosen = device.select(peer)?;
                let ip = chosen.gid.to_ip();
                (chosen.device, ip)
            }
        };
        self.open_at(&info, ip, mtu)
    }

    /// Opens `info` on the address `ip` only.
    fn open_at(&self, info: &DeviceInfo, ip: IpAddr, mtu: Option<usize>) -> Result<Opened, Error> {
        if let Some(asked) = mtu {
            check_mtu(info, asked)?;
        }
        let mut options = OpenOptions::new(info.name()).address(ip).backend(self.backend);
        options = options.shared_memory(!self.no_shm).segmentation(!self.no_gso);
        options = options.source_port(self.source_port).realtime(!self.no_realtime);
        if let Some(bytes) = self.recv_buffer {
            options = options.recv_buffer(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if let Some(path) = &self.pcap {
            options = options.pcap(path);
        }
        if let Some((seed, plan)) = self.faults.chosen()? {
            options = options.faults(seed, plan.clone());
        }
        let device = options.open().map_err(|e| match e {
            rxe_verbs::Error::Net(NetError::File { path, source }) => {
                let what = format!("cannot write the capture {path}: {source}");
                Error::new(what, "name another file with --pcap")
            }
            other => other.into(),
        })?;
        if let Some(why) = without_link(info) {
            print_error(&why);
        }
        let gid = Gid::from(ip);
        let at = device.gids().iter().position(|g| *g == gid);
        let gid_index = at.and_then(|i| u16::try_from(i).ok()).ok_or_else(|| no_such(info, ip))?;
        // The table does not have every address of 127.0.0.0/8.
        let at = info.gids().iter().position(|entry| entry.gid == gid);
        let gid_number = at.and_then(|i| u16::try_from(i).ok()).unwrap_or(gid_index);
        let summary = FaultSummary::of(&device);
        Ok(Opened { device, gid, gid_index, gid_number, _summary: summary })
    }

    /// Opens the device at the local address of a TCP connection, unless options name another.
    pub(crate) fn open_reached(
        &self,
        device: &DeviceArgs,
        local: IpAddr,
        peer: IpAddr,
        mtu: Option<usize>,
    ) -> Result<Opened, Error> {
        let named = device.ib_dev.is_some() || device.gid_idx.is_some() || self.address.is_some();
        match device_with(local, device) {
            Ok(info) if !named => {
                check_port(&info, device.ib_port)?;
                self.open_at(&info, local, mtu)
            }
            _ => self.open(device, Some(peer), mtu),
        }
    }
}

/// Checks that the device's link carries the path MTU `asked` (bytes).
pub(crate) fn check_mtu(info: &DeviceInfo, asked: usize) -> Result<Mtu, Error> {
    let Some(mtu) = Mtu::from_bytes(asked) else {
        let what = format!("{asked} is not a path MTU");
        return Err(Error::new(what, "choose 256, 512, 1024, 2048 or 4096"));
    };
    let most = PortAttr::of(info.interface()).active_mtu;
    if mtu <= most {
        return Ok(mtu);
    }
    let what = format!("path MTU {mtu} does not fit the link of {}", info.name());
    let netdev = &info.interface().name;
    let todo =
        format!("use -m {most}, or raise the MTU of {netdev} to {} or more", mtu.bytes() + 80);
    Err(Error::new(what, todo))
}

/// Returns the error for two ends with different address families.
fn other_family(own: IpAddr, peer: IpAddr) -> Error {
    let name = |ip: IpAddr| if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let what = format!("own address {own} is {}, the peer's {peer} is {}", name(own), name(peer));
    Error::new(what, "choose a GID of the same family on both ends (see `rxe gids`)")
}

/// Fails if the peer cannot be reached from `own`. `host` is the address of the peer's host.
pub(crate) fn check_peer(own: Gid, peer: Gid, host: IpAddr) -> Result<(), Error> {
    if peer.is_zero() {
        let todo = "start it with -g INDEX there (show_gids lists them): RoCE needs one";
        return Err(Error::new("the peer did not choose a GID", todo));
    }
    let (own, peer) = (own.to_ip(), peer.to_ip());
    if own.is_ipv4() != peer.is_ipv4() {
        return Err(other_family(own, peer));
    }
    check_loopback(own, peer, host)
}

/// Fails if exactly one address is loopback and the peer runs on another host.
/// `host` is the address of the peer's host.
pub(crate) fn check_loopback(own: IpAddr, peer: IpAddr, host: IpAddr) -> Result<(), Error> {
    if own.is_loopback() != peer.is_loopback() && !is_here(host) {
        let (whose, ip) = if own.is_loopback() { ("own", own) } else { ("the peer's", peer) };
        let what =
            format!("{whose} address {ip} is a loopback address, which leads to no other host");
        let todo = "choose a device on the network between the two, not -d lo";
        return Err(Error::new(what, todo));
    }
    Ok(())
}

/// Returns whether this host has this address.
fn is_here(ip: IpAddr) -> bool {
    let has = |d: &DeviceInfo| d.interface().addresses.iter().any(|a| a.ip == ip);
    ip.is_loopback() || DeviceInfo::list().is_ok_and(|all| all.iter().any(has))
}

/// Returns the device that has `ip`, or may use it (loopback). If `args` names a device, it must be
/// that one.
fn device_with(ip: IpAddr, args: &DeviceArgs) -> Result<DeviceInfo, Error> {
    let has = |d: &DeviceInfo| {
        let interface = d.interface();
        interface.addresses.iter().any(|a| a.ip == ip)
            || interface.loopback && ip.is_ipv4() && ip.is_loopback()
    };
    if let Some(name) = &args.ib_dev {
        let info = DeviceInfo::find(name)?;
        check_port(&info, args.ib_port)?;
        return if has(&info) { Ok(info) } else { Err(no_such(&info, ip)) };
    }
    let devices = DeviceInfo::list()?;
    if devices.is_empty() {
        return Err(DeviceError::None.into());
    }
    let info = devices.into_iter().find(has).ok_or_else(|| {
        Error::new(format!("no device has the address {ip}"), "choose one that `rxe gids` lists")
    })?;
    check_port(&info, args.ib_port)?;
    Ok(info)
}

fn no_such(info: &DeviceInfo, ip: IpAddr) -> Error {
    let what = format!("{} has no address {ip}", info.name());
    Error::new(what, format!("choose one that `rxe gids {}` lists", info.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_gid_or_of_another_family_is_refused() {
        let gid = |ip: &str| Gid::from(ip.parse::<IpAddr>().unwrap());
        let host = "192.0.2.7".parse().unwrap();
        assert!(check_peer(gid("10.0.0.1"), gid("10.0.0.2"), host).is_ok());
        let refusal = |peer| check_peer(gid("10.0.0.1"), peer, host).unwrap_err().to_string();
        let own = check_peer(gid("127.0.0.1"), gid("10.0.0.2"), host).unwrap_err().to_string();
        assert!(
            own.starts_with("own address 127.0.0.1 is a loopback address, which leads to no"),
            "{own}"
        );
        assert!(
            refusal(gid("127.0.0.2"))
                .starts_with("the peer's address 127.0.0.2 is a loopback address")
        );
        let here = "127.0.0.1".parse().unwrap();
        assert!(check_peer(gid("127.0.0.1"), gid("10.0.0.2"), here).is_ok(), "of this host");
        assert!(refusal(gid("fd00::1")).contains("10.0.0.1 is IPv4, the peer's fd00::1 is IPv6"));
        assert!(refusal(Gid::ZERO).contains("-g INDEX"));
    }
}

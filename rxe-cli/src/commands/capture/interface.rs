//! Captures the packets of an interface.

use std::time::Duration;

use rxe_lab::capture::{Direction, LinkType, Record};
use rxe_net::{LinkCapture, LinkFrame, NetError};
#[cfg(target_os = "linux")]
use rxe_verbs::device::DeviceInfo;
#[cfg(target_os = "linux")]
use rxe_verbs::observe::Subject;

use super::Until;
use super::sink::Sink;
use crate::common::Error;
#[cfg(target_os = "linux")]
use crate::common::running::Which;

/// The requested size in bytes of the kernel's buffer for packets.
const BUFFER: u32 = 64 << 20;
/// The longest wait, after which the deadline is checked.
const WAIT: Duration = Duration::from_millis(500);
/// The most receive calls before packets are shown.
const CALLS: usize = 64;

/// Captures until `until`, or until the sink is full.
pub(super) fn capture(netdev: &str, sink: &mut Sink, until: &Until) -> Result<(), Error> {
    let (netdev, capture) = open(netdev)?;
    let interface = sink.add_interface(&netdev, String::new())?;
    sink.notice(&format!("capturing on {netdev}"));
    let mut source = Source { capture, interface };
    let captured = source.take_until(sink, until);
    sink.dropped(interface, source.capture.dropped());
    if captured.is_ok() && sink.next() == 1 && is_in_use(&netdev) {
        let why = "what programs of this host say to each other goes through shared memory: \
                   `rxe capture --of all` captures that";
        sink.notice(&format!("no packet passed, but programs have {netdev} open, and {why}"));
    }
    captured
}

/// Returns whether programs have the device of this interface open.
#[cfg(target_os = "linux")]
fn is_in_use(netdev: &str) -> bool {
    let running = Which::default().look(Subject::Summary);
    running.is_ok_and(|(found, _)| found.iter().any(|device| device.netdev() == netdev))
}

/// No program has a device on this system.
#[cfg(not(target_os = "linux"))]
fn is_in_use(_: &str) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn open(name: &str) -> Result<(String, LinkCapture), Error> {
    Ok((name.to_owned(), LinkCapture::open(name, BUFFER)?))
}

/// Opens an interface by its own name or by its device's.
#[cfg(target_os = "linux")]
fn open(name: &str) -> Result<(String, LinkCapture), Error> {
    let of = |netdev: &str| LinkCapture::open(netdev, BUFFER).map(|it| (netdev.to_owned(), it));
    match (of(name), DeviceInfo::find(name)) {
        (Err(NetError::NoSuchDevice { .. }), Ok(device)) if device.endpoint().is_none() => {
            let netdev = &device.interface().name;
            of(netdev).map_err(|e| refused(netdev, e))
        }
        (opened, _) => opened.map_err(|e| refused(name, e)),
    }
}

struct Source {
    capture: LinkCapture,
    /// The number of the interface in the sink.
    interface: u32,
}

impl Source {
    fn take_until(&mut self, sink: &mut Sink, until: &Until) -> Result<(), Error> {
        while let Some(left) = until.left(WAIT).filter(|_| !sink.is_full()) {
            self.capture.wait(left);
            for _ in 0..CALLS {
                if !self.take(sink)? {
                    break;
                }
            }
            sink.flush()?;
        }
        self.capture.stop()?;
        while self.take(sink)? {}
        Ok(())
    }

    /// Passes received packets to the sink. Returns whether more may be available and are wanted.
    fn take(&mut self, sink: &mut Sink) -> Result<bool, Error> {
        let mut taken = Ok(());
        let got = self.capture.receive(&mut |frame| {
            if taken.is_ok() {
                taken = sink.packet(&record(frame, sink.next(), self.interface));
            }
        })?;
        taken.map(|()| got > 0 && !sink.is_full())
    }
}

fn record<'f>(frame: &LinkFrame<'f>, number: u64, interface: u32) -> Record<'f> {
    let direction = match frame.direction {
        rxe_net::Direction::Inbound => Direction::Inbound,
        rxe_net::Direction::Outbound => Direction::Outbound,
    };
    Record {
        number,
        at: Some(frame.at),
        interface,
        link: LinkType::ETHERNET,
        bytes: frame.bytes,
        original_len: frame.bytes.len(),
        direction: Some(direction),
        comments: Vec::new(),
    }
}

#[cfg(target_os = "linux")]
fn refused(netdev: &str, e: NetError) -> Error {
    match e {
        NetError::NoPrivilege { capability, .. } => Error::new(
            format_args!("capturing on {netdev} needs {capability}"),
            "run it as root, or `sudo setcap cap_net_raw+ep` the program; --of needs no privileges",
        ),
        e => e.into(),
    }
}

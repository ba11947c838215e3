//! Live capture of a device's packets in a running process: `rxe capture --of`.

use std::os::fd::{AsFd, BorrowedFd};

use rxe_net::report::ReportSocket;
use rxe_net::{CaptureMessage, CaptureSource};

use super::{DROPPED, Record, Silence, TAKEN};

/// A capture of a device in a running process. It ends when this is dropped; the process goes on.
#[derive(Debug)]
pub struct DeviceCapture {
    socket: ReportSocket,
    source: CaptureSource,
    /// The process's record about the device.
    device: Option<Record>,
}

/// A piece of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturePiece<'b> {
    /// The capture has begun; [`DeviceCapture::device`] describes the device.
    Begun,
    /// Blocks of a pcapng file, not checked ([`CaptureMessage::Blocks`]).
    Blocks(&'b [u8]),
    /// The capture has ended normally. It lacks this number of packets, which arrived faster than
    /// they were read.
    Ended(u64),
    /// There is no capture, because another process already captures the device's packets.
    Taken,
    /// The capture did not begin, or broke off.
    Broken(Silence),
}

impl DeviceCapture {
    /// Starts captures of the open devices of one process or, without a process ID, of all
    /// processes. Devices in `known` are left out.
    pub fn begin(of: Option<u32>, known: &[&Self]) -> Vec<Self> {
        let mut sockets = ReportSocket::all();
        sockets.retain(|socket| !known.iter().any(|known| known.socket == *socket));
        let ask = |socket: ReportSocket| {
            let wanted = |pid| of.is_none() || pid == of;
            let source = CaptureSource::ask(&socket, wanted).ok()??;
            Some(Self { socket, source, device: None })
        };
        sockets.into_iter().filter_map(ask).collect()
    }

    /// Returns the process ID, if the process is visible in this PID namespace.
    pub fn pid(&self) -> Option<u32> {
        self.source.pid()
    }

    /// Returns a field of the device: `name`, `netdev` or `backend`. `None` before the capture has
    /// begun.
    pub fn device(&self, key: &str) -> Option<&str> {
        self.device.as_ref()?.get(key)
    }

    /// Returns the next piece that has arrived, if any. After the end, no piece arrives.
    pub fn receive(&mut self) -> Option<CapturePiece<'_>> {
        let Self { source, device, .. } = self;
        let text = match source.receive()? {
            CaptureMessage::Blocks(bytes) if device.is_some() => {
                return Some(CapturePiece::Blocks(bytes));
            }
            CaptureMessage::Text(text) => text,
            CaptureMessage::End => return Some(CapturePiece::Broken(Silence::HungUp)),
            CaptureMessage::Blocks(_) => return Some(CapturePiece::Broken(Silence::Nonsense)),
        };
        let record = Record::parse_all(text).and_then(|all| all.into_iter().next());
        Some(match record {
            Some(record) if record.kind() == "device" && device.is_none() => {
                *device = Some(record);
                CapturePiece::Begun
            }
            Some(record) if record.kind() == TAKEN => CapturePiece::Taken,
            Some(record) if record.kind() == DROPPED => {
                CapturePiece::Ended(record.number("packets").unwrap_or(0))
            }
            // The socket has no device, or the device is being opened.
            None if text.is_empty() => CapturePiece::Broken(Silence::HungUp),
            _ => CapturePiece::Broken(Silence::Nonsense),
        })
    }

    /// Ends the capture. Packets captured so far still arrive.
    pub fn end(&self) {
        self.source.end();
    }
}

impl AsFd for DeviceCapture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

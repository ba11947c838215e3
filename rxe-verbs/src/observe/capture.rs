//! The packets of a device of a running process, while it runs: `rxe capture --of`.

use std::os::fd::{AsFd, BorrowedFd};

use rxe_net::report::ReportSocket;
use rxe_net::{CaptureMessage, CaptureSource};

use super::{DROPPED, Record, Silence, TAKEN};

/// A capture of a device of a running process. It ends when this is dropped; the process goes on.
#[derive(Debug)]
pub struct DeviceCapture {
    socket: ReportSocket,
    source: CaptureSource,
    /// What its process said of the device.
    device: Option<Record>,
}

/// What has come from a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturePiece<'b> {
    /// The capture has begun: [`DeviceCapture::device`] says of what.
    Begun,
    /// Blocks of a pcapng file, as [`CaptureMessage::Blocks`]; not checked.
    Blocks(&'b [u8]),
    /// The capture has ended as it should. It lacks so many packets, which came faster than they were
    /// taken.
    Ended(u64),
    /// There is no capture: another process captures the device's packets already.
    Taken,
    /// There is none, or it breaks off.
    Broken(Silence),
}

impl DeviceCapture {
    /// Asks the open devices of one process or, without a number, of all for their packets; without those
    /// of `known`.
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

    /// The process, if it has a number here.
    pub fn pid(&self) -> Option<u32> {
        self.source.pid()
    }

    /// What the process said of the device: `name`, `netdev`, `backend`. Nothing before the capture has
    /// begun.
    pub fn device(&self, key: &str) -> Option<&str> {
        self.device.as_ref()?.get(key)
    }

    /// The next that has come; `None` if there is nothing yet. After the end, nothing more comes.
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
            // It has no device, or is just being opened.
            None if text.is_empty() => CapturePiece::Broken(Silence::HungUp),
            _ => CapturePiece::Broken(Silence::Nonsense),
        })
    }

    /// Asks for no more. What was captured until now still comes.
    pub fn end(&self) {
        self.source.end();
    }
}

impl AsFd for DeviceCapture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

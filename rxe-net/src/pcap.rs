//! Captures: a wrapper that writes the packets of any backend to a pcapng file. `rxe-lab` reads such
//! files.
//!
//! Frames are complete. Headers that a backend does not see are reconstructed, so that the ICRC of
//! each packet is right for the headers in the file; a hidden IPv4 ID is recovered from the ICRC.
//! Bursts and merged frames are split into packets.
//!
//! Only its owner may read a new file (mode 0600), because it holds the contents of the traffic. If the
//! path is a symbolic link, it is refused: someone else may have put it there. An existing file is
//! overwritten with the first packet, not earlier: if a program fails before it sends anything, the
//! last capture remains.
//!
//! Invariants: an error of the file ends the capture, never the traffic. Packets go into memory, and a
//! thread writes them ([`output`]). Packets that come faster than it writes are missing from the file,
//! and the file says so.

mod output;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use rxe_core::engine::Event;
use rxe_core::types::Psn;
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, Frame, IpId, Mac, NetHeader, Packet, TxBatch, UDP_PORT, icrc};

use self::output::Output;
pub use write::{Direction, PacketBlock, PcapWriter};

use crate::backend::{Backend, Capabilities, SendStatus};
use crate::blocking::may_block;
use crate::counters::Counters;
use crate::sys::checked_fd::CheckedFd;
use crate::{NetError, SharedFd, Sharing};

/// The file of a capture and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapOptions {
    /// The path of the file. An existing file is overwritten when the first packet is written. Only
    /// its owner may read a new one.
    pub path: PathBuf,
    /// The capture ends before the file grows beyond this. 4 GiB by default.
    pub max_bytes: u64,
}

impl PcapOptions {
    /// A capture to this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: 4 << 30 }
    }
}

/// A backend whose frames are captured.
pub struct Pcap<B> {
    inner: B,
    handle: PcapHandle,
}

/// A handle of a capture. It adds comments to packets, and flushes the file.
#[derive(Clone)]
pub struct PcapHandle(Arc<Mutex<Capture>>);

/// The state of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcapStatus {
    /// Packets written.
    pub packets: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Packets that are missing because they came faster than the file was written.
    pub dropped: u64,
    /// Why the capture has ended, if it has.
    pub stopped: Option<String>,
}

/// Opens the file, or creates it, readable by this user only: a capture holds memory of other users. It
/// does not follow a symbolic link and does not write into another user's file: somebody may have put
/// either there.
fn create(path: &Path) -> io::Result<Overwrite> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| match e.raw_os_error() {
            Some(libc::ELOOP) => io::Error::other("is a symbolic link: name the file itself"),
            _ => e,
        })?;
    let found = file.metadata()?;
    if found.is_file() && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("belongs to another user: name another file"));
    }
    let has_content = found.is_file() && found.len() > 0;
    Ok(Overwrite { file: CheckedFd::internal(file.into()), has_content })
}

/// A file whose content stays until something is written.
struct Overwrite {
    file: CheckedFd,
    has_content: bool,
}

impl Write for Overwrite {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.file.is_intact() {
            return Err(io::Error::other(NetError::DescriptorsClosed));
        }
        if self.has_content {
            rustix::fs::ftruncate(&self.file, 0)?;
            self.has_content = false;
        }
        Ok(rustix::io::write(&self.file, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<B: Backend> Pcap<B> {
    /// Starts a capture of the packets of `inner`.
    pub fn new(inner: B, options: &PcapOptions) -> Result<Self, NetError> {
        may_block("making a capture file");
        let path = &options.path;
        let error = |source| NetError::File { path: path.display().to_string(), source };
        let file = create(path).map_err(error)?;
        let patient = file.has_content;
        Self::to_writer(inner, Box::new(file), options, output::CAPACITY, patient).map_err(error)
    }

    /// `patient`: nothing is written before there is a packet.
    fn to_writer(
        inner: B,
        out: Box<dyn Write + Send>,
        options: &PcapOptions,
        capacity: usize,
        patient: bool,
    ) -> io::Result<Self> {
        let output = Output::start(out, options.path.display().to_string(), capacity)?;
        let writer = PcapWriter::new(Vec::new(), inner.capabilities().name)?;
        let mut capture = Capture {
            writer: Some(writer),
            output: Arc::new(output),
            path: options.path.clone(),
            max_bytes: options.max_bytes,
            held: Vec::new(),
            bytes: Vec::new(),
            announced: VecDeque::new(),
            dropped: 0,
            patient,
            status: PcapStatus::default(),
        };
        capture.submit();
        Ok(Self { inner, handle: PcapHandle(Arc::new(Mutex::new(capture))) })
    }

    /// A handle, for comments on packets.
    pub fn handle(&self) -> PcapHandle {
        self.handle.clone()
    }
}

impl PcapHandle {
    /// Adds a comment to a packet that has arrived since the last call of `send` or `receive`: the last
    /// one with this PSN or, without a PSN, the first packet of the last frame.
    ///
    /// Call it from the sink of `receive`, or after `receive` and before anything is sent.
    pub fn comment_received(&self, psn: Option<Psn>, text: impl Into<String>) {
        self.lock().comment_received(psn, text.into());
    }

    /// Adds a comment to the next packet with this PSN that is sent.
    pub fn comment_sending(&self, psn: Psn, text: impl Into<String>) {
        let mut capture = self.lock();
        if capture.announced.len() == MAX_ANNOUNCED {
            capture.announced.pop_front();
        }
        capture.announced.push_back((psn, text.into()));
    }

    /// Adds a comment to the packet of an engine's event: why it was dropped, why a NAK was sent, why it
    /// is sent again. Call it when [`PcapHandle::comment_received`] may be called.
    pub fn event(&self, event: &Event) {
        let text = event.to_string();
        match *event {
            Event::Dropped { psn, .. } => self.comment_received(psn, text),
            Event::NakReceived { psn, .. } | Event::RnrNakReceived { psn, .. } => {
                self.comment_received(Some(psn), text);
            }
            Event::NakSent { psn, .. } | Event::Retry { psn, .. } => {
                self.comment_sending(psn, text)
            }
            Event::CommunicationEstablished { .. } | Event::ResponderFailed { .. } => {
                self.comment_received(None, text);
            }
            // Other events are not about one packet.
            _ => {}
        }
    }

    /// Waits until all packets so far are in the file.
    pub fn flush(&self) {
        let output = {
            let mut capture = self.lock();
            capture.write_held();
            capture.submit();
            Arc::clone(&capture.output)
        };
        // The lock is released first: traffic needs it.
        output.flush();
        self.lock().look_at_output();
    }

    /// The present state.
    pub fn status(&self) -> PcapStatus {
        self.lock().status.clone()
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.lock().path.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Capture> {
        self.0.lock()
    }
}

impl<B: Backend> Backend for Pcap<B> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let handle = &self.handle;
        handle.lock().write_held();
        // What came through memory may change until it is copied: what is captured is what is handed on.
        let mut whole = Vec::new();
        let got = self.inner.receive(budget, &mut |frame| {
            frame.for_each_whole(&mut whole, &mut |frame| {
                handle.lock().hold(Direction::Inbound, 0, frame);
                // The lock is released first: the sink may comment on the frame.
                sink(frame);
            });
        })?;
        if got == 0 {
            let mut capture = handle.lock();
            capture.write_held();
            capture.submit();
        }
        Ok(got)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let before = batch.pending().len();
        {
            let mut capture = self.handle.lock();
            capture.write_held();
            for (burst, frame) in batch.frames().enumerate() {
                capture.hold(Direction::Outbound, burst, &frame);
            }
        }
        let result = self.inner.send(batch);
        let mut capture = self.handle.lock();
        // Bursts that were not sent will be passed to `send` again.
        capture.keep_bursts(before - batch.pending().len());
        capture.write_held();
        result
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.inner.for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn watch(&mut self, on: bool) {
        self.inner.watch(on);
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        self.inner.sharing()
    }
}

impl<B> Drop for Pcap<B> {
    fn drop(&mut self) {
        self.handle.lock().finish();
        self.handle.flush();
    }
}

/// The most comments kept for packets that are not sent yet. Some may never be sent.
const MAX_ANNOUNCED: usize = 256;

/// Bytes that are gathered before they go to the thread, unless traffic pauses earlier.
const GATHERED: usize = 64 << 10;

struct Capture {
    /// Writes blocks into memory; `None` when the capture has ended.
    writer: Option<PcapWriter<Vec<u8>>>,
    output: Arc<Output>,
    path: PathBuf,
    max_bytes: u64,
    /// Packets that are not written yet, because comments may be added. Their bytes are in `bytes`.
    held: Vec<HeldFrame>,
    bytes: Vec<u8>,
    /// Comments on packets to be sent.
    announced: VecDeque<(Psn, String)>,
    /// Packets dropped since the last one that was written.
    dropped: u64,
    /// The file has content of before, which stays until there is a packet.
    patient: bool,
    status: PcapStatus,
}

struct HeldFrame {
    at: Duration,
    direction: Direction,
    /// The frame's range in `Capture::bytes`.
    from: usize,
    to: usize,
    /// The index of its burst in the batch.
    burst: usize,
    /// It is the first of its frame.
    first: bool,
    psn: Option<Psn>,
    comments: Vec<String>,
}

impl Capture {
    fn hold(&mut self, direction: Direction, burst: usize, frame: &Frame<'_>) {
        if self.writer.is_none() {
            return;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for (index, (net, packet)) in frame.packets().enumerate() {
            let net = with_id(net, packet);
            let from = self.bytes.len();
            let ethernet = Ethernet { src: mac(net.src), dst: mac(net.dst), ..Ethernet::default() };
            // As on the wire, there is a checksum over IPv6 only.
            let checksum = if net.dst.is_ipv4() { UdpChecksum::None } else { UdpChecksum::Compute };
            emit_ethernet(&ethernet, &net, UDP_PORT, checksum, packet, &mut self.bytes);
            let psn = Packet::parse(packet).ok().map(|p| p.psn());
            self.held.push(HeldFrame {
                at,
                direction,
                from,
                to: self.bytes.len(),
                burst,
                first: index == 0,
                psn,
                comments: Vec::new(),
            });
        }
    }

    fn comment_received(&mut self, psn: Option<Psn>, text: String) {
        let mut inbound =
            self.held.iter_mut().rev().filter(|held| held.direction == Direction::Inbound);
        let found = match psn {
            Some(_) => inbound.find(|held| held.psn == psn),
            None => inbound.find(|held| held.first),
        };
        if let Some(held) = found {
            held.comments.push(text);
        }
    }

    /// Removes held packets of burst `bursts` and later ones: they are not sent yet.
    fn keep_bursts(&mut self, bursts: usize) {
        self.held.retain(|held| held.direction == Direction::Inbound || held.burst < bursts);
    }

    fn write_held(&mut self) {
        for mut held in std::mem::take(&mut self.held) {
            if held.direction == Direction::Outbound
                && let Some(psn) = held.psn
            {
                while let Some(at) = self.announced.iter().position(|(of, _)| *of == psn) {
                    held.comments.extend(self.announced.remove(at).map(|(_, text)| text));
                }
            }
            self.write(held);
        }
        self.bytes.clear();
    }

    fn write(&mut self, mut held: HeldFrame) {
        let Some(writer) = &mut self.writer else { return };
        if self.dropped > 0 {
            held.comments.push(format!(
                "{} packets before this one are missing: the capture was written more slowly than \
                 they came",
                self.dropped
            ));
        }
        let frame = &self.bytes[held.from..held.to];
        let comments: usize = held.comments.iter().map(|c| c.len() + 8).sum();
        // The fixed parts of a block have at most 64 bytes.
        let bytes = frame.len() + comments + 64;
        if writer.written() + bytes as u64 > self.max_bytes {
            let max = self.max_bytes;
            return self.stop(format!("it has reached its limit of {max} bytes"));
        }
        if !self.output.has_room(writer.get_ref().len() + bytes) {
            self.dropped += 1;
            self.status.dropped += 1;
            return;
        }
        let block =
            PacketBlock { at: held.at, direction: held.direction, frame, comments: &held.comments };
        match writer.write(&block) {
            Ok(()) => {
                self.dropped = 0;
                self.status.packets += 1;
                self.status.bytes = writer.written();
            }
            Err(e) => self.stop(e.to_string()),
        }
        if self.writer.as_ref().is_some_and(|writer| writer.get_ref().len() >= GATHERED) {
            self.submit();
        }
    }

    /// Hands the gathered bytes to the thread.
    fn submit(&mut self) {
        if self.patient && self.status.packets == 0 {
            return;
        }
        if let Some(writer) = &mut self.writer {
            let bytes = std::mem::take(writer.get_mut());
            self.status.bytes = writer.written();
            if !bytes.is_empty() {
                self.output.push(bytes);
                self.look_at_output();
            }
        }
    }

    /// Ends the capture if the file could not be written.
    fn look_at_output(&mut self) {
        if self.writer.is_some()
            && let Some(why) = self.output.failed()
        {
            self.writer = None;
            self.status.stopped = Some(why);
        }
    }

    /// Ends the capture when its backend is dropped.
    fn finish(&mut self) {
        self.write_held();
        if let Some(writer) = &mut self.writer
            && self.status.dropped > 0
        {
            // Writing into memory does not fail.
            let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let _ = writer.write_statistics(at, self.status.dropped);
        }
        self.submit();
        self.writer = None;
        self.output.close();
    }

    /// Ends the capture with an error, and reports it once.
    fn stop(&mut self, why: String) {
        self.submit();
        if self.writer.take().is_some() {
            self.output.say(format!("rxe: the capture {} ends: {why}\n", self.path.display()));
            self.status.stopped = Some(why);
        }
    }
}

/// The headers, with the ID that the ICRC was made for if it can be recovered.
fn with_id(net: NetHeader, packet: &[u8]) -> NetHeader {
    match net.id {
        IpId::Hidden => match icrc::recover_id(&net, packet) {
            Some((id, flags)) => NetHeader { id: IpId::Known { id, flags }, ..net },
            None => net,
        },
        _ => net,
    }
}

/// A locally administered Ethernet address made from an IP address, different for different
/// addresses.
fn mac(ip: IpAddr) -> Mac {
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    Mac([0x02, 0x00, a, b, c, d])
}

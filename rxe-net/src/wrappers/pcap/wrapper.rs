//! The capture wrapper, and how it opens its file.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::wire::{Frame, TxBatch};

use super::capture::Capture;
use super::handle::PcapHandle;
use super::output::{self, Output};
use super::tap::Tap;
use super::write::PcapWriter;
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::sharing::Sharing;
use rxe_sys::CheckedFd;
use rxe_sys::SharedFd;
use rxe_sys::may_block;

/// The file of a capture and its size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapOptions {
    /// The path of the file. An existing file is overwritten when the first packet is written. Only
    /// its owner may read a new one.
    pub path: PathBuf,
    /// The size in bytes that the file never exceeds: the capture ends before. 4 GiB by default.
    pub max_bytes: u64,
}

impl PcapOptions {
    /// Returns the options for a capture to this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: 4 << 30 }
    }
}

/// A backend whose packets are captured.
pub struct Pcap<B> {
    inner: B,
    tap: Tap,
}

/// Opens the file, or creates it readable by this user only. A capture holds memory contents of
/// other users. Refuses a symbolic link and another user's file, because another user may have put
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
    // Terminals and other character devices are exempt, because root usually owns them.
    let kind = found.file_type();
    if !kind.is_char_device() && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("belongs to another user: name another file"));
    }
    let has_content = found.is_file() && found.len() > 0;
    Ok(Overwrite { file: CheckedFd::internal(file.into()), has_content })
}

/// A file whose old content is kept until something is written.
struct Overwrite {
    file: CheckedFd,
    has_content: bool,
}

impl Write for Overwrite {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.file.is_intact() {
            return Err(io::Error::other(rxe_sys::Error::DescriptorsClosed));
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

    /// Starts a capture to `out`. If `patient`, nothing is written before the first packet.
    pub(super) fn to_writer(
        inner: B,
        out: Box<dyn Write + Send>,
        options: &PcapOptions,
        capacity: usize,
        patient: bool,
    ) -> io::Result<Self> {
        let output = Output::new(capacity);
        output.start(out, Some(options.path.display().to_string()))?;
        let writer = PcapWriter::new(Vec::new(), inner.capabilities().name)?;
        let (path, max_bytes) = (options.path.clone(), options.max_bytes);
        let mut capture = Capture::of_file(writer, Arc::new(output), path, max_bytes, patient);
        capture.submit();
        Ok(Self { inner, tap: Tap::new(PcapHandle(Arc::new(Mutex::new(capture)))) })
    }

    /// Returns a handle for comments on packets.
    pub fn handle(&self) -> PcapHandle {
        self.tap.handle()
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
        self.tap.receive(&mut self.inner, budget, sink)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        self.tap.send(&mut self.inner, batch)
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
        let handle = self.tap.handle();
        handle.lock().finish();
        handle.flush();
    }
}

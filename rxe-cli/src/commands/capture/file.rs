//! The file of a capture, or its ring of files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rxe_net::{PacketBlock, PcapWriter};

use crate::common::Error;
use crate::common::units::parse_size;

/// The size of each file in bytes, and the number of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    size: u64,
    files: u32,
}

impl FromStr for Ring {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, files) =
            text.split_once(['x', '×']).ok_or("a size and a number are expected, as in 100Mx5")?;
        let size = parse_size(size)?;
        let files = files
            .parse()
            .map_err(|_| "behind the x a number of files is expected, as in 100Mx5")?;
        if size < MIN_SIZE || files < 2 {
            return Err("at least 64K are needed, and at least 2 files".into());
        }
        Ok(Self { size, files })
    }
}

/// The least size of a file in bytes, so that some packets fit.
const MIN_SIZE: u64 = 64 << 10;

/// An interface of the capture: its name and description.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) description: String,
    /// The number of packets that the capture lacks.
    pub(super) dropped: u64,
}

/// Writes packets to the file or the ring of files.
pub(super) struct Writer {
    path: PathBuf,
    ring: Option<Ring>,
    /// The number of the current file of a ring, from 0.
    number: u32,
    out: Output,
    /// The file behind `out`, to poll.
    file: File,
}

type Output = PcapWriter<BufWriter<File>>;

impl Writer {
    pub(super) fn open(path: &Path, ring: Option<Ring>) -> Result<Self, Error> {
        if ring.is_some() && path.as_os_str() == "-" {
            return Err(Error::new("standard output is no ring of files", "name a file with -w"));
        }
        let path = path.to_owned();
        let first = if ring.is_some() { numbered(&path, 0) } else { path.clone() };
        let (out, file) = start(&first).map_err(|e| cannot_write(&first, &e))?;
        Ok(Self { path, ring, number: 0, out, file })
    }

    /// Returns the current file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn add_interface(&mut self, interface: &Interface) -> io::Result<()> {
        self.out.add_interface(&interface.name, &interface.description)
    }

    /// Writes a packet, in the next file if the current one is full.
    pub(super) fn write(
        &mut self,
        packet: &PacketBlock<'_>,
        interfaces: &[Interface],
    ) -> io::Result<()> {
        if let Some(ring) = self.ring
            && self.out.written() + packet.frame.len() as u64 > ring.size
        {
            self.out.flush()?;
            self.number = (self.number + 1) % ring.files;
            (self.out, self.file) = start(&numbered(&self.path, self.number))?;
            for interface in interfaces {
                self.out.add_interface(&interface.name, &interface.description)?;
            }
        }
        self.out.write(packet)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes the statistics and flushes. `at` is the time since 1970.
    pub(super) fn finish(mut self, at: Duration, interfaces: &[Interface]) -> io::Result<()> {
        for (number, interface) in (0..).zip(interfaces) {
            self.out.write_statistics(number, at, interface.dropped)?;
        }
        self.out.flush()
    }

    /// Returns the error for a failed write.
    pub(super) fn failed(&self, e: &io::Error) -> Error {
        cannot_write(&self.path, e)
    }
}

/// Opens a file for a capture. Only its owner may read a new file. A symbolic link is refused,
/// because it may be another user's.
fn start(path: &Path) -> io::Result<(Output, File)> {
    let file = match path.as_os_str() == "-" {
        true => standard_output()?,
        false => create(path)?,
    };
    let out = BufWriter::with_capacity(256 << 10, file.try_clone()?);
    Ok((PcapWriter::without_interfaces(out)?, file))
}

#[cfg(unix)]
fn standard_output() -> io::Result<File> {
    Ok(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?.into())
}

#[cfg(windows)]
fn standard_output() -> io::Result<File> {
    Ok(std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned()?.into())
}

#[cfg(not(unix))]
fn create(path: &Path) -> io::Result<File> {
    if path.is_symlink() {
        return Err(io::Error::other("it is a symbolic link, which is not followed"));
    }
    OpenOptions::new().write(true).create(true).truncate(true).open(path)
}

#[cfg(unix)]
fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags);
    options.open(path).map_err(|e| match e.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
            io::Error::other("it is a symbolic link, which is not followed")
        }
        _ => e,
    })
}

/// Returns the name of a file of a ring. Names count from 1: `a.pcapng.1`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", number + 1));
    name.into()
}

fn cannot_write(path: &Path, e: &io::Error) -> Error {
    Error::new(format_args!("cannot write {}: {e}", path.display()), "name another file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_size_and_a_number() {
        for text in ["1Mx5", "1MiB×5", "1048576x5"] {
            assert_eq!(text.parse(), Ok(Ring { size: 1 << 20, files: 5 }), "{text}");
        }
        for bad in ["", "1M", "x5", "1Mx", "1Mx1", "1Kx5", "ax5", "1Mx-1"] {
            assert!(bad.parse::<Ring>().is_err(), "{bad}");
        }
    }
}

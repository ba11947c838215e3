//! `rxe ladder`: the conversations of a capture as sequence diagrams.

use std::path::{Path, PathBuf};

use rxe_lab::capture::Record;
use rxe_lab::ladder::{self, Ladder, Ladders};
use rxe_lab::packets::{Summary, number};

use super::decode::{failed, named, read_all};
use crate::common::{Error, characters, check_apart, print, terminal_width, write_file};

/// Draw the conversations of a capture as sequence diagrams
///
/// Each pair of hosts, or of connected queue pairs of one address, has one: requests, acknowledgements,
/// what is missing, refused and sent again, in the order captured, and what the capture says of packets:
/// captures of rxe have comments on those that were dropped or sent again, and on requests that failed.
/// Runs of packets, and messages that repeat themselves, are one row with a count.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The capture, as in `rxe decode`; - reads standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Only packets to these queue pairs: name those of both ends, as in --qp 0x11,0x1a
    #[arg(long, value_name = "QPN", value_parser = number, value_delimiter = ',')]
    qp: Vec<u32>,
    /// Write a picture to this file instead; - writes to standard output
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    svg: Option<PathBuf>,
    /// Write a page to this file instead, which a browser shows: with search and zoom; - writes to
    /// standard output
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.svg.is_some() && self.svg == self.html {
            let what = "--svg and --html name the same file";
            return Err(Error::wrong_usage(what, "give each a name of its own"));
        }
        let standard_output = PathBuf::from("-");
        for path in [&self.svg, &self.html].into_iter().flatten().chain([&standard_output]) {
            check_apart(&self.file, path)?;
        }
        let mut ladders = Ladders::default();
        let mut summary = Summary::default();
        let read = self.read(&mut ladders, &mut summary);
        let left_out = ladders.left_out;
        let ladders = ladders.finish();
        for (path, picture) in [
            (&self.svg, ladder::svg as fn(&[_]) -> String),
            (&self.html, ladder::html as fn(&[_]) -> String),
        ] {
            // An existing picture is not replaced by an empty one.
            let Some(path) = path.as_ref().filter(|_| !ladders.is_empty()) else { continue };
            if path.as_os_str() == "-" {
                print(&picture(&ladders))?;
            } else {
                write_file(path, &picture(&ladders))?;
            }
        }
        if self.svg.is_none() && self.html.is_none() {
            print_texts(&ladders)?;
        }
        read?;
        if left_out > 0 {
            let what = format!("{left_out} packets are not drawn: there are too many rows");
            return Err(Error::new(what, "choose queue pairs with --qp"));
        }
        if ladders.is_empty() {
            return Err(nothing_to_draw(&self.file, &summary));
        }
        Ok(())
    }

    fn read(&self, ladders: &mut Ladders, summary: &mut Summary) -> Result<(), Error> {
        let failed = |e| failed(&self.file, &e, "the frames before it are drawn");
        read_all(&self.file, |record, frame, since| {
            summary.count(frame, since);
            let Record { number, interface, .. } = *record;
            ladders.add(number, interface, since, frame, &record.comments, &self.qp);
        })
        .map_err(failed)
    }
}

/// Prints diagrams as text, as wide as the terminal.
pub(super) fn print_texts(ladders: &[Ladder]) -> Result<(), Error> {
    let (width, characters) = (terminal_width().unwrap_or(120).max(60), characters());
    let texts: Vec<_> = ladders.iter().map(|one| ladder::text(one, width, characters)).collect();
    print(&texts.join("\n"))
}

/// Returns the error for a capture that was read but has no diagram.
fn nothing_to_draw(file: &Path, summary: &Summary) -> Error {
    let name = named(file);
    match (summary.packets(), &summary.others()[..]) {
        (0, []) => Error::new(
            format_args!("{name} has no frame"),
            "capture while the programs run, for example with `rxe capture -w FILE`",
        ),
        (0, others) => {
            let todo = match summary.malformed() {
                0 => {
                    "capture on the interface of the RDMA device while programs use it, for example \
                     with `rxe capture -i NETDEV -w FILE`"
                }
                _ => "`rxe decode` says what is wrong with the malformed frames",
            };
            Error::new(format_args!("{name} has no RDMA packet, only {}", others.join(", ")), todo)
        }
        (packets, _) => Error::new(
            format_args!(
                "none of the {packets} RDMA packets of {name} goes to the queue pairs of --qp"
            ),
            "`rxe decode` shows where each goes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use rxe_lab::capture::LinkType;

    use super::*;

    #[test]
    fn why_nothing_is_drawn_is_what_the_capture_has() {
        let mut summary = Summary::default();
        let said =
            |file: &str, summary: &Summary| nothing_to_draw(file.as_ref(), summary).to_string();
        let todo = "capture while the programs run, for example with `rxe capture -w FILE`";
        assert_eq!(said("-", &summary), format!("standard input has no frame: {todo}"));
        let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
        for number in 1..=2 {
            let record = Record {
                number,
                at: None,
                interface: 0,
                link: LinkType::ETHERNET,
                bytes: &arp,
                original_len: arp.len(),
                direction: None,
                comments: Vec::new(),
            };
            summary.count(&rxe_lab::frame::decode(&record), std::time::Duration::ZERO);
        }
        let text = said("a.pcap", &summary);
        let what = "a.pcap has no RDMA packet, only 2 frames of ARP: capture on the ";
        assert!(text.starts_with(what), "{text}");
        assert!(text.ends_with("`rxe capture -i NETDEV -w FILE`"), "{text}");
    }
}

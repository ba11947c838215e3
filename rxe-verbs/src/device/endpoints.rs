//! The endpoints of layer 2 that a user has added: each is a line of the file of links.

use std::fmt;
use std::path::Path;

use rxe_net::L2Config;

/// An endpoint by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointLink {
    pub(super) name: String,
    /// Tells it from the interfaces of the host, as their numbers do.
    pub(super) index: u32,
    pub(super) config: L2Config,
}

impl EndpointLink {
    /// No interface of a host has so high a number.
    const FIRST_INDEX: u32 = 1 << 30;

    /// An index that none of these has.
    pub(super) fn free_index(all: &[Self]) -> u32 {
        let is_free = |index: &u32| all.iter().all(|e| e.index != *index);
        (Self::FIRST_INDEX..).find(is_free).unwrap_or(Self::FIRST_INDEX)
    }

    /// The endpoint of a line that `Display` has written.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, index, name) = (words.next()?, words.next()?, words.next()?);
        let index = index.parse().ok().filter(|index| *index >= Self::FIRST_INDEX)?;
        let config = L2Config::from_words(words).ok()?;
        (kind == "l2").then(|| Self { name: name.into(), index, config })
    }

    /// Has one process at a time use it: by a lock beside the file that it is in.
    pub(super) fn lock_beside(&mut self, file: &Path) {
        let mut path = file.as_os_str().to_owned();
        path.push(format!("-{}.lock", self.name));
        self.config.lock = Some(path.into());
    }
}

impl fmt::Display for EndpointLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l2 {} {} {}", self.index, self.name, self.config)
    }
}

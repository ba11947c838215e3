//! The endpoints of layer 2 that a user has added. Each is a line in the file of links.

use std::fmt;
use std::path::Path;

use rxe_net::L2Config;

/// A named endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointLink {
    pub(super) name: String,
    /// The interface index of the endpoint, which no interface of the host has.
    pub(super) index: u32,
    pub(super) config: L2Config,
}

impl EndpointLink {
    /// The first index of endpoints, higher than that of any interface of a host.
    const FIRST_INDEX: u32 = 1 << 30;

    /// Returns an index that none of these endpoints has.
    pub(super) fn free_index(all: &[Self]) -> u32 {
        let is_free = |index: &u32| all.iter().all(|e| e.index != *index);
        (Self::FIRST_INDEX..).find(is_free).unwrap_or(Self::FIRST_INDEX)
    }

    /// Parses a line that `Display` has written.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, index, name) = (words.next()?, words.next()?, words.next()?);
        let index = index.parse().ok().filter(|index| *index >= Self::FIRST_INDEX)?;
        let config = L2Config::from_words(words).ok()?;
        (kind == "l2").then(|| Self { name: name.into(), index, config })
    }

    /// Lets only one process at a time use the endpoint, by a lock file next to `file`.
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

//! The result of a case.

use crate::common::Error;
use crate::common::peer::PeerError;

pub(super) type Outcome<T = ()> = Result<T, Stop>;

/// The reason why a case ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer did what the rule does not allow.
    Deviates(String),
    /// The case cannot be played with this peer.
    NotTestable(String),
    /// The connection to the peer failed, so no further case can be played.
    Gone(Error),
    /// The local endpoint failed, so no further case can be played.
    Broken(Error),
}

impl From<PeerError> for Stop {
    fn from(e: PeerError) -> Self {
        match e {
            PeerError::Refused(why) => Self::NotTestable(why),
            PeerError::Gone(e) => Self::Gone(e),
        }
    }
}

/// The verdict of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Conforms,
    Deviates(String),
    NotTestable(String),
}

impl Verdict {
    /// Returns the verdict in words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Conforms => "conforms",
            Self::Deviates(_) => "deviates",
            Self::NotTestable(_) => "not testable",
        }
    }

    /// Returns the reason of the verdict, if it has one.
    pub(super) fn why(&self) -> Option<&str> {
        match self {
            Self::Conforms => None,
            Self::Deviates(why) | Self::NotTestable(why) => Some(why),
        }
    }
}

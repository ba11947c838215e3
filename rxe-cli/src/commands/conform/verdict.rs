//! What is found of a case.

use crate::common::Error;
use crate::common::peer::PeerError;

pub(super) type Outcome<T = ()> = Result<T, Stop>;

/// Why a case ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer does what the rule does not allow.
    Deviates(String),
    /// The case cannot be played with this peer.
    NotTestable(String),
    /// The peer has gone during the case: no further one can be played.
    Gone(Error),
    /// The own endpoint does not work: no further case can be played.
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

/// What is found of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Conforms,
    Deviates(String),
    NotTestable(String),
}

impl Verdict {
    /// In words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Conforms => "conforms",
            Self::Deviates(_) => "deviates",
            Self::NotTestable(_) => "not testable",
        }
    }

    /// What is to be said of it.
    pub(super) fn why(&self) -> Option<&str> {
        match self {
            Self::Conforms => None,
            Self::Deviates(why) | Self::NotTestable(why) => Some(why),
        }
    }
}

//! Where a device's time and randomness come from: the system, or a simulation in virtual time.

use std::sync::Arc;

use rxe_core::types::Time;

use super::{clock, random};
use crate::error::Result;

/// A simulated host, as a device on it sees it. It does what the system's clock, randomness and timers do
/// for other devices.
pub(crate) trait Simulation: Send + Sync {
    /// The virtual time.
    fn now(&self) -> Time;

    /// The next number of the host's random sequence, which follows from the seed.
    fn random(&self) -> u64;

    /// The device is to be turned at this time, or at once if that is past. [`Time::MAX`] is never. It may be
    /// turned earlier too.
    fn wake_at(&self, at: Time);

    /// Lets the next event happen, if there is one until `until`. If not, returns `false`, and the time is
    /// `until` (unless that is [`Time::MAX`]).
    fn advance(&self, until: Time) -> bool;

    /// Tells the host from all others of this process. Never 0.
    fn id(&self) -> u64;

    /// Whether each call of the program is over before anything else happens on the host. Then nothing waits for
    /// company, and nobody sleeps on sockets.
    fn is_turn_based(&self) -> bool {
        true
    }
}

/// Where a device's time and randomness come from.
#[derive(Clone)]
pub(crate) enum Environment {
    /// The system: CLOCK_MONOTONIC and getrandom(2).
    System,
    /// A simulated host.
    Simulated(Arc<dyn Simulation>),
}

impl Environment {
    /// Now.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::System => clock::now(),
            Self::Simulated(host) => host.now(),
        }
    }

    /// Whether this moment is so far ahead that no exact look at the clock is needed.
    #[inline]
    pub(crate) fn is_far(&self, moment: Time) -> bool {
        match self {
            Self::System => clock::is_far(moment),
            Self::Simulated(host) => moment > host.now(),
        }
    }

    /// Eight random bytes.
    ///
    /// # Errors
    /// The system has none.
    pub(crate) fn random_u64(&self) -> Result<u64> {
        match self {
            Self::System => random::random_u64(),
            Self::Simulated(host) => Ok(host.random()),
        }
    }

    /// Four of them.
    ///
    /// # Errors
    /// The system has none.
    pub(crate) fn random_u32(&self) -> Result<u32> {
        let [a, b, c, d, ..] = self.random_u64()?.to_ne_bytes();
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Tells a simulated host from others and from the system, which is 0.
    pub(crate) fn id(&self) -> u64 {
        self.simulation().map_or(0, |host| host.id())
    }

    /// The simulated host, if it is one.
    #[inline]
    pub(crate) fn simulation(&self) -> Option<&Arc<dyn Simulation>> {
        match self {
            Self::System => None,
            Self::Simulated(host) => Some(host),
        }
    }

    /// As [`Simulation::is_turn_based`].
    #[inline]
    pub(crate) fn is_turn_based(&self) -> bool {
        self.simulation().is_some_and(|host| host.is_turn_based())
    }

    /// Whether time is virtual.
    #[inline]
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulation().is_some()
    }
}

//! The source of a device's time and randomness: the kernel, or a simulation in virtual time.

use std::sync::Arc;

use rxe_core::types::Time;

use super::{clock, random};
use crate::error::Result;

/// A simulated host, as seen by a device on it. It replaces the kernel's clock, randomness and
/// timers.
pub(crate) trait Simulation: Send + Sync {
    /// Returns the virtual time.
    fn now(&self) -> Time;

    /// Returns the next number of the host's random sequence, which is determined by the seed.
    fn random(&self) -> u64;

    /// Requests a turn of the device at this time, or immediately if the time is past.
    /// [`Time::MAX`] requests none. The turn may come earlier.
    fn wake_at(&self, at: Time);

    /// Executes the next event, if there is one up to `until`. Otherwise returns `false`, and the
    /// time becomes `until`, unless that is [`Time::MAX`].
    fn advance(&self, until: Time) -> bool;

    /// Returns a number that identifies the host within this process. Never 0.
    fn id(&self) -> u64;

    /// Returns whether each call of the program ends before anything else happens on the host.
    /// Posts are then not delayed for batching, and no thread sleeps on sockets.
    fn runs_to_completion(&self) -> bool {
        true
    }
}

/// The source of a device's time and randomness.
#[derive(Clone)]
pub(crate) enum Environment {
    /// The kernel: CLOCK_MONOTONIC and getrandom(2).
    System,
    /// A simulated host.
    Simulated(Arc<dyn Simulation>),
}

impl Environment {
    /// Returns the present time.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::System => clock::now(),
            Self::Simulated(host) => host.now(),
        }
    }

    /// Returns whether a moment is so far ahead that the exact clock need not be read.
    #[inline]
    pub(crate) fn is_far(&self, moment: Time) -> bool {
        match self {
            Self::System => clock::is_far(moment),
            Self::Simulated(host) => moment > host.now(),
        }
    }

    /// Returns 8 random bytes.
    ///
    /// # Errors
    /// Fails if the kernel provides no random bytes.
    pub(crate) fn random_u64(&self) -> Result<u64> {
        match self {
            Self::System => random::random_u64(),
            Self::Simulated(host) => Ok(host.random()),
        }
    }

    /// Returns 4 random bytes.
    ///
    /// # Errors
    /// Fails if the kernel provides no random bytes.
    pub(crate) fn random_u32(&self) -> Result<u32> {
        let [a, b, c, d, ..] = self.random_u64()?.to_ne_bytes();
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    /// Returns the number of the simulated host; 0 for the kernel.
    pub(crate) fn id(&self) -> u64 {
        self.simulation().map_or(0, |host| host.id())
    }

    /// Returns the simulated host, if there is one.
    #[inline]
    pub(crate) fn simulation(&self) -> Option<&Arc<dyn Simulation>> {
        match self {
            Self::System => None,
            Self::Simulated(host) => Some(host),
        }
    }

    /// Like [`Simulation::runs_to_completion`]; `false` for the kernel.
    #[inline]
    pub(crate) fn runs_to_completion(&self) -> bool {
        self.simulation().is_some_and(|host| host.runs_to_completion())
    }

    /// Returns whether time is virtual.
    #[inline]
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulation().is_some()
    }
}

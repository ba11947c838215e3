//! Fault injection: the language that describes faults, and reports of what they did.
//!
//! ```
//! use rxe_verbs::FaultPlan;
//!
//! let plan: FaultPlan = "drop 1%; out: delay 50us±10us; only opcode=send,write".parse()?;
//! assert_eq!(plan.rules().len(), 2);
//! let error = "drop 1%; dorp 2%".parse::<FaultPlan>().unwrap_err();
//! assert_eq!((error.column(), error.word()), (10, "dorp"));
//! # Ok::<(), rxe_verbs::FaultError>(())
//! ```
//!
//! `docs/en/reference/faults.md` describes the language.

mod delayed;
mod parse;
mod show;
#[cfg(test)]
mod tests;
mod values;
mod verbs;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use rxe_net::fault_language::FaultError;
use rxe_net::{FaultReport, FaultRule};

use crate::error::Result;
use crate::os::random_u32;

pub(crate) use delayed::DelayedCq;
pub use verbs::VerbsFault;
pub(crate) use verbs::{RequestFaults, VerbsTally};

/// The faults that a description names; none by default. [`FromStr`] reads a description,
/// [`fmt::Display`] writes one with the same meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<FaultRule>,
    verbs: Vec<VerbsFault>,
}

impl FaultPlan {
    /// Returns whether the seed matters: if not, all seeds have the same effect.
    pub fn needs_seed(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns a random seed for [`crate::OpenOptions::faults`]. It is short enough to be typed
    /// again.
    ///
    /// # Errors
    /// The kernel provides no random numbers.
    pub fn random_seed() -> Result<u64> {
        random_u32().map(u64::from)
    }

    /// Returns the packet faults, in the order in which they are applied.
    pub fn rules(&self) -> &[FaultRule] {
        &self.rules
    }

    /// Returns the faults at the verbs. A device injects them, except for [`VerbsFault::Errno`],
    /// which applies to programs that use libibverbs and librdmacm.
    pub fn verbs(&self) -> &[VerbsFault] {
        &self.verbs
    }
}

impl FromStr for FaultPlan {
    type Err = FaultError;

    fn from_str(text: &str) -> std::result::Result<Self, FaultError> {
        parse::plan(text)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(|rule| show::Rule(rule).to_string());
        let clauses: Vec<_> = rules.chain(self.verbs.iter().map(ToString::to_string)).collect();
        f.write_str(&clauses.join("; "))
    }
}

/// The faults of an open device ([`crate::Device::faults`]).
#[derive(Clone, Debug)]
pub struct InjectedFaults {
    pub(crate) seed: u64,
    pub(crate) report: FaultReport,
    pub(crate) verbs: Arc<VerbsTally>,
}

impl InjectedFaults {
    /// Returns the seed of the random decisions.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns how many packets each rule has hit so far.
    pub fn report(&self) -> &FaultReport {
        &self.report
    }

    /// Returns the report in words, one line per rule.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.report.tallies().map(show::tally).collect();
        let overflowed = self.report.overflowed();
        if overflowed > 0 {
            lines.push(format!(
                "{overflowed} packets were lost: too many were delayed at the same time"
            ));
        }
        lines.extend(self.verbs.counts().map(show::count));
        lines
    }
}

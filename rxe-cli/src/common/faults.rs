//! The options `--fault` and `--seed`.

use std::env;

use rxe_verbs::{Device, FaultPlan, InjectedFaults};

use super::{Error, print_error};

/// Faults that the user asks for.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FaultArgs {
    /// Lose, duplicate, delay, reorder, damage or mark packets on purpose, or let requests fail, as in
    /// 'drop 1%; in: delay 50us±10us; only opcode=ack' or 'wc=RETRY_EXC@msg 100'; docs/en/reference/faults.md has
    /// the language
    #[arg(long, value_name = "FAULTS")]
    pub(crate) fault: Option<FaultPlan>,
    /// The number that decides which packets --fault hits: the same number hits the same packets
    /// [default: that of RXE_SEED, or a random one, which is printed]
    #[arg(long, value_name = "NUMBER", requires = "fault")]
    pub(crate) seed: Option<u64>,
}

impl FaultArgs {
    /// Returns the faults with their seed. The seed is the value of the option, else of `RXE_SEED`,
    /// else a random number, which is printed.
    pub(crate) fn chosen(&self) -> Result<Option<(u64, &FaultPlan)>, Error> {
        let Some(plan) = &self.fault else { return Ok(None) };
        let seed = match self.seed.map_or_else(of_environment, |seed| Ok(Some(seed)))? {
            Some(seed) => seed,
            None if !plan.needs_seed() => 0,
            None => {
                let seed = FaultPlan::random_seed()?;
                print_error(&format!(
                    "the seed of the faults is {seed} (--seed {seed} repeats them)"
                ));
                seed
            }
        };
        Ok(Some((seed, plan)))
    }
}

/// The environment variable with the seed, which the preload library reads as well.
const SEED: &str = "RXE_SEED";

fn of_environment() -> Result<Option<u64>, Error> {
    let Some(value) = env::var_os(SEED).filter(|value| !value.is_empty()) else { return Ok(None) };
    let value = value.to_string_lossy();
    value.parse().map(Some).map_err(|_| {
        let todo = format!("a seed is a whole number from 0 to {}", u64::MAX);
        Error::wrong_usage(format!("{SEED}={value}"), todo)
    })
}

/// Prints the counts of a device's injected faults when it is dropped.
pub(crate) struct FaultSummary(Option<InjectedFaults>);

impl FaultSummary {
    /// Creates the summary of `device`. A device without faults prints nothing.
    pub(crate) fn of(device: &Device) -> Self {
        Self(device.faults().cloned())
    }
}

impl Drop for FaultSummary {
    fn drop(&mut self) {
        let lines = self.0.iter().flat_map(InjectedFaults::lines);
        lines.for_each(|line| print_error(&format!("fault: {line}")));
    }
}

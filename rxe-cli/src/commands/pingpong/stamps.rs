//! The output of `-t`: the times between completions of received messages.

use std::fmt;
use std::time::Duration;

use rxe_core::types::Time;
use serde::Serialize;

/// Statistics of the times between received messages.
/// The device's clock counts nanoseconds, which ibv_rc_pingpong calls cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Stamps {
    max_ns: u64,
    min_ns: u64,
    average_ns: f64,
    #[serde(skip)]
    total: Duration,
    #[serde(skip)]
    deltas: u32,
    #[serde(skip)]
    last: Option<Time>,
}

impl Stamps {
    /// Records the timestamp of a received message.
    pub(super) fn received(&mut self, at: Time) {
        if let Some(last) = self.last.replace(at) {
            let delta = at - last;
            let ns = u64::try_from(delta.as_nanos()).unwrap_or(u64::MAX);
            self.max_ns = self.max_ns.max(ns);
            self.min_ns = if self.deltas == 0 { ns } else { self.min_ns.min(ns) };
            self.total += delta;
            self.deltas += 1;
            self.average_ns = self.total.as_secs_f64() * 1e9 / f64::from(self.deltas);
        }
    }
}

/// Formats the statistics like ibv_rc_pingpong. Empty for fewer than two messages.
impl fmt::Display for Stamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_ns, min_ns, average_ns, deltas, .. } = self;
        if *deltas == 0 {
            return Ok(());
        }
        writeln!(f, "Max receive completion clock cycles = {max_ns}")?;
        writeln!(f, "Min receive completion clock cycles = {min_ns}")?;
        writeln!(f, "Average receive completion clock cycles = {average_ns:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_told_as_ibv_rc_pingpong_does() {
        let mut stamps = Stamps::default();
        stamps.received(Time::from_nanos(1000));
        assert_eq!(stamps.to_string(), "");
        for at in [1100, 1350] {
            stamps.received(Time::from_nanos(at));
        }
        assert_eq!(
            stamps.to_string(),
            "Max receive completion clock cycles = 250\n\
             Min receive completion clock cycles = 100\n\
             Average receive completion clock cycles = 175.000000\n"
        );
    }
}

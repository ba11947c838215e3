//! Counters for people, in 80 columns.

use std::time::Duration;

use crate::common::running::Running;

/// The kinds of counters that kernel devices do not have, and the prefixes of their names.
const OTHERS: [(&str, &str); 3] = [("counters", ""), ("dropped", "drop: "), ("net", "net: ")];

/// Formats the counters of all devices.
pub(super) fn all(running: &[Running]) -> String {
    let blocks = running.iter().map(|device| {
        let cells: Vec<_> = counters(device)
            .into_iter()
            .map(|(name, value)| format!("{name:<24} {value:>12}"))
            .collect();
        let rows = cells.chunks(2).map(|row| format!("  {}\n", row.join("  ")));
        heading(device) + &rows.collect::<String>()
    });
    blocks.collect::<Vec<_>>().join("\n")
}

/// Formats the counters of all devices, with the rates since `before`, which is `time` ago.
pub(super) fn rates(running: &[Running], before: &[Running], time: Duration) -> String {
    let blocks = running.iter().map(|device| {
        let same = |old: &&Running| (old.pid, old.device()) == (device.pid, device.device());
        let old = before.iter().find(same).map(counters).unwrap_or_default();
        let rows = counters(device).into_iter().map(|(name, value)| {
            let old = old.iter().find(|(old, _)| *old == name).map(|(_, value)| *value);
            let rate = old.map_or(String::new(), |old| rate(value.saturating_sub(old), time));
            format!("  {name:<30} {value:>18} {rate:>18}\n")
        });
        heading(device) + &rows.collect::<String>()
    });
    blocks.collect::<Vec<_>>().join("\n")
}

fn heading(device: &Running) -> String {
    let network = device.other_network();
    let network = network.map_or(String::new(), |netns| format!("  network namespace {netns}\n"));
    format!(
        "{}  pid {} ({})  netdev {}  backend {}\n{network}",
        device.device(),
        device.pid_text(),
        device.comm,
        device.netdev(),
        device.backend()
    )
}

/// Returns the counters that kernel devices have, and the others that are not 0.
fn counters(device: &Running) -> Vec<(String, u64)> {
    let of = |kind: &str| {
        let record = device.record(kind);
        let fields = record.into_iter().flat_map(|record| record.fields());
        fields
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect::<Vec<(String, u64)>>()
    };
    let others = OTHERS.into_iter().flat_map(|(kind, prefix)| {
        let counted = of(kind).into_iter().filter(|(_, value)| *value > 0);
        counted.map(|(name, value)| (format!("{prefix}{name}"), value)).collect::<Vec<_>>()
    });
    of("hw_counters").into_iter().chain(others).collect()
}

fn rate(more: u64, time: Duration) -> String {
    let millis = time.as_millis().max(1);
    format!("{}/s", u128::from(more) * 1000 / millis)
}

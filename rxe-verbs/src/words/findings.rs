//! What `rxe check` finds in captures, beside what other entries explain: the names of its findings.

pub(super) mod delivery;
pub(super) mod rules;

use super::{Entry, SECTIONS, Text, t};

const fn entry(
    id: &'static str,
    names: &'static [&'static str],
    title: Text,
    what: Text,
    causes: &'static [Text],
    remedies: &'static [Text],
) -> Entry {
    Entry { id, names, phrases: &[], title, what, causes, remedies }
}

/// The entry of a finding. A name that is also that of a concept has an entry of its own here.
pub(super) fn of(name: &str) -> Option<&'static Entry> {
    let id = match name {
        "timeout" => "timed-out",
        "icrc" => "icrc-wrong",
        "q-key" => "q-keys-by-turns",
        _ => name,
    };
    let mut all = SECTIONS.iter().flat_map(|section| section.entries);
    all.find(|entry| entry.id == id || entry.names.contains(&id))
}

/// What to do about packets that are lost.
const LOSS: Text = t(
    "Compare the counters of drops on both hosts and on the switches (`ethtool -S`, `rxe stat`), and use flow control (PFC) or congestion control (ECN).",
    "对比两端主机和交换机的丢包计数（`ethtool -S`、`rxe stat`），并启用流控（PFC）或拥塞控制（ECN）。",
);

/// What to do about a device that breaks a rule.
const DEVICE: Text = t(
    "Look at the frames with `rxe decode -v`, and report it to the maker of the device that sent them.",
    "用 `rxe decode -v` 查看这些帧，并报告给发送端设备的厂商。",
);

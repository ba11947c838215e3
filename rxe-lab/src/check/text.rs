//! Sentences and times that several kinds of findings share.

use std::time::Duration;

use super::finding::Kind;

/// Explains why a packet was missing that is captured for the first time.
pub(super) fn lost_before(kind: Kind) -> String {
    match kind {
        Kind::SequenceNak => {
            "It was lost before the capture point: the responder missed it, \
                              sent a NAK (PSN sequence error), and the requester sent it again."
        }
        _ => "It was lost before the capture point, and the requester sent it again.",
    }
    .to_owned()
}

/// Explains why a packet is retransmitted that was captured before.
pub(super) fn lost_after(kind: Kind) -> String {
    match kind {
        Kind::SequenceNak => {
            "The responder missed it and sent a NAK (PSN sequence error): it was lost \
                              or overtaken after the capture point."
        }
        Kind::Rnr => "The receiver had no receive request posted (RNR NAK).",
        _ => {
            "A later response came before its own: the response was lost, and the requester asks \
              again."
        }
    }
    .to_owned()
}

/// Explains that responses cannot be distinguished from those of another queue pair.
pub(super) fn unexplained(what: &str) -> String {
    format!(
        "{what}. The cause is not known, because several queue pairs may have had these responses: \
         capture from the connection's beginning, or this connection alone."
    )
}

/// Describes the requester's ACK timeout, if it expired after `waited`.
/// The timer expires after one to four times its value. IBTA 9.7.6.
pub(super) fn timer(waited: Duration) -> String {
    let units = u64::try_from(waited.as_nanos() / 4096).unwrap_or(u64::MAX);
    let Some(n) = units.checked_ilog2().filter(|n| (1..32).contains(n)) else {
        return String::new();
    };
    format!(" The requester's timer is about {} (Local ACK Timeout {n} or less).", time(waited))
}

/// Formats a time in a suitable unit.
pub(super) fn time(d: Duration) -> String {
    match d.as_nanos() {
        0..10_000 => format!("{:.1} us", d.as_secs_f64() * 1e6),
        10_000..1_000_000 => format!("{:.0} us", d.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", d.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", d.as_secs_f64()),
    }
}

//! Writes rules in the fault language.

use std::fmt;
use std::time::Duration;

use rxe_net::fault_language::{KINDS, UNITS};
use rxe_net::{
    Direction, FaultAction, FaultAmount, FaultRule, FaultTally, OpcodeFilter, PacketFilter,
    PsnFilter, QpFilter,
};

use super::values::{ERRNOS, EVENTS, STATUSES};
use super::verbs::VerbsFault;

/// Displays a rule as a clause.
pub(super) struct Rule<'r>(pub(super) &'r FaultRule);

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultRule { action, amount, direction, only, after, burst } = self.0;
        match direction {
            Some(Direction::Inbound) => f.write_str("in: ")?,
            Some(Direction::Outbound) => f.write_str("out: ")?,
            None => {}
        }
        match action {
            FaultAction::Drop => f.write_str("drop")?,
            FaultAction::Duplicate => f.write_str("dup")?,
            FaultAction::Reorder { .. } => f.write_str("reorder")?,
            FaultAction::Delay { base, jitter } => {
                write!(f, "delay {}", time(*base))?;
                if !jitter.is_zero() {
                    write!(f, "±{}", time(*jitter))?;
                }
            }
            FaultAction::Corrupt => f.write_str("corrupt")?,
            FaultAction::MarkEcn => f.write_str("ecn")?,
        }
        match *amount {
            FaultAmount::Share(share) => write!(f, " {}%", percent(share))?,
            FaultAmount::First(count) => write!(f, " {count}")?,
        }
        if let FaultAction::Reorder { by } = action
            && *by != 1
        {
            write!(f, " by {by}")?;
        }
        filter(f, only)?;
        if *after > 0 {
            write!(f, " after {after}")?;
        }
        if *burst > 1 {
            write!(f, " burst {burst}")?;
        }
        Ok(())
    }
}

fn filter(f: &mut fmt::Formatter<'_>, only: &PacketFilter) -> fmt::Result {
    let PacketFilter { qps, opcodes, psns, destinations } = only;
    let lists = [
        ("qp", qps.iter().map(qp).collect::<Vec<_>>()),
        ("opcode", opcodes.iter().map(opcode).collect()),
        ("psn", psns.iter().map(psn).collect()),
        ("dst", destinations.iter().map(ToString::to_string).collect()),
    ];
    let mut word = " only";
    for (key, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
        write!(f, "{word} {key}={}", values.join(","))?;
        word = "";
    }
    Ok(())
}

fn qp(qp: &QpFilter) -> String {
    match qp {
        QpFilter::Number(qpn) => format!("{:#x}", qpn.value()),
        QpFilter::Nth(nth) => format!("#{nth}"),
    }
}

fn opcode(opcode: &OpcodeFilter) -> String {
    match opcode {
        OpcodeFilter::Is(opcode) => opcode.name().into(),
        OpcodeFilter::Kind(kind) => {
            let found = KINDS.iter().find(|(_, named)| named == kind);
            found.map_or_else(|| format!("{kind:?}"), |(name, _)| (*name).into())
        }
    }
}

fn psn(psn: &PsnFilter) -> String {
    let plus = if psn.relative { "+" } else { "" };
    match (psn.first, psn.last) {
        (first, last) if first == last => format!("{plus}{first}"),
        (first, last) => format!("{plus}{first}..{plus}{last}"),
    }
}

/// Writes a time in the largest unit in which it is a whole number.
fn time(time: Duration) -> String {
    let nanos = time.as_nanos();
    let whole = |(_, unit): &&(&str, u64)| nanos.is_multiple_of(u128::from(*unit));
    let found = UNITS.iter().rev().find(|unit| whole(unit) && unit.0.is_ascii());
    let (unit, size) = found.copied().unwrap_or(("ns", 1));
    format!("{}{unit}", nanos / u128::from(size))
}

/// Writes millionths as a percentage, with as many decimals as needed.
fn percent(share: u32) -> String {
    let text = format!("{}.{:04}", share / 10_000, share % 10_000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Describes how many received and sent packets a rule has hit.
pub(super) fn tally((rule, [inbound, outbound]): (&FaultRule, [FaultTally; 2])) -> String {
    let count =
        |tally: FaultTally, what| format!("{} of {} {what}", tally.hit, of(tally.seen, "packet"));
    let (sent, received) = (count(outbound, "sent"), count(inbound, "received"));
    let what = match rule.direction {
        None => format!("{sent}, {received}"),
        Some(Direction::Outbound) => sent,
        Some(Direction::Inbound) => received,
    };
    format!("{} hit {what}", Rule(rule))
}

impl fmt::Display for VerbsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completion { status, request } => {
                write!(f, "wc={}@msg {request}", name(&STATUSES, status))
            }
            Self::Errno { errno, function, call } => {
                write!(f, "errno={}@{function}", name(&ERRNOS, errno))?;
                call.map_or(Ok(()), |call| write!(f, "#{call}"))
            }
            Self::Async { kind, after } => {
                write!(f, "async={}@{}", name(&EVENTS, kind), time(*after))
            }
            Self::SlowCq { by } => write!(f, "slow cq {}", time(*by)),
        }
    }
}

/// Returns the name of a value in a table.
fn name<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, named)| named == value).map_or("?", |(name, _)| name)
}

/// Writes a count with its noun.
fn of(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Describes how often a fault at the verbs has occurred.
pub(super) fn count((fault, count): (&VerbsFault, u64)) -> String {
    match fault {
        VerbsFault::Completion { .. } => format!("{fault} hit {}", of(count, "request")),
        VerbsFault::Errno { .. } => format!("{fault} hit {}", of(count, "call")),
        VerbsFault::Async { .. } => format!("{fault} came {}", of(count, "time")),
        VerbsFault::SlowCq { .. } => format!("{fault} held back {}", of(count, "completion")),
    }
}

//! Parses a description of faults.
//!
//! A clause is a fault with optional conditions, or conditions alone. A condition that stands alone
//! applies to each fault of the description that does not set that condition itself.

use super::super::rules::{FaultAction, FaultAmount, FaultRule, PacketFilter};
use super::values;
use super::words::{Clause, FaultError, Word, clauses};
use crate::wrappers::pcap::Direction;

type Result<T> = std::result::Result<T, FaultError>;

/// The maximum number of faults in one description.
const MAX_RULES: usize = 32;

/// The words with which a clause begins.
const PACKET_FAULTS: [&str; 6] = ["drop", "dup", "reorder", "delay", "corrupt", "ecn"];
const VERBS_FAULTS: [&str; 4] = ["wc=", "errno=", "async=", "slow cq"];
const CONDITIONS: [&str; 3] = ["only", "after", "burst"];
const DIRECTIONS: [&str; 2] = ["in:", "out:"];
/// The keys of the condition `only`.
const KEYS: [&str; 4] = ["qp=", "opcode=", "psn=", "dst="];

fn all_faults() -> Vec<&'static str> {
    [&PACKET_FAULTS[..], &VERBS_FAULTS].concat()
}

/// Returns a list for a sentence, as in "drop, dup or ecn".
fn either(names: &[&str]) -> String {
    match names {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => names.concat(),
    }
}

/// Parses a description and returns its packet faults. Calls `verbs` to parse each clause that is a
/// fault at the verbs.
///
/// # Errors
/// Fails if the description has a mistake, or if `verbs` fails.
pub fn rules(
    text: &str,
    verbs: impl FnMut(&mut Clause<'_>) -> Result<()>,
) -> Result<Vec<FaultRule>> {
    parse(text, verbs).map_err(|error| error.or_comma(text))
}

fn parse(
    text: &str,
    mut verbs: impl FnMut(&mut Clause<'_>) -> Result<()>,
) -> Result<Vec<FaultRule>> {
    let mut general = Conditions::default();
    let mut faults = Vec::new();
    let mut verbs_faults = 0;
    // The first word of the first clause that has conditions only.
    let mut alone = None;
    for mut clause in clauses(text) {
        let first = clause.peek().unwrap_or(Word { text: "", column: 1 });
        if is_verbs_fault(first) {
            verbs(&mut clause)?;
            verbs_faults += 1;
        } else if let Some(fault) = fault(&mut clause)? {
            faults.push(fault);
        } else {
            alone = alone.or(Some(first));
            general.read(&mut clause)?;
        }
        if faults.len() + verbs_faults > MAX_RULES {
            return Err(FaultError::new(first, format!("more than {MAX_RULES} faults")));
        }
    }
    if faults.is_empty() && (verbs_faults == 0 || alone.is_some()) {
        let nothing = alone.unwrap_or(Word { text: "", column: 1 });
        let why = match alone {
            Some(_) => "a condition of packets, but no fault of packets is named".into(),
            None => format!("no fault is named: write {}", either(&all_faults())),
        };
        return Err(FaultError::new(nothing, why));
    }
    Ok(faults.into_iter().map(|fault| fault.with(&general)).collect())
}

/// Returns whether a clause that begins with this word is a fault at the verbs.
fn is_verbs_fault(first: Word<'_>) -> bool {
    let key = first.split_once("=").map(|(key, _)| key.text);
    first.text == "slow" || key.is_some_and(|key| matches!(key, "wc" | "errno" | "async"))
}

/// A fault with the conditions of its clause.
struct Parsed<'t> {
    rule: FaultRule,
    own: Conditions<'t>,
}

impl Parsed<'_> {
    /// Returns the rule with its own conditions, and the general ones where it has none.
    fn with(self, general: &Conditions<'_>) -> FaultRule {
        let Self { mut rule, own } = self;
        rule.after = own.after.or(general.after).unwrap_or(0);
        if let FaultAmount::Share(_) = rule.amount {
            rule.burst = own.burst.or(general.burst).map_or(1, |(length, _)| length);
        }
        fn list<T: Clone>(own: Vec<T>, general: &[T]) -> Vec<T> {
            if own.is_empty() { general.to_vec() } else { own }
        }
        rule.only = PacketFilter {
            qps: list(own.only.qps, &general.only.qps),
            opcodes: list(own.only.opcodes, &general.only.opcodes),
            psns: list(own.only.psns, &general.only.psns),
            destinations: list(own.only.destinations, &general.only.destinations),
        };
        rule
    }
}

/// Parses a whole clause that is a packet fault. Returns `None`, and reads nothing, if the clause
/// has conditions only.
fn fault<'t>(clause: &mut Clause<'t>) -> Result<Option<Parsed<'t>>> {
    let direction = direction(clause);
    let word = match clause.peek() {
        Some(word) if direction.is_none() && is_condition(word) => return Ok(None),
        _ => clause.expect("a fault")?,
    };
    let (action, amount) = match word.text {
        "drop" => (FaultAction::Drop, amount(clause)?),
        "dup" => (FaultAction::Duplicate, amount(clause)?),
        "corrupt" => (FaultAction::Corrupt, amount(clause)?),
        "ecn" => (FaultAction::MarkEcn, amount(clause)?),
        "reorder" => {
            let amount = amount(clause)?;
            let by = match clause.take("by") {
                true => values::small_count(clause.expect("a number of packets")?)?,
                false => 1,
            };
            (FaultAction::Reorder { by }, amount)
        }
        "delay" => {
            let (base, jitter) = values::delay(clause.expect("a time such as 50us")?)?;
            (FaultAction::Delay { base, jitter }, amount(clause)?)
        }
        _ => {
            return Err(match direction {
                Some(_) => {
                    let what = "not a fault that has a direction";
                    FaultError::unknown(word, what, &either(&PACKET_FAULTS), PACKET_FAULTS)
                }
                None => {
                    let faults = all_faults();
                    let list =
                        format!("{}, or a condition: {}", either(&faults), either(&CONDITIONS));
                    let names = faults.into_iter().chain(CONDITIONS).chain(DIRECTIONS);
                    FaultError::unknown(word, "not a fault", &list, names)
                }
            });
        }
    };
    let mut own = Conditions::default();
    own.read(clause)?;
    if let (FaultAmount::First(_), Some((_, word))) = (amount, own.burst) {
        return Err(FaultError::new(word, "a number of packets has no bursts: write a percentage"));
    }
    Ok(Some(Parsed { rule: FaultRule { direction, ..FaultRule::new(action, amount) }, own }))
}

/// Parses `in:` or `out:`. White space before the next word is optional.
fn direction(clause: &mut Clause<'_>) -> Option<Direction> {
    let word = clause.peek()?;
    let ways = [("in:", Direction::Inbound), ("out:", Direction::Outbound)];
    let (prefix, direction) = ways.into_iter().find(|(way, _)| word.text.starts_with(way))?;
    clause.next();
    if word.text.len() > prefix.len() {
        clause.put_back(word.part(prefix.len(), word.text.len()));
    }
    Some(direction)
}

/// Parses how many packets are hit: all of them if there is no amount.
fn amount(clause: &mut Clause<'_>) -> Result<FaultAmount> {
    match clause.peek() {
        Some(word) if values::begins_as_number(word) => {
            clause.next();
            values::amount(word)
        }
        Some(word) if !is_condition(word) && word.text != "by" => {
            let what = "neither an amount nor a condition";
            let list = format!("an amount (1% or 3), or {}; `;` ends a fault", either(&CONDITIONS));
            Err(FaultError::unknown(word, what, &list, CONDITIONS))
        }
        _ => Ok(FaultAmount::ALL),
    }
}

fn is_condition(word: Word<'_>) -> bool {
    CONDITIONS.contains(&word.text)
}

/// The conditions under which packets are hit.
#[derive(Default)]
struct Conditions<'t> {
    only: PacketFilter,
    after: Option<u64>,
    burst: Option<(u32, Word<'t>)>,
}

impl<'t> Conditions<'t> {
    /// Parses the rest of a clause.
    fn read(&mut self, clause: &mut Clause<'t>) -> Result<()> {
        while let Some(word) = clause.next() {
            match word.text {
                "only" => self.read_only(clause)?,
                "after" => {
                    let count = values::count(clause.expect("a number of packets")?)?;
                    once(word, self.after.replace(count).is_none())?;
                }
                "burst" => {
                    let length = values::small_count(clause.expect("a number of packets")?)?;
                    once(word, self.burst.replace((length, word)).is_none())?;
                }
                _ => {
                    let list = format!("{}; `;` ends a fault", either(&CONDITIONS));
                    return Err(FaultError::unknown(word, "not a condition", &list, CONDITIONS));
                }
            }
        }
        Ok(())
    }

    /// Parses what follows `only`: one or more of `qp=…`, `opcode=…`, `psn=…` and `dst=…`.
    fn read_only(&mut self, clause: &mut Clause<'_>) -> Result<()> {
        let keys = either(&KEYS);
        let mut word = clause.expect(&format!("a condition ({keys})"))?;
        loop {
            let wrong = || FaultError::unknown(word, "not a condition of only", &keys, KEYS);
            let (key, value) = word.split_once("=").ok_or_else(wrong)?;
            let only = &mut self.only;
            match key.text {
                "qp" => fill(&mut only.qps, key, value, values::qp)?,
                "opcode" => fill(&mut only.opcodes, key, value, values::opcode)?,
                "psn" => fill(&mut only.psns, key, value, values::psn)?,
                "dst" => fill(&mut only.destinations, key, value, values::address)?,
                _ => return Err(wrong()),
            }
            match clause.peek() {
                Some(next) if !is_condition(next) => word = next,
                _ => return Ok(()),
            }
            clause.next();
        }
    }
}

/// Parses a list of values separated by commas. Fails if the key was given before.
fn fill<T>(
    list: &mut Vec<T>,
    key: Word<'_>,
    values: Word<'_>,
    read: impl Fn(Word<'_>) -> Result<T>,
) -> Result<()> {
    once(key, list.is_empty())?;
    for value in values.list() {
        list.push(read(value)?);
    }
    Ok(())
}

/// Fails unless this is the first occurrence of the word.
fn once(word: Word<'_>, first: bool) -> Result<()> {
    if first { Ok(()) } else { Err(FaultError::new(word, "said twice: say it once")) }
}

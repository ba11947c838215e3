//! Checks the results of atomics.
//! It searches for an order in which each atomic was executed once, those of one queue pair in
//! sequence, that explains the returned values and the final words. All orders are searched; few
//! are possible, because nearly all values differ.

use std::collections::HashMap;
use std::ops::Range;

use super::memory::Place;
use super::plan::{Plan, Verb};

/// An atomic of a run.
#[derive(Clone, Copy, Debug)]
struct Done {
    verb: Verb,
    /// The value that the atomic returned, if it succeeded. A failed atomic may have been executed
    /// or not; if it was not, no later atomic of its queue pair was.
    found: Option<u64>,
}

/// Checks every word that atomics use, and returns the places of the words.
/// `found` returns the value that an atomic returned, by link, end and index, if it succeeded.
///
/// # Errors
/// The contradiction.
pub fn check(
    plan: &Plan,
    found: impl Fn(usize, usize, usize) -> Option<u64>,
    actual: &[Vec<u8>],
) -> Result<Vec<(usize, Range<usize>)>, String> {
    let mut words: HashMap<(usize, Place), Vec<Vec<Done>>> = HashMap::new();
    for word in &plan.words {
        words.insert((word.side, word.place), Vec::new());
    }
    for (link, spec) in plan.links.iter().enumerate() {
        for end in 0..2 {
            let peer = spec.ends[1 - end].side;
            let mut mine: HashMap<Place, Vec<Done>> = HashMap::new();
            for (index, op) in spec.ends[end].ops.iter().enumerate() {
                let Some(place) = op.remote.filter(|_| op.verb.is_atomic()) else { continue };
                if op.flaw.is_some() {
                    // Neither this atomic nor anything after it was executed.
                    break;
                }
                let found = found(link, end, index);
                mine.entry(place).or_default().push(Done { verb: op.verb, found });
            }
            for (place, list) in mine {
                words.entry((peer, place)).or_default().push(list);
            }
        }
    }
    let mut ranges = Vec::new();
    for ((side, place), lists) in words {
        let range = plan.sides[side].layout.range(place);
        let bytes = &actual[side][range.clone()];
        let last = u64::from_ne_bytes(bytes.try_into().map_err(|_| "a word has 8 bytes")?);
        let mut budget = 200_000;
        if !reachable(0, last, &mut vec![0; lists.len()], &lists, &mut budget) && budget > 0 {
            return Err(format!(
                "no order of these atomics on side {side} begins with 0, ends with {last:#x} and \
                 finds what was found: {lists:x?}"
            ));
        }
        ranges.push((side, range));
    }
    Ok(ranges)
}

/// Returns whether the word can become `last`, if it is `now` after the first `done` atomics of
/// each list.
fn reachable(
    now: u64,
    last: u64,
    done: &mut Vec<usize>,
    lists: &[Vec<Done>],
    budget: &mut u32,
) -> bool {
    *budget = budget.saturating_sub(1);
    if *budget == 0 {
        return false;
    }
    // All successful atomics must be executed; the others may be.
    let complete =
        lists.iter().zip(&*done).all(|(list, &n)| list[n..].iter().all(|op| op.found.is_none()));
    if complete && now == last {
        return true;
    }
    for i in 0..lists.len() {
        let Some(op) = lists[i].get(done[i]) else { continue };
        if op.found.is_some_and(|found| found != now) {
            continue;
        }
        let next = match op.verb {
            Verb::FetchAdd { add } => now.wrapping_add(add),
            Verb::CompareSwap { compare, swap } if compare == now => swap,
            _ => now,
        };
        done[i] += 1;
        if reachable(next, last, done, lists, budget) {
            return true;
        }
        done[i] -= 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(add: u64, found: u64) -> Done {
        Done { verb: Verb::FetchAdd { add }, found: Some(found) }
    }

    fn can_be(last: u64, lists: &[Vec<Done>]) -> bool {
        reachable(0, last, &mut vec![0; lists.len()], lists, &mut 1000)
    }

    #[test]
    fn an_order_is_found_where_there_is_one_and_only_there() {
        assert!(can_be(6, &[vec![add(1, 0), add(3, 3)], vec![add(2, 1)]]));
        assert!(!can_be(6, &[vec![add(3, 3), add(1, 0)], vec![add(2, 1)]]), "not in order");
        assert!(!can_be(7, &[vec![add(1, 0)], vec![add(2, 1), add(3, 3)]]), "added twice");
        assert!(!can_be(1, &[vec![add(1, 0)], vec![add(1, 0)]]), "lost");
        let unknown = Done { verb: Verb::FetchAdd { add: 8 }, found: None };
        assert!(can_be(1, &[vec![add(1, 0), unknown]]) && can_be(9, &[vec![add(1, 0), unknown]]));
        assert!(!can_be(17, &[vec![add(1, 0), unknown]]));
    }
}

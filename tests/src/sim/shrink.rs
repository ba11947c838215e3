//! Makes a failing run smaller: leaves out whatever it fails without, and tells the rest.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::plan::{Op, Plan};
use super::world::{self, Failure, Report};

/// Carries a plan out. A panic counts as a failure.
///
/// # Errors
/// What was wrong.
pub fn run(plan: &Plan, record: bool) -> Result<Report, Failure> {
    catch_unwind(AssertUnwindSafe(|| world::run(plan, record))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let what = format!("panic: {}", text.unwrap_or_default());
        Err(Failure { what, ladder: "(the ladder went down with the panic)".into() })
    })
}

/// The smallest plan found that still fails in the same way, and how.
pub fn shrink(plan: &Plan, failure: &str) -> (Plan, Failure) {
    let way = |what: &str| what.chars().filter(|c| c.is_alphabetic()).take(40).collect::<String>();
    let mut best = plan.clone();
    let mut budget = 400;
    loop {
        let mut smaller = candidates(&best);
        let found = smaller.find(|candidate| {
            budget -= 1;
            budget > 0 && run(candidate, false).is_err_and(|f| way(&f.what) == way(failure))
        });
        drop(smaller);
        match found {
            Some(found) => best = found,
            None => break,
        }
    }
    match run(&best, true) {
        Err(failure) => (best, failure),
        Ok(_) => unreachable!("runs are deterministic"),
    }
}

/// Everything that could be left out next, the most first.
fn candidates(plan: &Plan) -> impl Iterator<Item = Plan> + '_ {
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let mut list: Vec<Plan> = Vec::new();
    if plan.links.len() > 1 && plan.actions.is_empty() {
        list.extend((0..plan.links.len()).map(|l| with(&|p| drop(p.links.remove(l)))));
    }
    for what in 0..8 {
        let smaller = with(&|p| match what {
            0 => p.network.faults.loss = 0.0,
            1 => p.network.faults.duplicate = 0.0,
            2 => p.network.faults.reorder = 0.0,
            3 => p.network.faults.corrupt = 0.0,
            4 => p.cuts.clear(),
            5 => p.network.faults.merge = false,
            6 => p.network.faults.hide_ids = false,
            _ => drop(p.actions.pop()),
        });
        let same = smaller.network.faults == plan.network.faults
            && smaller.cuts.len() == plan.cuts.len()
            && smaller.actions.len() == plan.actions.len();
        if !same {
            list.push(smaller);
        }
    }
    for (l, link) in plan.links.iter().enumerate() {
        for e in 0..2 {
            let count = link.ends[e].ops.len();
            if count > 1 {
                list.push(with(&|p| (0..count / 2).for_each(|_| remove(p, l, e, 0))));
                list.push(with(&|p| (count / 2..count).for_each(|_| remove(p, l, e, count / 2))));
            }
            list.extend((0..count).map(|i| with(&|p| remove(p, l, e, i))));
        }
    }
    list.into_iter()
}

/// Leaves out a request, and the receive for it.
fn remove(plan: &mut Plan, link: usize, end: usize, index: usize) {
    let ends = &mut plan.links[link].ends;
    let message = ends[end].ops[..index].iter().filter(|op| op.consumes()).count();
    let op: Op = ends[end].ops.remove(index);
    if op.consumes() {
        ends[1 - end].receives.remove(message);
    }
}

//! Makes a failing run smaller, by leaving out everything that the failure does not need.

use super::case::Case;
use super::network::Network;
use super::plan::{Op, Plan};
use super::script::{Deed, Script};
use super::world::Failure;

/// Returns the smallest case found that still fails in the same way, and its failure.
pub fn shrink(case: &Case, failure: &str) -> (Case, Failure) {
    let way = |what: &str| what.chars().filter(|c| c.is_alphabetic()).take(40).collect::<String>();
    let mut best = case.clone();
    let mut budget = 600;
    loop {
        let mut smaller = candidates(&best);
        let found = smaller.find(|candidate| {
            budget -= 1;
            budget > 0 && candidate.run(false).is_err_and(|f| way(&f.what) == way(failure))
        });
        drop(smaller);
        match found {
            Some(found) => best = found,
            None => break,
        }
    }
    match best.run(true) {
        Err(failure) => (best, failure),
        Ok(_) => unreachable!("runs are deterministic"),
    }
}

/// Returns the next smaller cases, the smallest first.
fn candidates(case: &Case) -> Box<dyn Iterator<Item = Case> + '_> {
    match case {
        Case::Plan(plan) => Box::new(plans(plan).map(|p| Case::Plan(Box::new(p)))),
        Case::Script(script) => Box::new(scripts(script).map(|s| Case::Script(Box::new(s)))),
    }
}

/// Returns the network several times, each time without one of its faults.
fn milder(network: &Network) -> impl Iterator<Item = Network> + '_ {
    let less = (0..network.faults.len() + 2).map(move |what| {
        let mut less = network.clone();
        match what.checked_sub(network.faults.len()) {
            None => drop(less.faults.remove(what)),
            Some(0) => less.merge = false,
            Some(_) => less.hide_ids = false,
        }
        less
    });
    let key = |network: &Network| (network.faults.len(), network.merge, network.hide_ids);
    less.filter(move |less| key(less) != key(network))
}

fn scripts(script: &Script) -> impl Iterator<Item = Script> + '_ {
    let is_left = |step: &usize| !matches!(script.steps[*step].deed, Deed::Nothing);
    let left: Vec<_> = (0..script.steps.len()).filter(is_left).collect();
    let without = |steps: &[usize]| {
        let mut script = script.clone();
        steps.iter().for_each(|&step| script.steps[step].deed = Deed::Nothing);
        script
    };
    let mut list = Vec::new();
    let mut size = left.len() / 2;
    while size > 0 {
        list.extend(left.chunks(size).map(without));
        size /= 4;
    }
    list.extend(milder(&script.network).map(|network| Script { network, ..script.clone() }));
    if left.len() < 40 {
        list.extend(left.chunks(1).map(without));
    }
    list.into_iter()
}

fn plans(plan: &Plan) -> impl Iterator<Item = Plan> + '_ {
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let mut list: Vec<Plan> = Vec::new();
    if plan.links.len() > 1 && plan.actions.is_empty() {
        list.extend((0..plan.links.len()).map(|l| with(&|p| drop(p.links.remove(l)))));
    }
    if !plan.cuts.is_empty() {
        list.push(with(&|p| p.cuts.clear()));
    }
    if !plan.actions.is_empty() {
        list.push(with(&|p| p.actions.truncate(plan.actions.len() - 1)));
    }
    list.extend(milder(&plan.network).map(|network| Plan { network, ..plan.clone() }));
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

/// Removes a request and its receive.
fn remove(plan: &mut Plan, link: usize, end: usize, index: usize) {
    let ends = &mut plan.links[link].ends;
    let message = ends[end].ops[..index].iter().filter(|op| op.consumes()).count();
    let op: Op = ends[end].ops.remove(index);
    if op.consumes() {
        ends[1 - end].receives.remove(message);
    }
}

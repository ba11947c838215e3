//! Parses a description: `rxe-net` parses packet faults, this module parses faults at the verbs.

use std::time::Duration;

use rxe_net::fault_language::{self, Clause, FaultError, count, moment, named, time};

use super::FaultPlan;
use super::values::{ERRNOS, EVENTS, STATUSES};
use super::verbs::VerbsFault;
use crate::event::AsyncKind;

type Result<T> = std::result::Result<T, FaultError>;

/// The delay of completions by default.
const SLOW_CQ: Duration = Duration::from_millis(1);

pub(super) fn plan(text: &str) -> Result<FaultPlan> {
    let mut verbs = Vec::new();
    let rules = fault_language::rules(text, |clause| {
        verbs.push(verbs_fault(clause)?);
        Ok(())
    })?;
    Ok(FaultPlan { rules, verbs })
}

/// Parses a whole clause that is a fault at the verbs.
fn verbs_fault(clause: &mut Clause<'_>) -> Result<VerbsFault> {
    let word = clause.expect("a fault")?;
    let (key, value) = word.split_once("=").unwrap_or((word, word));
    // Splits the value at `@`; `form` is the expected form.
    let at = |form: &str| {
        value.split_once("@").ok_or_else(|| FaultError::new(word, format!("write {form}")))
    };
    let fault = match key.text {
        "wc" => {
            let form = "wc=STATUS@msg N, as in wc=RETRY_EXC@msg 100";
            let (status, msg) = at(form)?;
            let status = named(status, "a status", &STATUSES, "IBV_WC_", "_ERR")?;
            if msg.text != "msg" {
                return Err(FaultError::new(msg, format!("write {form}")));
            }
            let request = count(clause.expect("the number of a request")?)?;
            VerbsFault::Completion { status, request }
        }
        "errno" => {
            let (errno, call) = at("errno=NAME@FUNCTION#N, as in errno=ENOMEM@ibv_reg_mr#3")?;
            let errno = named(errno, "an errno", &ERRNOS, "", "")?;
            let (function, call) = match call.split_once("#") {
                Some((function, call)) => (function, Some(count(call)?)),
                None => (call, None),
            };
            let functions = VerbsFault::FUNCTIONS.map(|name| (name, name));
            let function = named(function, "a function that can fail", &functions, "", "")?;
            VerbsFault::Errno { errno, function, call }
        }
        "async" => {
            let (event, after) = at("async=EVENT@TIME, as in async=PORT_ERR@2s")?;
            let kind = match event.text {
                "port_down" => AsyncKind::PortErr,
                "port_up" => AsyncKind::PortActive,
                _ => named(event, "an event of a device", &EVENTS, "IBV_EVENT_", "")?,
            };
            VerbsFault::Async { kind, after: moment(after)? }
        }
        _ => {
            let what = clause.expect("cq (slow cq)")?;
            if what.text != "cq" {
                return Err(FaultError::new(what, "write slow cq"));
            }
            let by = clause.next().map_or(Ok(SLOW_CQ), time)?;
            VerbsFault::SlowCq { by }
        }
    };
    match clause.next() {
        Some(word) => {
            let why = "a fault at the verbs has no conditions; `;` ends it";
            Err(FaultError::new(word, why))
        }
        None => Ok(fault),
    }
}

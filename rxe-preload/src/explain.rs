//! What a person is told on stderr: what went wrong and what to do, once per kind of mistake.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Mutex;

use rxe_core::engine::Event;
use rxe_core::queue::Status;

use crate::config::{CONFIG, Explain};
use crate::ffi::Failure;
use crate::per_process::PerProcess;

/// A verb was refused.
pub(crate) fn failure(verb: &'static str, failure: &Failure) {
    if let Some(text) = &failure.text {
        once(verb, text);
    }
}

/// A request completed with an error.
pub(crate) fn completion(qpn: u32, status: Status) {
    if status == Status::Success || CONFIG.explain == Explain::Off {
        return;
    }
    // What was flushed is explained by what came before it; a program that ends a connection itself
    // has it all flushed and no failure.
    if status == Status::WorkRequestFlushed && CONFIG.explain != Explain::All {
        return;
    }
    once(
        status.verbs_str(),
        &format!("QP 0x{qpn:06x}: a request failed with {status}: {}", status.explain()),
    );
}

/// Something happened in an engine that the program may not notice.
pub(crate) fn event(event: &Event) {
    let (kind, text) = match event {
        _ if CONFIG.explain == Explain::All => ("event", event.to_string()),
        Event::ResponderFailed { qpn, fault } => (
            "the peer's mistake",
            format!(
                "QP {qpn} has failed: its peer did what it must not ({fault}); what is posted on it is \
             now flushed, and the peer gets an error completion"
            ),
        ),
        Event::RnrNakReceived { qpn, .. } => (
            "no receive",
            format!(
                "QP {qpn}: the peer has no receive posted (RNR): it should post receives before this \
             side sends; trying again as rnr_retry says"
            ),
        ),
        Event::CqOverflow { qpn, .. } => (
            "overflow",
            format!(
                "a completion queue of QP {qpn} is full and completions are lost: create it with room \
             for all requests that may be outstanding (cqe), or poll it more often"
            ),
        ),
        Event::RequestFailed { qpn, status, detail: Some(detail) } => {
            ("local memory", format!("QP {qpn}: {status}: {}", detail.explain()))
        }
        _ => return,
    };
    once(kind, &text);
}

/// Says something the first time that this kind of thing happens.
pub(crate) fn once(kind: &str, text: &str) {
    if CONFIG.explain == Explain::Off {
        return;
    }
    static SAID: PerProcess<Mutex<HashSet<String>>> = PerProcess::new();
    // Numbers differ from time to time; the kind of mistake does not.
    let words: String = text.chars().filter(|c| !c.is_ascii_digit()).take(40).collect();
    let said = SAID.get().lock();
    let first = said.is_ok_and(|mut said| said.insert(format!("{kind}: {words}")));
    if first || CONFIG.explain == Explain::All {
        say(&format!("{kind}: {text}"));
    }
}

/// Writes a line to stderr, if it can be written to: a program may have closed it, and what it loses
/// by that is this line only.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "rxe: {text}");
}

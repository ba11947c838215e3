//! Explains each kind of mistake only once, unless `RXE_EXPLAIN` is `all`.

use rxe_sys::PerProcess;
use std::collections::HashSet;
use std::sync::{Mutex, RwLock};

use crate::config::{CONFIG, Explain};
use crate::stderr;

/// Explains why a verb failed.
pub(crate) fn refused(verb: &'static str, why: Option<&str>) {
    if let Some(text) = why {
        once(verb, text);
    }
}

/// Explains a missing answer by the packets that the kernel has refused to send.
pub(crate) fn unsent(device: &str, counters: &rxe_net::Counters) {
    for (count, why) in [
        (
            counters.tx_unreachable,
            "the system has no route there or finds no neighbour (`ip neigh`)",
        ),
        (counters.tx_denied, "a firewall rule of this host forbids them"),
        (counters.tx_down, "the interface is down"),
        (counters.tx_too_big, "they are larger than the link's MTU"),
        (counters.tx_bad_address, "the device has no such address any more"),
    ] {
        if count > 0 {
            once("unsent", &format!("{count} packets could not leave {device}: {why}"));
        }
    }
}

/// Writes an explanation, if it is the first of its kind.
pub(crate) fn once(kind: &str, text: &str) {
    if CONFIG.explain == Explain::Off {
        return;
    }
    static SAID: PerProcess<Mutex<HashSet<String>>> = PerProcess::new();
    let said = SAID.get().lock();
    let first = said.is_ok_and(|mut said| said.insert(format!("{kind}: {}", gist(text))));
    if first || CONFIG.explain == Explain::All {
        stderr::line(&format!("{kind}: {text}"));
    }
}

/// Returns whether to explain that this kind of queue was full: only the first time.
pub(crate) fn fills(queue: &'static str) -> bool {
    static SAID: PerProcess<RwLock<Vec<&'static str>>> = PerProcess::new();
    if CONFIG.explain == Explain::All {
        return true;
    }
    let said = SAID.get();
    if CONFIG.explain == Explain::Off || said.read().is_ok_and(|said| said.contains(&queue)) {
        return false;
    }
    said.write().is_ok_and(|mut said| {
        said.push(queue);
        true
    })
}

/// Returns the text without words that contain digits.
/// The rest identifies the kind of mistake, because only the numbers differ between its
/// occurrences.
fn gist(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::gist;

    #[test]
    fn the_same_mistake_with_other_numbers_is_the_same() {
        let of = |qp, rkey| gist(&format!("QP {qp}: there is no rkey {rkey} here"));
        assert_eq!(of("0x0000fe", "0xabcdef12,"), of("0xa00001", "0x00000001,"));
        assert_eq!(of("0x1", "0x2"), "QP there is no rkey here");
        assert_ne!(of("0x1", "0x2"), gist("QP 0x1: there is no lkey 0x2 here"));
    }
}

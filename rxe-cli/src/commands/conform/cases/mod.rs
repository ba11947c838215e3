//! The cases.
//! Their rules and allowed answers come from `docs/en/project/conformance.md`, the catalogue for
//! the engine's own tests, as far as they are visible from outside. Where the specification leaves
//! a choice, every allowed answer is accepted.

mod atomic_write;
mod cm_asked;
mod cm_asks;
mod cm_ended;
mod cm_malformed;
mod cm_queries;
mod duplicates;
mod exchanges;
mod flush;
mod memory;
mod messages;
mod order;
mod psn;
mod receives;
mod requester;
mod retries;
mod shared;
mod structure;
mod unreliable;
mod windows;
mod xrc_initiator;
mod xrc_target;

use super::case::Group;

/// All groups, in the order in which they are played.
/// The peer is the requester in `requester`, `retries` and `xrc_initiator`, and in cases whose
/// names say so. In all others the peer is the responder. The groups of the communication manager
/// need a peer program with librdmacm. The very last case is there because some peers have no queue
/// pair 1 after it.
pub(super) const ALL: &[Group] = &[
    Group { name: "messages", cases: messages::CASES },
    Group { name: "psn", cases: psn::CASES },
    Group { name: "duplicates", cases: duplicates::CASES },
    Group { name: "order", cases: order::CASES },
    Group { name: "memory", cases: memory::CASES },
    Group { name: "windows", cases: windows::CASES },
    Group { name: "receives", cases: receives::CASES },
    Group { name: "shared", cases: shared::CASES },
    Group { name: "atomic_writes", cases: atomic_write::CASES },
    Group { name: "flushes", cases: flush::CASES },
    Group { name: "structure", cases: structure::CASES },
    Group { name: "unreliable", cases: unreliable::CASES },
    Group { name: "xrc_target", cases: xrc_target::CASES },
    Group { name: "xrc_initiator", cases: xrc_initiator::CASES },
    Group { name: "requester", cases: requester::CASES },
    Group { name: "retries", cases: retries::CASES },
    Group { name: "cm_asked", cases: cm_asked::CASES },
    Group { name: "cm_asks", cases: cm_asks::CASES },
    Group { name: "cm_ended", cases: cm_ended::CASES },
    Group { name: "cm_queries", cases: cm_queries::CASES },
    Group { name: "cm_malformed", cases: cm_malformed::CASES },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::ALL;

    #[test]
    fn each_case_has_a_name_of_its_own_a_section_and_words() {
        let mut names = BTreeSet::new();
        for case in ALL.iter().flat_map(|group| group.cases) {
            let name = case.name;
            assert!(names.insert(name), "{name} twice");
            assert!(name.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert!(case.rule.starts_with(|c: char| c.is_ascii_digit() || c == 'A'), "{name}");
            assert!(!case.sends.is_empty() && !case.allows.is_empty(), "{name}");
        }
        for group in ALL {
            assert!(names.insert(group.name), "{} is a case as well", group.name);
        }
    }
}

use std::collections::HashSet;

use super::*;

fn entries() -> impl Iterator<Item = &'static Entry> {
    SECTIONS.iter().flat_map(|section| section.entries)
}

#[test]
fn everything_that_the_engine_reports_has_its_own_entry() {
    let mut seen = HashSet::new();
    for status in Status::ALL {
        let entry = of_status(status);
        assert!(
            entry.title.en.contains(&format!("status {}, {status}", status.code())),
            "{status}"
        );
        assert!(seen.insert(entry.id));
    }
    for code in NakCode::ALL {
        let entry = of_nak(code);
        assert!(entry.title.en.starts_with(&format!("NAK code {}, ", code as u8)), "{code:?}");
        assert!(seen.insert(entry.id));
    }
    for state in QpState::ALL {
        assert_eq!(of_state(state).id, state.name());
        assert!(seen.insert(of_state(state).id));
    }
    for kind in AsyncKind::ALL {
        assert_eq!(of_event(kind).names[0], kind.name());
        assert!(seen.insert(of_event(kind).id));
    }
    assert_eq!(seen.len(), 12 + 5 + 7 + 12);
}

/// The lists `ALL` are written by hand: each value that has a number is in one.
#[test]
fn the_lists_are_complete() {
    let codes: Vec<_> = (0..32).filter_map(NakCode::from_code).collect();
    assert_eq!(codes, NakCode::ALL);
    let states: Vec<_> = (0..32).filter_map(QpState::from_verbs).collect();
    assert_eq!(states, QpState::ALL);
    // Adding a value to these enums makes this match incomplete: add it to ALL, too.
    let _ = |status: Status| match status {
        Status::Success
        | Status::LocalLength
        | Status::LocalQpOperation
        | Status::LocalProtection
        | Status::WorkRequestFlushed
        | Status::MemoryWindowBind
        | Status::BadResponse
        | Status::RemoteInvalidRequest
        | Status::RemoteAccess
        | Status::RemoteOperation
        | Status::RetryExceeded
        | Status::RnrRetryExceeded => {}
    };
}

#[test]
fn all_statuses_of_verbs_are_known() {
    for code in 0..24 {
        let entry = of_status_code(code).unwrap();
        assert!(entry.title.en.contains(&code.to_string()), "{code}: {}", entry.title.en);
    }
    assert!(of_status_code(24).is_none());
}

#[test]
fn every_text_is_there_in_both_languages() {
    let han = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    for entry in entries() {
        let texts = [entry.what].into_iter().chain(entry.causes.iter().copied());
        for text in texts.chain(entry.remedies.iter().copied()) {
            assert!(
                text.en.ends_with(['.', '?']) && text.en.is_ascii() | text.en.contains(['µ', '…']),
                "{}",
                text.en
            );
            assert!(!text.en.chars().any(han), "{}", text.en);
            let chinese = text.zh.chars().any(han) || text.zh.contains("ERROR");
            assert!(chinese && text.zh.ends_with('。'), "{}", text.zh);
            assert!(!text.en.contains("  ") && !text.zh.contains("  "), "{}", text.en);
        }
        assert!(!entry.title.en.is_empty() && !entry.title.zh.is_empty());
        assert!(!entry.remedies.is_empty(), "{} says nothing of what to do", entry.id);
    }
}

#[test]
fn names_are_unique_and_phrases_are_in_lower_case() {
    let mut names = HashSet::new();
    let mut phrases = HashSet::new();
    for entry in entries() {
        for name in [&entry.id].into_iter().chain(entry.names) {
            assert!(names.insert(name.to_lowercase()), "{name} twice");
        }
        for phrase in entry.phrases {
            assert_eq!(*phrase, phrase.to_lowercase());
            assert!(phrases.insert(phrase), "{phrase} twice");
        }
    }
}

#[test]
fn a_status_as_a_sentence_says_what_it_is_and_what_to_do() {
    assert_eq!(status(Status::Success), "the request was carried out");
    assert_eq!(
        status(Status::RetryExceeded),
        "the peer did not answer: is it alive, its QP in RTR or RTS with our QPN, addresses and path \
         MTU, and UDP port 4791 not blocked by a firewall?"
    );
}

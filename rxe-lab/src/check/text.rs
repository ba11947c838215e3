//! Sentences and times that several kinds of findings share.

use super::finding::Kind;

/// Explains why a packet was missing that is captured whole for the first time.
/// `is_damaged` means that it was captured with a wrong ICRC before.
pub(super) fn lost_before(kind: Kind, is_damaged: bool) -> String {
    let what = match is_damaged {
        true => "It was damaged (wrong ICRC)",
        false => "It was lost before the capture point",
    };
    match kind {
        Kind::SequenceNak => format!(
            "{what}: the responder missed it, sent a NAK (PSN sequence error), and the requester sent it again."
        ),
        _ => format!("{what}, and the requester sent it again."),
    }
}

/// Explains why packets are retransmitted from one on that was sent before the capture began.
pub(super) fn lost_unseen(kind: Kind) -> String {
    match kind {
        Kind::SequenceNak => {
            "The responder missed a packet that was sent before this capture began, or was lost before the \
             capture point, and sent a NAK (PSN sequence error). The requester went back to it."
                .to_owned()
        }
        _ => lost_after(kind),
    }
}

/// Explains why a packet is retransmitted that was captured before.
pub(super) fn lost_after(kind: Kind) -> String {
    match kind {
        Kind::SequenceNak => {
            "The responder missed it and sent a NAK (PSN sequence error): it was lost \
                              or overtaken after the capture point."
        }
        Kind::Rnr => "The receiver had no receive request posted (RNR NAK).",
        _ => {
            "A later response came before its own: the response was lost, and the requester asks \
              again."
        }
    }
    .to_owned()
}

/// Explains that responses cannot be distinguished from those of another queue pair.
pub(super) fn unexplained(what: &str) -> String {
    format!(
        "{what}. The cause is not known, because several queue pairs may have had these responses: \
         capture from the connection's beginning, or this connection alone."
    )
}

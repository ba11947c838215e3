//! Findings of the analyst: errors, losses, and facts about the capture.

use std::fmt;
use std::time::Duration;

use crate::frame::Address;

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of finding.
    pub kind: Kind,
    /// How certain the finding is.
    pub confidence: Confidence,
    /// The source of the packets concerned. `to` is their destination.
    pub from: Address,
    #[expect(missing_docs, reason = "with `from`")]
    pub to: Address,
    /// The destination QP of the packets concerned.
    pub dest_qp: u32,
    /// The PSN concerned, the first time.
    pub psn: u32,
    /// The first [`MAX_FRAMES`] frames that show the finding, in ascending order.
    pub frames: Vec<u64>,
    /// The number of packets that were retransmitted because of it.
    pub packets: u64,
    /// How often it occurred in this direction.
    pub count: u64,
    /// The times of the first and the last occurrence, since the first frame of the capture.
    pub span: Span,
    /// An explanation: what happened, and the likely cause. Figures are those of the first occurrence.
    pub text: String,
}

/// The times of a first and a last event, since the first frame of the capture.
pub type Span = (Duration, Duration);

/// The most frames that a finding names. A finding that goes on has more.
pub const MAX_FRAMES: usize = 8;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// A fact about the capture. No device did anything wrong.
    Note,
    /// The protocol repaired a problem: a loss, or a receiver that was not ready.
    Warning,
    /// A device violated a rule, or a request failed.
    Error,
}

/// How certain a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Confidence {
    /// The capture is consistent with the finding, and with other causes.
    Possible,
    /// Other causes are unusual.
    Likely,
    /// The frames prove the finding.
    Certain,
}

macro_rules! kinds {
    ($(#[doc = $doc:literal] $kind:ident = $name:literal, $severity:ident, $rule:literal;)*) => {
        /// The kinds of findings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $doc] $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the name of the kind in the output.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// Returns the documentation of the kind, as a sentence without its full stop.
            pub fn sentence(self) -> &'static str {
                let doc = match self { $(Self::$kind => $doc,)* };
                doc.trim().trim_end_matches('.')
            }

            /// Returns how serious a finding of this kind is.
            pub fn severity(self) -> Severity {
                match self { $(Self::$kind => Severity::$severity,)* }
            }

            /// Returns the section of the InfiniBand specification that states the rule.
            pub fn rule(self) -> &'static str {
                match self { $(Self::$kind => $rule,)* }
            }
        }
    };
}

kinds! {
    /// Requests were sent again after a NAK for a PSN sequence error.
    SequenceNak = "sequence-nak", Warning, "IBTA 9.7.5.2";
    /// Requests were sent again because a later response has arrived.
    ImpliedNak = "implied-nak", Warning, "IBTA 9.7.5.1.1";
    /// Requests were sent again because no response came in time.
    Timeout = "timeout", Warning, "IBTA 9.7.6";
    /// Requests were sent again, and none on the way had asked for an acknowledgement.
    AckNotRequested = "ack-not-requested", Warning, "IBTA 9.7.5.1";
    /// Requests were sent again that had been answered.
    AckLost = "ack-lost", Warning, "IBTA 9.7.5.1, C9-105";
    /// Requests were sent again before their answer came, which was late.
    AckLate = "ack-late", Warning, "IBTA 9.7.6, C9-105";
    /// Requests were sent again or came late, and it is not known which responses are theirs.
    Unexplained = "unexplained", Warning, "IBTA 9.7.4";
    /// The receiver had no receive request.
    Rnr = "rnr-nak", Warning, "IBTA 9.7.5.2.8";
    /// The network has delivered a packet twice.
    Duplicate = "duplicated", Warning, "IBTA 9.7.4, C9-105";
    /// The network has changed the order of packets.
    Reordered = "reordered", Warning, "IBTA 9.7.4";
    /// The requester sends more messages than the responder's credits permit.
    CreditLimit = "credit-limit", Warning, "IBTA 9.7.7.2";
    /// A packet of an unreliable connection is missing.
    Lost = "lost", Warning, "IBTA 9.8.2";
    /// Datagrams to one queue pair have two Q_Keys by turns.
    QKey = "q-key", Warning, "IBTA 9.6.1";
    /// A request was sent several times and never answered.
    Unanswered = "unanswered", Error, "IBTA 9.9.2";
    /// A message was refused by RNR NAKs and never taken.
    RnrNever = "rnr-never", Error, "IBTA 9.7.5.2.8";
    /// The responder has refused the access.
    RemoteAccess = "remote-access-error", Error, "IBTA 9.7.5.2";
    /// The responder calls the request invalid.
    InvalidRequest = "invalid-request", Error, "IBTA 9.7.5.2";
    /// The responder cannot go on.
    RemoteOperational = "remote-operational-error", Error, "IBTA 9.7.5.2";
    /// An opcode does not follow the one before.
    OpcodeOrder = "opcode-order", Error, "IBTA 9.7.4";
    /// A request was sent again with another opcode.
    Changed = "changed-request", Error, "IBTA 9.7.4";
    /// A length does not fit the path MTU or the request.
    Length = "length", Error, "IBTA 9.7.4, 9.8.3";
    /// A response is not one to the request with its PSN.
    Response = "response", Error, "IBTA 9.7.5.1";
    /// A repeated atomic was answered differently.
    Atomic = "atomic-replay", Error, "IBTA 9.4.5, C9-105";
    /// Message sequence numbers do not fit the messages.
    Msn = "msn", Error, "IBTA 9.7.7";
    /// Credits do not fit the messages that took receives.
    Credits = "credits", Error, "IBTA 9.7.7.2";
    /// An ICRC is wrong.
    Icrc = "icrc", Error, "IBTA 7.8.1";
    /// A packet's structure is wrong.
    Malformed = "malformed", Error, "IBTA 9.6";
    /// All packets of a sender have a wrong ICRC: they were captured before it was computed.
    IcrcArtefact = "icrc-not-computed", Note, "IBTA 7.8.1";
    /// Nearly every packet comes twice: it was captured at two places.
    TwoPlaces = "two-places", Note, "IBTA 9.7.4";
    /// Packets were answered that the capture does not have.
    NotCaptured = "not-captured", Note, "IBTA 9.7.5.1";
    /// Frames of several packets were captured in part.
    CutFrames = "frames-cut", Note, "IBTA 9.7.2";
    /// PSNs of a queue pair that sends datagrams are missing.
    DatagramsMissing = "datagrams-missing", Note, "IBTA 9.8.3";
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        })
    }
}

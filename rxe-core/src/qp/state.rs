//! The state machine as a table: each transition with the attributes that it requires and allows.
//! IBTA 10.3.1 and table 91 (11.2.5.2).

use crate::error::VerbsError;
use crate::types::{AttrMask, QpState, QpType};

/// One transition of one service. The masks leave out [`AttrMask::STATE`], which all transitions need.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transition {
    /// The state before.
    pub from: QpState,
    /// The state after. Equals `from` if only attributes change.
    pub to: QpState,
    /// Attributes that the call must set.
    pub required: AttrMask,
    /// Attributes that the call may set.
    pub optional: AttrMask,
}

/// Checks that a transition exists, that the mask has all attributes that the transition requires, and
/// that it allows all others. Any state may go to RESET and to ERR, with no attribute but the state.
///
/// # Errors
/// [`VerbsError::InvalidTransition`], [`VerbsError::MissingAttributes`] or
/// [`VerbsError::UnexpectedAttributes`].
pub fn check_modify(
    service: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), VerbsError> {
    let given = mask - AttrMask::STATE;
    let (required, optional) = match to {
        QpState::Reset | QpState::Err => (AttrMask::empty(), AttrMask::empty()),
        _ => transitions(service)
            .iter()
            .find(|t| t.from == from && t.to == to)
            .map(|t| (t.required, t.optional))
            .ok_or(VerbsError::InvalidTransition { from, to })?,
    };
    let missing = required - given;
    if !missing.is_empty() {
        return Err(VerbsError::MissingAttributes { from, to, missing });
    }
    let unexpected = given - required - optional;
    if !unexpected.is_empty() {
        return Err(VerbsError::UnexpectedAttributes { from, to, unexpected });
    }
    Ok(())
}

/// Returns the transitions of a service, without those to RESET and ERR, which every state has.
pub fn transitions(service: QpType) -> &'static [Transition] {
    match service {
        QpType::Rc => &RC,
        QpType::Uc => &UC,
        QpType::Ud => &UD,
        QpType::XrcSend => &XRC_SEND,
        QpType::XrcRecv => &XRC_RECV,
    }
}

/// Returns the union of some masks; a `const fn`, for the tables.
const fn bits(list: &[AttrMask]) -> AttrMask {
    let mut all = AttrMask::empty();
    let mut i = 0;
    while i < list.len() {
        all = all.union(list[i]);
        i += 1;
    }
    all
}

const fn go(
    from: QpState,
    to: QpState,
    required: &[AttrMask],
    optional: &[AttrMask],
) -> Transition {
    Transition { from, to, required: bits(required), optional: bits(optional) }
}

use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};

const ACCESS: AttrMask = AttrMask::ACCESS_FLAGS;
const ALT: AttrMask = AttrMask::ALT_PATH;
const AV: AttrMask = AttrMask::AV;
const CUR: AttrMask = AttrMask::CUR_STATE;
const DEST: AttrMask = AttrMask::DEST_QPN;
const DEST_RD: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC;
const MIG: AttrMask = AttrMask::PATH_MIG_STATE;
const MTU: AttrMask = AttrMask::PATH_MTU;
const NOTIFY: AttrMask = AttrMask::EN_SQD_ASYNC_NOTIFY;
const PKEY: AttrMask = AttrMask::PKEY_INDEX;
const PORT: AttrMask = AttrMask::PORT;
const QKEY: AttrMask = AttrMask::QKEY;
const RATE: AttrMask = AttrMask::RATE_LIMIT;
const RD: AttrMask = AttrMask::MAX_QP_RD_ATOMIC;
const RETRY: AttrMask = AttrMask::RETRY_CNT;
const RNR: AttrMask = AttrMask::RNR_RETRY;
const RNR_TIMER: AttrMask = AttrMask::MIN_RNR_TIMER;
const RQ_PSN: AttrMask = AttrMask::RQ_PSN;
const SQ_PSN: AttrMask = AttrMask::SQ_PSN;
const TIMEOUT: AttrMask = AttrMask::TIMEOUT;

static RC: [Transition; 8] = [
    go(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    go(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    go(Init, Rtr, &[AV, MTU, DEST, RQ_PSN, DEST_RD, RNR_TIMER], &[ALT, ACCESS, PKEY]),
    go(Rtr, Rts, &[TIMEOUT, RETRY, RNR, SQ_PSN, RD], &[CUR, ALT, ACCESS, RNR_TIMER, MIG, RATE]),
    go(Rts, Rts, &[], &[CUR, ACCESS, ALT, MIG, RNR_TIMER, RATE]),
    go(Rts, Sqd, &[], &[NOTIFY]),
    go(Sqd, Rts, &[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
    go(
        Sqd,
        Sqd,
        &[],
        &[PORT, AV, TIMEOUT, RETRY, RNR, RD, DEST_RD, ALT, ACCESS, PKEY, RNR_TIMER, MIG],
    ),
];

static UC: [Transition; 9] = [
    go(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    go(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    go(Init, Rtr, &[AV, MTU, DEST, RQ_PSN], &[ALT, ACCESS, PKEY]),
    go(Rtr, Rts, &[SQ_PSN], &[CUR, ALT, ACCESS, MIG, RATE]),
    go(Rts, Rts, &[], &[CUR, ACCESS, ALT, MIG, RATE]),
    go(Rts, Sqd, &[], &[NOTIFY]),
    go(Sqd, Rts, &[], &[CUR, ALT, ACCESS, MIG]),
    go(Sqd, Sqd, &[], &[AV, ALT, ACCESS, PKEY, MIG]),
    go(Sqe, Rts, &[], &[CUR, ACCESS]),
];

static XRC_SEND: [Transition; 8] = [
    go(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    go(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    go(Init, Rtr, &[AV, MTU, DEST, RQ_PSN], &[ALT, ACCESS, PKEY]),
    go(Rtr, Rts, &[TIMEOUT, RETRY, RNR, SQ_PSN, RD], &[CUR, ALT, ACCESS, MIG, RATE]),
    go(Rts, Rts, &[], &[CUR, ACCESS, ALT, MIG, RATE]),
    go(Rts, Sqd, &[], &[NOTIFY]),
    go(Sqd, Rts, &[], &[CUR, ALT, ACCESS, MIG]),
    go(Sqd, Sqd, &[], &[PORT, AV, TIMEOUT, RETRY, RNR, RD, ALT, ACCESS, PKEY, MIG]),
];

static XRC_RECV: [Transition; 8] = [
    go(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    go(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    go(Init, Rtr, &[AV, MTU, DEST, RQ_PSN, DEST_RD, RNR_TIMER], &[ALT, ACCESS, PKEY]),
    go(Rtr, Rts, &[TIMEOUT, SQ_PSN], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
    go(Rts, Rts, &[], &[CUR, ACCESS, ALT, MIG, RNR_TIMER]),
    go(Rts, Sqd, &[], &[NOTIFY]),
    go(Sqd, Rts, &[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
    go(Sqd, Sqd, &[], &[PORT, AV, TIMEOUT, DEST_RD, ALT, ACCESS, PKEY, RNR_TIMER, MIG]),
];

static UD: [Transition; 9] = [
    go(Reset, Init, &[PKEY, PORT, QKEY], &[]),
    go(Init, Init, &[], &[PKEY, PORT, QKEY]),
    go(Init, Rtr, &[], &[PKEY, QKEY]),
    go(Rtr, Rts, &[SQ_PSN], &[CUR, QKEY, RATE]),
    go(Rts, Rts, &[], &[CUR, QKEY, RATE]),
    go(Rts, Sqd, &[], &[NOTIFY]),
    go(Sqd, Rts, &[], &[CUR, QKEY]),
    go(Sqd, Sqd, &[], &[PKEY, QKEY]),
    go(Sqe, Rts, &[], &[CUR, QKEY]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transition_takes_what_it_requires_and_allows_and_no_less_or_more() {
        let all = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
        for service in all {
            for t in transitions(service) {
                let check = |mask| check_modify(service, t.from, t.to, mask | AttrMask::STATE);
                assert_eq!(check(t.required), Ok(()));
                assert_eq!(check(t.required | t.optional), Ok(()));
                for bit in t.required.iter() {
                    let err = check(t.required - bit).unwrap_err();
                    assert!(
                        matches!(err, VerbsError::MissingAttributes { missing, .. } if missing == bit)
                    );
                }
                for bit in (AttrMask::all() - t.required - t.optional - AttrMask::STATE).iter() {
                    let err = check(t.required | bit).unwrap_err();
                    assert!(
                        matches!(err, VerbsError::UnexpectedAttributes { unexpected, .. } if unexpected == bit)
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_no_transition() {
        let all: Vec<_> = QpState::ALL.into_iter().collect();
        for &from in &all {
            for &to in &all {
                let result = check_modify(QpType::Rc, from, to, AttrMask::STATE);
                let known = RC.iter().any(|t| t.from == from && t.to == to)
                    || matches!(to, QpState::Reset | QpState::Err);
                let refused = matches!(result, Err(VerbsError::InvalidTransition { .. }));
                assert_eq!(refused, !known, "{from:?} to {to:?}");
            }
        }
    }
}

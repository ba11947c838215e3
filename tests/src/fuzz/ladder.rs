//! The transitions of a queue pair of each service from RESET to RTS.

use rxe_core::qp::{AttrMask, QpState, QpType};

/// Returns the transitions from RESET to RTS: states and masks.
pub(super) fn ladder(service: QpType) -> [(QpState, AttrMask); 3] {
    let common = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    let path =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let responds = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let sends = AttrMask::STATE | AttrMask::SQ_PSN;
    let requests =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let (init, rtr, rts) = match service {
        QpType::Rc => (AttrMask::ACCESS_FLAGS, path | responds, sends | requests),
        QpType::Uc => (AttrMask::ACCESS_FLAGS, path, sends),
        QpType::Ud => (AttrMask::QKEY, AttrMask::STATE, sends),
        QpType::XrcSend => (AttrMask::ACCESS_FLAGS, path, sends | requests),
        QpType::XrcRecv => (AttrMask::ACCESS_FLAGS, path | responds, sends | AttrMask::TIMEOUT),
    };
    [(QpState::Init, common | init), (QpState::Rtr, rtr), (QpState::Rts, rts)]
}

//! Helpers that the tests of shards share.

use rxe_core::VerbsError;
use rxe_core::engine::Engine;
use rxe_core::qp::{AttrMask, QpAttr, QpState, QpType};
use rxe_core::types::{Qpn, Time};

/// Takes a connected queue pair from RESET to RTS. Uses the attributes of `attr` that these states
/// need.
pub(super) fn ready_to_send(
    engine: &mut Engine,
    now: Time,
    qpn: Qpn,
    service: QpType,
    mut attr: QpAttr,
) -> Result<(), VerbsError> {
    let to_init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let mut to_rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let mut to_rts = AttrMask::SQ_PSN;
    if service == QpType::Rc {
        to_rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        to_rts |= AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
    }
    for (state, mask) in [(QpState::Init, to_init), (QpState::Rtr, to_rtr), (QpState::Rts, to_rts)]
    {
        attr.qp_state = state;
        engine.modify_qp(now, qpn, &attr, mask | AttrMask::STATE)?;
    }
    Ok(())
}

//! Modifying and querying the attributes of a queue pair. IBTA 11.2.5.2, 11.2.5.3.

use std::ffi::{c_int, c_uint};

use rxe_verbs::{
    Access, AckTimeout, AddressVector, AttrMask, Gid, Mtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn,
    RnrTimer,
};

use super::abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use super::lid;
use super::objects::{Context, Qp, from_cap};
use super::query::gids;
use crate::config::CONFIG;
use crate::explain::once;
use crate::faults::may_fail;
use crate::ffi::{Failure, Outcome, errno_of};

pub(super) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    if qp.is_null() || attr.is_null() {
        let what = if qp.is_null() { "the queue pair" } else { "attr" };
        return errno_of("ibv_modify_qp", Err(Failure::null(what)));
    }
    // SAFETY: a queue pair and the caller's structure.
    let (this, attr) = unsafe { (Qp::of(qp), &*attr) };
    // SAFETY: a queue pair's context is open.
    let owner = unsafe { Context::of((*qp).context) };
    // SAFETY: as above.
    let known = unsafe { Qp::known(qp) };
    let outcome = known.and_then(|_| owner.check()).and_then(|()| {
        may_fail("ibv_modify_qp")?;
        let mask = mask.cast_unsigned() & !ignored(this.pair.service()).bits();
        let (ours, mask) = attributes(owner, attr, mask)?;
        this.pair.modify(&ours, mask)?;
        if mask.contains(AttrMask::STATE) {
            owner.watch.entered(this.pair.qpn().value(), ours.qp_state);
            // SAFETY: the header's own field; no reference to it exists.
            unsafe { (*qp).state = attr.qp_state };
        }
        if mask.contains(AttrMask::DEST_QPN) {
            owner.watch.connected(this.pair.qpn().value(), ours.dest_qp_num.value());
        }
        Ok(())
    });
    errno_of("ibv_modify_qp", outcome.map_err(|failure| failure.of_qp(this.number)))
}

/// Returns the timeout that a program asks for, or the user's minimum if that is longer.
fn at_least(asked: AckTimeout, least: Option<AckTimeout>) -> AckTimeout {
    match least {
        Some(least) if asked != AckTimeout::INFINITE => asked.max(least),
        _ => asked,
    }
}

/// Returns the attributes that are ignored for a type of queue pair.
/// Programs set them because an RC queue pair needs them. The kernel's uverbs ignores exactly
/// these, so they are not reported as mistakes.
fn ignored(service: QpType) -> AttrMask {
    match service {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY,
        QpType::Rc | QpType::Uc | QpType::Ud => AttrMask::empty(),
    }
}

/// Returns the attributes that the mask names.
/// Others are not read: programs leave them uninitialised.
fn attributes(context: &Context, attr: &ibv_qp_attr, mask: c_uint) -> Outcome<(QpAttr, AttrMask)> {
    let mask = AttrMask::from_bits(mask)
        .ok_or_else(|| invalid("attr_mask", format!("{mask:#x} has bits without a meaning")))?;
    let mut ours = QpAttr::default();
    let state = |name, number: c_uint| {
        QpState::from_verbs(number).ok_or_else(|| invalid(name, format!("there is no {number}")))
    };
    if mask.contains(AttrMask::STATE) {
        ours.qp_state = state("qp_state", attr.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        ours.cur_qp_state = state("cur_qp_state", attr.cur_qp_state)?;
    }
    if mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) {
        ours.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        ours.qp_access_flags = Access::from_bits_truncate(attr.qp_access_flags);
    }
    if mask.contains(AttrMask::PKEY_INDEX) {
        ours.pkey_index = attr.pkey_index;
    }
    if mask.contains(AttrMask::PORT) {
        ours.port_num = attr.port_num;
    }
    if mask.contains(AttrMask::QKEY) {
        ours.qkey = Qkey::new(attr.qkey);
    }
    if mask.contains(AttrMask::AV) {
        ours.ah_attr = address(context, &attr.ah_attr)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_verbs);
        ours.path_mtu =
            mtu.ok_or_else(|| invalid("path_mtu", format!("{}: 1 to 5", attr.path_mtu)))?;
    }
    if mask.contains(AttrMask::TIMEOUT) {
        let timeout = AckTimeout::new(attr.timeout)
            .ok_or_else(|| invalid("timeout", format!("{}: 0 to 31", attr.timeout)))?;
        ours.timeout = at_least(timeout, CONFIG.ack_timeout);
    }
    if mask.contains(AttrMask::MIN_RNR_TIMER) {
        // Only the low five bits count, because other providers copy just those into the RNR NAK.
        ours.min_rnr_timer = RnrTimer::from_wire(attr.min_rnr_timer);
    }
    if mask.contains(AttrMask::RETRY_CNT) {
        ours.retry_cnt = attr.retry_cnt;
    }
    if mask.contains(AttrMask::RNR_RETRY) {
        ours.rnr_retry = attr.rnr_retry;
    }
    if mask.contains(AttrMask::RQ_PSN) {
        ours.rq_psn = Psn::new(attr.rq_psn);
    }
    if mask.contains(AttrMask::SQ_PSN) {
        ours.sq_psn = Psn::new(attr.sq_psn);
    }
    if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) {
        ours.max_rd_atomic = attr.max_rd_atomic;
    }
    if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
        ours.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    }
    if mask.contains(AttrMask::DEST_QPN) {
        // Only the low 24 bits count, because other providers copy just those into packets.
        ours.dest_qp_num = Qpn::from_wire(attr.dest_qp_num);
    }
    Ok((ours, mask))
}

/// Returns the address vector of a peer.
/// On RoCE only a GID addresses a peer, unless `RXE_LIDS` is set.
pub(super) fn address(context: &Context, attr: &ibv_ah_attr) -> Outcome<AddressVector> {
    if attr.is_global == 0 && CONFIG.lids {
        let way = lid::towards(&gids(context), attr.dlid);
        let none =
            || invalid("ah_attr.is_global", "is 0, and this device has no LID: no IPv4 address");
        return match attr.dlid {
            0 => Err(invalid("ah_attr.dlid", "is 0: let the peer run with `rxe run --lids` too")),
            _ => way.ok_or_else(none),
        };
    }
    // Many programs leave is_global 0 if the peer has sent a GID of zeros.
    if attr.is_global == 0 && context.has_asked_for_gid() {
        let why = "is 0: RoCE peers are addressed by GID. This program has asked for its own, so the \
                   peer has probably sent a GID of zeros: the index that it was given is empty, or it \
                   was given none (-g INDEX; perftest: -x INDEX). Choose one there that is not empty \
                   (`rxe gids` or show_gids lists them). Otherwise set it to 1 and fill in grh here \
                   (the peer's dgid, the own sgid_index)";
        return Err(invalid("ah_attr.is_global", why));
    }
    if attr.is_global == 0 {
        let why = "is 0: RoCE peers are addressed by GID; set it to 1 and fill in grh (the peer's \
                   dgid, the own sgid_index; with the example programs: option -g INDEX, and with \
                   perftest -x INDEX, at both ends; a program that only knows LIDs: `rxe run \
                   --lids` at both ends)";
        return Err(invalid("ah_attr.is_global", why));
    }
    if attr.port_num != 1 {
        return Err(invalid(
            "ah_attr.port_num",
            format!("{}: there is only port 1", attr.port_num),
        ));
    }
    let flow_label = attr.grh.flow_label & 0xf_ffff;
    let dgid = Gid::from_bytes(attr.grh.dgid.raw);
    if flow_label != 0 && dgid.to_ip().is_ipv6() && labels_are_taken() {
        let text = "packets leave without their IPv6 flow label: another program on this host has a label for \
                    itself (/proc/net/ip6_flowlabel), and as long as it has, the system sends none that \
                    others choose. Nothing else is different";
        once("flow_label", text);
    }
    Ok(AddressVector {
        sgid_index: attr.grh.sgid_index.into(),
        dgid,
        flow_label,
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
    })
}

/// Returns whether a program on this host holds an IPv6 flow label that others may not use.
fn labels_are_taken() -> bool {
    std::fs::read_to_string("/proc/net/ip6_flowlabel").is_ok_and(|text| has_taken_label(&text))
}

/// Returns whether the text of `/proc/net/ip6_flowlabel` has such a label.
/// The second column is the sharing mode: 1 exclusive, 2 the process, 3 the user, 255 any.
fn has_taken_label(text: &str) -> bool {
    text.lines().any(|line| matches!(line.split_whitespace().nth(1), Some("1" | "2" | "3")))
}

/// Converts an address vector for programs, as the inverse of [`address`].
pub(crate) fn to_ah_attr(address: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: *address.dgid.as_bytes() },
            flow_label: address.flow_label,
            sgid_index: u8::try_from(address.sgid_index).unwrap_or(u8::MAX),
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

fn invalid(name: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(libc::EINVAL, format!("{name}: {why}"))
}

pub(super) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a queue pair, whose context is open.
    let outcome = unsafe { Qp::own(qp) }.and_then(|this| {
        may_fail("ibv_query_qp")?;
        let ours = this.pair.query()?;
        // SAFETY: the caller's structures, and the header's own fields.
        unsafe {
            attr.write(ibv_qp_attr { cap: from_cap(this.pair.cap()), ..from_attributes(&ours) });
            init.write(this.init_attr((*qp).qp_context));
            (*qp).state = ours.qp_state as c_uint;
        }
        Ok(())
    });
    errno_of("ibv_query_qp", outcome)
}

/// Converts the attributes of a queue pair for programs.
pub(crate) fn from_attributes(ours: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: ours.qp_state as c_uint,
        cur_qp_state: ours.qp_state as c_uint,
        path_mtu: ours.path_mtu.to_verbs().into(),
        qkey: ours.qkey.value(),
        rq_psn: ours.rq_psn.value(),
        sq_psn: ours.sq_psn.value(),
        dest_qp_num: ours.dest_qp_num.value(),
        qp_access_flags: ours.qp_access_flags.bits(),
        ah_attr: to_ah_attr(&ours.ah_attr),
        pkey_index: ours.pkey_index,
        en_sqd_async_notify: ours.en_sqd_async_notify.into(),
        sq_draining: ours.sq_draining.into(),
        max_rd_atomic: ours.max_rd_atomic,
        max_dest_rd_atomic: ours.max_dest_rd_atomic,
        min_rnr_timer: ours.min_rnr_timer.code(),
        port_num: ours.port_num,
        timeout: ours.timeout.code(),
        retry_cnt: ours.retry_cnt,
        rnr_retry: ours.rnr_retry,
        ..ibv_qp_attr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_only_some_may_use_are_taken() {
        let head = "Label S Owner  Users  Linger Expires  Dst                              Opt\n";
        let of = |share| {
            format!(
                "{head}00009 {share:<1} 0      1      6      6        00000000000000000000000000000001 0   \n"
            )
        };
        assert!(["1", "2", "3"].into_iter().all(|share| has_taken_label(&of(share))));
        assert!(!has_taken_label(&of("255")) && !has_taken_label(head));
    }

    #[test]
    fn only_xrc_has_attributes_without_a_use() {
        let unused = |service| ignored(service).iter().count();
        let all = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];
        assert_eq!(all.map(unused), [0, 0, 0, 2, 3]);
    }
}

//! The modify call: checks everything first, then changes everything. IBTA 11.2.5.2.

use super::congestion::Congestion;
use super::transport::{RecvSide, SendSide};
use super::{Qp, check_modify, view_of};
use crate::config::Config;
use crate::error::VerbsError;
use crate::mem::MemoryGuard;
use crate::rc::Controller;
use crate::service::{Ctx, QpView};
use crate::types::{AddressVector, AttrMask, QpAttr, QpState};
use crate::wire::NetHeader;

impl Qp {
    /// Changes the attributes that `mask` names.
    ///
    /// # Errors
    /// The transition, the mask or a value is not allowed. Nothing is changed then.
    pub(crate) fn modify(
        &mut self,
        ctx: &mut Ctx<'_>,
        config: &Config,
        new: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        let from = self.state();
        let to = if mask.contains(AttrMask::STATE) { new.qp_state } else { from };
        if mask.contains(AttrMask::CUR_STATE) && new.cur_qp_state != from {
            return Err(VerbsError::WrongCurrentState { actual: from });
        }
        check_modify(self.handle.init.service, from, to, mask)?;
        check_values(config, new, mask)?;
        let net = mask
            .contains(AttrMask::AV)
            .then(|| address(config, &new.ah_attr, self.net.src_port))
            .transpose()?;

        self.assign(new, mask);
        if let Some(control) = self.send.control() {
            control.set_limits(&self.attr);
        }
        if let Some(net) = net {
            self.net = net;
        }
        match (from, to) {
            (_, QpState::Reset) => self.reset(ctx.mem),
            (QpState::Err, QpState::Err) => {}
            (_, QpState::Err) => self.enter_error(ctx),
            (QpState::Init, QpState::Rtr) => {
                self.congestion = Congestion::new(config.congestion_control);
                self.recv = RecvSide::start(self.handle.init.service, self.attr.rq_psn);
                self.set_state(to);
            }
            (QpState::Rtr, QpState::Rts) => {
                self.send = SendSide::start(self.attr.sq_psn, &view_of!(self, ctx));
                self.set_state(to);
            }
            (QpState::Sqd | QpState::Sqe, QpState::Rts) => {
                self.send.resume();
                self.set_state(to);
            }
            (QpState::Rts, QpState::Sqd) => {
                self.set_state(to);
                self.send.drain();
                self.apply_outcome(ctx, Ok(()));
            }
            _ => self.set_state(to),
        }
        debug_assert_eq!(self.state(), to, "from {from:?}");
        debug_assert!(to != QpState::Err || self.send.deadline().is_none(), "all is flushed");
        Ok(())
    }

    /// Drops all posted requests, without completions, and the whole connection state. Completions that
    /// are not polled yet are removed, as hardware providers do, so that a program that uses the queue
    /// pair again does not take them for new ones. The QP's type 2 memory windows are unbound.
    pub(crate) fn reset(&mut self, mem: &MemoryGuard<'_>) {
        // The state changes first, so that nothing more is posted.
        self.set_state(QpState::Reset);
        self.send.forget(&self.handle);
        self.recv.forget(&self.handle);
        mem.unbind_all(self.handle.qpn);
        let init = &self.handle.init;
        init.send_cq.discard(self.handle.qpn);
        init.recv_cq.discard(self.handle.qpn);
        self.send = SendSide::idle(self.handle.init.service);
        self.recv = RecvSide::idle(self.handle.init.service);
        self.established = false;
        self.congestion = Congestion::default();
        self.attr = QpAttr::default();
        self.net = unconnected(self.net.src_port);
        debug_assert_eq!(self.state(), self.handle.state(), "programs see the same state");
        debug_assert!(
            self.peer().is_none() && self.deadline().is_none() && self.rate_limit().is_none()
        );
        debug_assert_eq!(self.inflight_weight(), 0);
    }

    fn assign(&mut self, new: &QpAttr, mask: AttrMask) {
        let attr = &mut self.attr;
        macro_rules! take {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) { attr.$field = new.$field; })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
            ACCESS_FLAGS => qp_access_flags,
            PKEY_INDEX => pkey_index,
            PORT => port_num,
            QKEY => qkey,
            AV => ah_attr,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            RQ_PSN => rq_psn,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            SQ_PSN => sq_psn,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            DEST_QPN => dest_qp_num,
        }
        debug_assert!(attr.retry_cnt <= 7 && attr.rnr_retry <= 7, "fields of 3 bits");
        debug_assert!(attr.pkey_index == 0 && attr.port_num <= 1, "checked before");
    }
}

/// Returns the network header of a queue pair without a peer. A QP never changes its source port.
pub(super) fn unconnected(src_port: u16) -> NetHeader {
    NetHeader { src_port, ..NetHeader::default() }
}

/// Returns the network header of packets to the address `av`.
///
/// # Errors
/// The GID index or the peer's GID is not valid, or their address families differ.
pub(crate) fn address(
    config: &Config,
    av: &AddressVector,
    src_port: u16,
) -> Result<NetHeader, VerbsError> {
    let bad = |name, why: String| VerbsError::InvalidAttribute { name, why };
    let local = config.gids.get(usize::from(av.sgid_index)).filter(|gid| !gid.is_zero());
    let Some(local) = local else {
        let why =
            format!("the GID table has no entry {}: it has {}", av.sgid_index, config.gids.len());
        return Err(bad("ah_attr.grh.sgid_index", why));
    };
    if av.dgid.is_zero() {
        let why = "it is zero, and RoCE needs the peer's GID. If the peer's program sent zeros, the GID \
                   index that it was given (-g, perftest: -x) is empty on its device: choose another one \
                   there (`rxe gids` or show_gids lists them). Otherwise set ah_attr.is_global and \
                   grh.dgid here";
        return Err(bad("ah_attr.grh.dgid", why.into()));
    }
    let (src, dst) = (local.to_ip(), av.dgid.to_ip());
    if src.is_ipv4() != dst.is_ipv4() {
        let why = format!(
            "own address {src} and peer {dst} are of different families: choose a GID index of \
             the peer's family"
        );
        return Err(bad("ah_attr.grh", why));
    }
    let mut net = NetHeader::outgoing(src, dst, src_port);
    net.tos = av.traffic_class;
    net.ttl = if av.hop_limit == 0 { 64 } else { av.hop_limit };
    if dst.is_ipv6() {
        net.flow_label = av.flow_label & 0xf_ffff;
    }
    debug_assert!(net.ttl > 0, "a packet must leave this host");
    debug_assert_eq!(net.src.is_ipv4(), net.dst.is_ipv4());
    debug_assert!(!net.dst.is_unspecified(), "a zero GID was refused");
    Ok(net)
}

fn check_values(config: &Config, new: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    let check = |bit, name, ok: bool, why: &dyn Fn() -> String| {
        if mask.contains(bit) && !ok {
            return Err(VerbsError::InvalidAttribute { name, why: why() });
        }
        Ok(())
    };
    let limit = config.limits.max_rd_atomic;
    check(AttrMask::PORT, "port_num", new.port_num == 1, &|| {
        format!("{}: the device has one port, 1", new.port_num)
    })?;
    check(AttrMask::PKEY_INDEX, "pkey_index", new.pkey_index == 0, &|| {
        format!("{}: the P_Key table has one entry, 0", new.pkey_index)
    })?;
    check(AttrMask::PATH_MTU, "path_mtu", new.path_mtu <= config.max_mtu, &|| {
        format!(
            "{} does not fit the link, whose largest path MTU is {} (active_mtu of ibv_query_port): use \
             at most that, the same at both ends, or give the interface a larger MTU",
            new.path_mtu.bytes(),
            config.max_mtu.bytes()
        )
    })?;
    check(AttrMask::RETRY_CNT, "retry_cnt", new.retry_cnt <= 7, &|| {
        format!("{}: at most 7", new.retry_cnt)
    })?;
    check(AttrMask::RNR_RETRY, "rnr_retry", new.rnr_retry <= 7, &|| {
        format!("{}: at most 7, which means forever", new.rnr_retry)
    })?;
    check(AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", new.max_rd_atomic <= limit, &|| {
        format!("{}: at most {limit}", new.max_rd_atomic)
    })?;
    check(
        AttrMask::MAX_DEST_RD_ATOMIC,
        "max_dest_rd_atomic",
        new.max_dest_rd_atomic <= limit,
        &|| format!("{}: at most {limit}", new.max_dest_rd_atomic),
    )?;
    check(AttrMask::DEST_QPN, "dest_qp_num", new.dest_qp_num.value() > 1, &|| {
        format!("{} is reserved: give the peer's QP number", new.dest_qp_num)
    })?;
    for (bit, what) in [
        (AttrMask::ALT_PATH, "alternate paths (RoCE has no path migration)"),
        (AttrMask::PATH_MIG_STATE, "path migration"),
        (AttrMask::RATE_LIMIT, "rate limits per QP"),
    ] {
        if mask.contains(bit) {
            return Err(VerbsError::Unsupported { what });
        }
    }
    Ok(())
}

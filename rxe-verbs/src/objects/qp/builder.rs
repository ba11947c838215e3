//! Creating queue pairs. IBTA 11.2.5.1.

use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::VerbsError;
use rxe_core::qp::{QpCap, QpInit, QpType};
use rxe_core::types::{Psn, Qkey};

use super::{QueuePair, invalid};
use crate::error::Result;
use crate::faults::RequestFaults;
use crate::objects::cq::CompletionQueue;
use crate::objects::pd::ProtectionDomain;
use crate::objects::srq::SharedReceiveQueue;
use crate::objects::xrc::XrcDomain;
use crate::observe::{Counted, Kind};

/// The attributes of a new queue pair; begin with [`ProtectionDomain::qp`].
#[derive(Clone, Debug)]
#[must_use = "a queue pair is made by build()"]
pub struct QpBuilder {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    service: QpType,
    cap: QpCap,
    sq_sig_all: bool,
    gid_index: Option<u16>,
    psn: Option<Psn>,
    srq: Option<SharedReceiveQueue>,
    xrc: Option<XrcDomain>,
    qkey: Qkey,
    block_own_multicast: bool,
}

impl ProtectionDomain {
    /// Begins a queue pair with one completion queue for sends and receives.
    pub fn qp(&self, cq: &CompletionQueue) -> QpBuilder {
        self.qp_with(cq, cq)
    }

    /// Begins a queue pair with separate completion queues for sends and receives.
    pub fn qp_with(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self.clone(), send_cq.clone(), recv_cq.clone())
    }
}

impl XrcDomain {
    /// Begins an XRC target queue pair.
    ///
    /// Each request of its peer names a shared receive queue of this domain, and completes in that
    /// queue's completion queue. The target has neither receives nor sends of its own: its
    /// completion queue stays empty, and its protection domain grants nothing.
    pub fn qp(&self) -> QpBuilder {
        let (pd, cq) = self.placeholders();
        QpBuilder::xrc_target(self.clone(), pd.clone(), cq.clone())
    }
}

impl QpBuilder {
    fn new(pd: ProtectionDomain, send_cq: CompletionQueue, recv_cq: CompletionQueue) -> Self {
        Self {
            pd,
            send_cq,
            recv_cq,
            service: QpType::Rc,
            cap: QpCap::default(),
            sq_sig_all: false,
            gid_index: None,
            psn: None,
            srq: None,
            xrc: None,
            qkey: DEFAULT_QKEY,
            block_own_multicast: false,
        }
    }

    /// Begins a target in this domain, with a protection domain and a completion queue that it does
    /// not use.
    fn xrc_target(domain: XrcDomain, pd: ProtectionDomain, cq: CompletionQueue) -> Self {
        let new = Self::new(pd, cq.clone(), cq);
        Self { service: QpType::XrcRecv, xrc: Some(domain), ..new }
    }

    /// Sets the transport service; the default is reliable connection. XRC targets begin with
    /// [`XrcDomain::qp`].
    pub fn service(mut self, service: QpType) -> Self {
        self.service = service;
        self
    }

    /// Sets the sizes of the queues. Sizes of queues that the service lacks (XRC) are taken as 0.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Sets whether every send request causes a completion, signaled or not.
    pub fn sq_sig_all(mut self, all: bool) -> Self {
        self.sq_sig_all = all;
        self
    }

    /// Sets the index of the local address that [`QueuePair::endpoint`] reports and
    /// [`QueuePair::connect`] uses; the default is [`crate::Device::preferred_gid`].
    pub fn gid_index(mut self, index: u16) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// Sets the PSN of the first request; the default is random.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Takes receives from a shared receive queue.
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sets the Q_Key that datagrams to the queue pair must carry; the default is 0x11111111.
    ///
    /// A Q_Key with the high bit set is for privileged programs. For datagram queue pairs only.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.qkey = qkey;
        self
    }

    /// Sets whether the queue pair ignores its own datagrams to groups that it is attached to.
    ///
    /// Other queue pairs of this host receive them. For datagram queue pairs only.
    pub fn block_own_multicast(mut self, block: bool) -> Self {
        self.block_own_multicast = block;
        self
    }

    /// Creates the queue pair, in RESET.
    ///
    /// # Errors
    /// Fails if a size exceeds the device's limits, if a completion or shared receive queue belongs
    /// to another device, if the GID index is invalid, if an XRC target has no domain, or if an
    /// attribute does not fit the service.
    pub fn build(self) -> Result<QueuePair> {
        let device = self.pd.device();
        // Checked first: in a forked child, a further shard could be opened, which would belong to
        // the child.
        device.shard().check_own()?;
        for cq in [&self.send_cq, &self.recv_cq] {
            device.owns(cq.device(), "the completion queue")?;
        }
        if let Some(srq) = &self.srq {
            device.owns(srq.pd().device(), "the shared receive queue")?;
        }
        self.check_xrc()?;
        if self.block_own_multicast && self.service != QpType::Ud {
            return Err(invalid("only datagram QPs send to groups: leave block_own_multicast out"));
        }
        let gid_index = self.gid_index.unwrap_or_else(|| device.preferred_gid());
        device.gid(gid_index)?;
        let psn = match self.psn {
            Some(psn) => psn,
            None => Psn::new(device.shard().environment().random_u32()?),
        };
        let init = QpInit {
            service: self.service,
            pd: self.pd.id(),
            send_cq: self.send_cq.queue().clone(),
            recv_cq: self.recv_cq.queue().clone(),
            cap: self.needed_cap(),
            srq: self.srq.as_ref().map(|srq| srq.queue().clone()),
            xrcd: self.xrc.as_ref().map(|domain| Arc::clone(domain.queues())),
            sq_sig_all: self.sq_sig_all,
        };
        let quota = device.resources().qps.take()?;
        let number = self.choose_shard();
        let shard = Arc::clone(device.shard_at(number));
        let (permit, handle) = loop {
            let permit = device.qpns(number).take(&shard)?;
            let init = init.clone();
            match shard.with(|core| core.engine.create_qp(permit.qpn(), init))? {
                Err(VerbsError::Busy { .. }) => {}
                result => break (permit, result?),
            }
        };
        if self.block_own_multicast {
            handle.block_own_multicast();
        }
        let faults = device.faults().and_then(|faults| RequestFaults::new(&faults.verbs));
        let Self { pd, send_cq, recv_cq, srq, xrc, qkey, .. } = self;
        send_cq.add_shard(number);
        recv_cq.add_shard(number);
        let one_cq = send_cq.id() == recv_cq.id();
        Ok(QueuePair {
            handle,
            shard,
            pd: pd.used_as(Kind::QueuePair),
            send_cq: send_cq.used_as(Kind::QueuePair),
            recv_cq: (!one_cq).then(|| recv_cq.used_as(Kind::QueuePair)),
            srq: srq.map(|srq| srq.used_as(Kind::QueuePair)),
            xrc: xrc.map(|domain| domain.used_as(Kind::QueuePair)),
            gid_index,
            psn,
            qkey,
            faults,
            reply_predictor: Mutex::default(),
            groups: Mutex::default(),
            _quota: quota,
            _permit: permit,
        })
    }

    /// Returns the number of the shard for the new queue pair.
    fn choose_shard(&self) -> usize {
        // A target's receives complete in queues that are not known yet. All of these are served by
        // the first shard.
        let used = match self.service {
            QpType::XrcRecv => 1,
            _ => match self.recv_cq.shard_bits() {
                0 => self.send_cq.shard_bits(),
                bits => bits,
            },
        };
        self.pd.device().choose_shard(used, self.recv_cq.comp_vector())
    }

    fn check_xrc(&self) -> Result<()> {
        let shared = self.srq.as_ref();
        let why = match (self.service, &self.xrc) {
            (QpType::XrcRecv, None) => "a target of XRC is made in a domain: use XrcDomain::qp()",
            (QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend, Some(_)) => {
                "in an XRC domain there are only targets: leave the service as it is"
            }
            (QpType::XrcSend | QpType::XrcRecv, _) if shared.is_some() => {
                "an XRC queue pair has no receives: its peer names the shared receive queue"
            }
            _ if shared.is_some_and(|srq| srq.xrc_domain().is_some()) => {
                "the shared receive queue is an XRC one, for targets of its domain only: use \
                 create_srq()"
            }
            _ => return Ok(()),
        };
        Err(invalid(why))
    }

    fn needed_cap(&self) -> QpCap {
        let sends = self.service != QpType::XrcRecv;
        let receives = sends && self.service != QpType::XrcSend;
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
            self.cap;
        let only = |used: bool, size| if used { size } else { 0 };
        QpCap {
            max_send_wr: only(sends, max_send_wr),
            max_recv_wr: only(receives, max_recv_wr),
            max_send_sge: only(sends, max_send_sge),
            max_recv_sge: only(receives, max_recv_sge),
            max_inline_data: only(sends, max_inline_data),
        }
    }
}

/// The Q_Key that the pingpong programs of rdma-core use.
const DEFAULT_QKEY: Qkey = Qkey::new(0x1111_1111);

//! Making a queue pair. IBTA 11.2.5.1.

use rxe_core::VerbsError;
use rxe_core::qp::{QpCap, QpInit, QpType};
use rxe_core::types::{Psn, Qkey, Qpn};

use super::QueuePair;
use crate::cq::CompletionQueue;
use crate::error::Result;
use crate::os::random_u32;
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;

/// What a queue pair will be like; begin with [`ProtectionDomain::qp`].
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
    qkey: Qkey,
}

impl QpBuilder {
    pub(crate) fn new(
        pd: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
    ) -> Self {
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
            qkey: DEFAULT_QKEY,
        }
    }

    /// The transport service; reliable connection if this is not called.
    pub fn service(mut self, service: QpType) -> Self {
        self.service = service;
        self
    }

    /// The sizes of its queues.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Whether every send request makes a completion, signalled or not.
    pub fn sq_sig_all(mut self, all: bool) -> Self {
        self.sq_sig_all = all;
        self
    }

    /// The own address, by its index, that [`QueuePair::endpoint`] tells and
    /// [`QueuePair::connect`] uses; [`crate::Device::preferred_gid`] if this is not called.
    pub fn gid_index(mut self, index: u16) -> Self {
        self.gid_index = Some(index);
        self
    }

    /// The PSN of the first request it will send; random if this is not called.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Takes its receives from this queue instead of one of its own.
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// The Q_Key that datagrams to it must carry; 0x11111111 if this is not called. One with the
    /// high bit set is for privileged programs. For datagram queue pairs only.
    pub fn qkey(mut self, qkey: Qkey) -> Self {
        self.qkey = qkey;
        self
    }

    /// Makes it, in RESET.
    ///
    /// # Errors
    /// Sizes exceed the device's limits, a completion or shared receive queue is of another device,
    /// or the GID index is wrong.
    pub fn build(self) -> Result<QueuePair> {
        let device = self.pd.device();
        for cq in [&self.send_cq, &self.recv_cq] {
            device.owns(cq.device(), "the completion queue")?;
        }
        if let Some(srq) = &self.srq {
            device.owns(srq.pd().device(), "the shared receive queue")?;
        }
        let gid_index = self.gid_index.unwrap_or_else(|| device.preferred_gid());
        device.gid(gid_index)?;
        let psn = match self.psn {
            Some(psn) => psn,
            None => Psn::new(random_u32()?),
        };
        let init = QpInit {
            service: self.service,
            pd: self.pd.id(),
            send_cq: self.send_cq.queue().clone(),
            recv_cq: self.recv_cq.queue().clone(),
            cap: self.cap,
            srq: self.srq.as_ref().map(|srq| srq.queue().clone()),
            xrcd: None,
            sq_sig_all: self.sq_sig_all,
        };
        let handle = loop {
            // Random in all of the space, so that neither a stranger can guess it nor another
            // process on this address is likely to have it.
            let qpn = Qpn::from_wire(random_u32()?);
            match device.shard().with(|core| core.engine.create_qp(qpn, init.clone()))? {
                Err(VerbsError::Busy { .. }) => {}
                result => break result?,
            }
        };
        let Self { pd, send_cq, recv_cq, srq, qkey, .. } = self;
        Ok(QueuePair { handle, pd, send_cq, recv_cq, srq, gid_index, psn, qkey })
    }
}

/// What the pingpong programs of rdma-core use.
const DEFAULT_QKEY: Qkey = Qkey::new(0x1111_1111);

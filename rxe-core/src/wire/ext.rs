//! The extension headers after the BTH. The row of an opcode names its headers, and their order on
//! the wire gives their offsets: DETH, XRCETH, FETH, RETH or AtomicETH, AETH, AtomicAckETH, then
//! ImmDt or IETH. IBTA 9.1. Headers of a single number have no file of their own.

use super::header_len;
use super::opcode::{OpInfo, OpKind};
use super::{Aeth, AtomicEth, Deth, Feth, Reth};

/// The headers that follow a BTH. A packet has the headers that its opcode names; all others are
/// `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ext {
    /// The range of the responder's memory.
    pub reth: Option<Reth>,
    /// The acknowledgement.
    pub aeth: Option<Aeth>,
    /// The operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// The original value of an atomic (AtomicAckETH). IBTA 9.5.3.
    pub atomic_ack: Option<u64>,
    /// Immediate data (ImmDt), in host order. IBTA 9.3.6.
    pub imm: Option<u32>,
    /// The rkey to invalidate (IETH). IBTA 9.3.7.
    pub ieth: Option<u32>,
    /// The Q_Key and the source QP.
    pub deth: Option<Deth>,
    /// The shared receive queue (XRCETH): 8 reserved bits, then its number.
    pub xrc_srq: Option<u32>,
    /// The selectivity and the placement of a FLUSH.
    pub feth: Option<Feth>,
    /// The 16 reserved bytes of a CNP; `None` means zeros.
    pub cnp: Option<[u8; header_len::CNP_RESERVED]>,
}

impl Ext {
    /// Appends the headers that `info` names. A named header that is `None` is sent as zeros; a
    /// header that is not named is not sent. Both are mistakes of the caller.
    #[inline]
    pub(super) fn emit(&self, info: &OpInfo, buf: &mut Vec<u8>) {
        debug_assert!(self.fits(info), "{} has not the headers {self:?}", info.name);
        // Most packets have no extension header, or only one of these two.
        if info.header_len == header_len::BTH {
            return;
        }
        if info.has_reth && info.header_len == header_len::BTH + header_len::RETH {
            buf.extend_from_slice(&self.reth.unwrap_or_default().emit());
            return;
        }
        if info.has_aeth && info.header_len == header_len::BTH + header_len::AETH {
            buf.extend_from_slice(&self.aeth.unwrap_or_default().emit());
            return;
        }
        if info.has_deth {
            buf.extend_from_slice(&self.deth.unwrap_or_default().emit());
        }
        if info.has_xrceth {
            buf.extend_from_slice(&self.xrc_srq.unwrap_or_default().to_be_bytes());
        }
        if info.has_feth {
            buf.extend_from_slice(&self.feth.unwrap_or_default().emit());
        }
        if info.has_reth {
            buf.extend_from_slice(&self.reth.unwrap_or_default().emit());
        }
        if info.has_atomic {
            buf.extend_from_slice(&self.atomic.unwrap_or_default().emit());
        }
        if info.has_aeth {
            buf.extend_from_slice(&self.aeth.unwrap_or_default().emit());
        }
        if info.has_atomic_ack {
            buf.extend_from_slice(&self.atomic_ack.unwrap_or_default().to_be_bytes());
        }
        if info.has_imm {
            buf.extend_from_slice(&self.imm.unwrap_or_default().to_be_bytes());
        }
        if info.has_ieth {
            buf.extend_from_slice(&self.ieth.unwrap_or_default().to_be_bytes());
        }
        if info.kind == OpKind::Cnp {
            buf.extend_from_slice(&self.cnp.unwrap_or_default());
        }
    }

    /// Returns whether exactly the headers of the opcode are present. The reserved bytes of a CNP
    /// may be omitted.
    fn fits(&self, info: &OpInfo) -> bool {
        let is_cnp = info.kind == OpKind::Cnp;
        self.deth.is_some() == info.has_deth
            && self.xrc_srq.is_some() == info.has_xrceth
            && self.feth.is_some() == info.has_feth
            && self.reth.is_some() == info.has_reth
            && self.atomic.is_some() == info.has_atomic
            && self.aeth.is_some() == info.has_aeth
            && self.atomic_ack.is_some() == info.has_atomic_ack
            && self.imm.is_some() == info.has_imm
            && self.ieth.is_some() == info.has_ieth
            && (is_cnp || self.cnp.is_none())
    }
}

//! Address handles: the way to peers at one address, for datagrams. IBTA 11.2.2.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::qp::AddressVector;
use rxe_core::queue::{self, Completion, Datagram};
use rxe_core::types::{Gid, Qkey, Qpn};
use rxe_core::wire::grh::{self, Grh};

use crate::error::Result;
use crate::objects::pd::ProtectionDomain;
use crate::observe::{Counted, Kind, Permit, Used};

/// The way to peers at one address, from one of the own. Datagram queue pairs of the same protection
/// domain send along it. It may be dropped while requests that use it are under way.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<queue::AddressHandle>,
    address: AddressVector,
    /// Of all handles to it.
    pd: Arc<Used<ProtectionDomain>>,
    _permit: Arc<Permit>,
}

impl AddressHandle {
    /// What it was made of.
    pub fn address(&self) -> &AddressVector {
        &self.address
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// One queue pair there (or [`Qpn::MULTICAST`], where the address is a group's), which lets in
    /// what carries this Q_Key.
    pub fn datagram(&self, qpn: Qpn, qkey: Qkey) -> Datagram {
        Datagram { ah: Arc::clone(&self.inner), qpn, qkey }
    }
}

impl ProtectionDomain {
    /// Makes the way to the peers at an address, which may be a multicast group's.
    ///
    /// # Errors
    /// The GID index, the peer's GID or their families are not right, or there are as many handles as
    /// the device allows.
    pub fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle> {
        self.device().gid(address.sgid_index)?;
        let permit = Arc::new(self.device().resources().ahs.take()?);
        let inner =
            self.device().shard().with(|core| core.engine.create_ah(self.id(), address))??;
        Ok(AddressHandle {
            inner,
            address: *address,
            pd: Arc::new(self.used_as(Kind::AddressHandle)),
            _permit: permit,
        })
    }

    /// Makes the way to the peers at this address from the own address that fits best, with nothing
    /// else asked for.
    ///
    /// # Errors
    /// The device has no address of the peer's family.
    pub fn create_ah_to(&self, peer: Gid) -> Result<AddressHandle> {
        self.create_ah(&AddressVector {
            sgid_index: self.device().gid_index_for(peer),
            dgid: peer,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        })
    }

    /// Makes the way back to the sender of a datagram, of which the completion and the first 40
    /// bytes of its receive buffer are given. The peer's queue pair is the completion's `src_qp`.
    /// (`ibv_create_ah_from_wc`.)
    ///
    /// # Errors
    /// The completion is not that of a datagram, or the bytes are not those in front of one; or its
    /// receiver was another device.
    pub fn ah_from_completion(&self, completion: &Completion, grh: &[u8]) -> Result<AddressHandle> {
        let bad = |why| VerbsError::InvalidRequest { why };
        if !completion.grh {
            return Err(bad("only the completion of a received datagram tells its sender").into());
        }
        let grh: &[u8; grh::LEN] = grh.first_chunk().ok_or(bad(
            "the sender stands in the first 40 bytes of the receive buffer: give them",
        ))?;
        let grh = Grh::parse(grh)
            .map_err(|_| bad("the first 40 bytes of the receive buffer hold no IP header"))?;
        let (src, dst) = (Gid::from(grh.src), Gid::from(grh.dst));
        let sgid_index = if grh.dst.is_multicast() {
            self.device().gid_index_for(src)
        } else {
            let own = self.device().gids().iter().position(|&gid| gid == dst);
            own.and_then(|at| u16::try_from(at).ok())
                .ok_or(bad("the datagram was sent to an address that this device has not"))?
        };
        self.create_ah(&AddressVector {
            sgid_index,
            dgid: src,
            flow_label: grh.flow_label,
            traffic_class: grh.traffic_class,
            hop_limit: 64,
        })
    }
}

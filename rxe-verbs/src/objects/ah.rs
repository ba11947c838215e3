//! Address handles: routes to peers at one address, for datagrams. IBTA 11.2.2.

use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::qp::AddressVector;
use rxe_core::queue::{self, Completion, Datagram};
use rxe_core::types::{Gid, Qkey, Qpn};
use rxe_core::wire::grh::{self, Grh};

use crate::error::Result;
use crate::objects::pd::ProtectionDomain;
use crate::observe::{Counted, Kind, Permit, Used};

/// A route from a local address to peers at one address, for datagram queue pairs.
///
/// Queue pairs of the same protection domain can send along it. It may be dropped while requests
/// that use it are in progress.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<queue::AddressHandle>,
    address: AddressVector,
    /// Shared by all clones of the handle.
    pd: Arc<Used<ProtectionDomain>>,
    _permit: Arc<Permit>,
}

impl AddressHandle {
    /// Returns the address vector from which the handle was created.
    pub fn address(&self) -> &AddressVector {
        &self.address
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Returns the destination of a datagram: a queue pair at this address.
    ///
    /// `qpn` is [`Qpn::MULTICAST`] if the address is a multicast group. `qkey` is the Q_Key that
    /// the queue pair accepts.
    pub fn datagram(&self, qpn: Qpn, qkey: Qkey) -> Datagram {
        Datagram { ah: Arc::clone(&self.inner), qpn, qkey }
    }
}

impl ProtectionDomain {
    /// Creates a handle for the peers at an address, which may be a multicast group.
    ///
    /// # Errors
    /// Fails if the GID index or the peer's GID is invalid, if their address families differ, or if
    /// the device allows no more handles.
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

    /// Creates a handle for the peers at an address, with default attributes.
    ///
    /// The source is the local address that fits the peer best.
    ///
    /// # Errors
    /// Fails if the device has no address of the peer's family or allows no more handles.
    pub fn create_ah_to(&self, peer: Gid) -> Result<AddressHandle> {
        self.create_ah(&AddressVector {
            sgid_index: self.device().gid_index_for(peer),
            dgid: peer,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
        })
    }

    /// Creates a handle for the sender of a received datagram. (`ibv_create_ah_from_wc`.)
    ///
    /// `grh` is the first 40 bytes of the datagram's receive buffer. The sender's queue pair is the
    /// completion's `src_qp`.
    ///
    /// # Errors
    /// Fails if the completion does not belong to a datagram, if `grh` is not the header of one, or
    /// if another device received the datagram.
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

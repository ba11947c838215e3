//! What a backend that shares its addresses can do beside moving frames ([`crate::Backend`]):
//! lease QPN blocks, take part in QP1, listen to services, join multicast groups. What may block is
//! not here but in [`PortGroups`] and [`Joiner`], which are used without the backend.

use std::net::IpAddr;
use std::sync::Arc;

use crate::error::NetError;
use crate::host::PortGroups;
use crate::host::membership::{Joiner, Membership};
use crate::host::questions::Questions;
use rxe_sys::Epoll;

/// The control path of a backend whose addresses others use too: other processes (QPN blocks, QP1,
/// services), other hosts (multicast groups), and the interface, whose addresses come and go.
///
/// A backend offers it by [`crate::Backend::sharing`]. Each method has a default for a backend
/// that lacks this part.
pub trait Sharing {
    /// The backend's QPN blocks and addresses, as shared with other processes; `None` if every
    /// packet to its addresses reaches it.
    fn port_groups(&self) -> Option<Arc<PortGroups>> {
        None
    }

    /// The one of the backend's descriptors that watches what comes and goes; `None` if it has no
    /// such. A wrapper may have it watch more.
    fn epoll(&self) -> Option<Epoll> {
        None
    }

    /// Starts to receive for the QPN blocks that [`PortGroups::lease`] has added.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left.
    fn take_up(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    /// Replaces the addresses to receive for, after the interface's have changed. The new ones are
    /// those that [`PortGroups::enter`] has entered; after this, [`PortGroups::release_left`] releases
    /// what belongs to those that are gone.
    ///
    /// # Errors
    /// A new address cannot be used; the others are.
    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), NetError> {
        let _ = addresses;
        Ok(())
    }

    /// Starts or stops receiving packets to QP1. If several processes have the address
    /// ([`crate::Capabilities::qpn_block`]), each gets the answers to communication and request IDs
    /// whose high 8 bits are its block, and the requests for services that it listens to
    /// ([`PortGroups::listen`]). What is for nobody in particular goes to the first process that sees
    /// it.
    ///
    /// # Errors
    /// The system has no descriptor left.
    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        let _ = open;
        Ok(())
    }

    /// The way for datagrams of QP1 whose sender wants to learn if nobody receives them; `None` if the
    /// backend has none.
    fn questions(&mut self) -> Option<&mut Questions> {
        None
    }

    /// Joins multicast groups for this backend.
    fn joiner(&self) -> Joiner;

    /// Receives datagrams to the group that [`Sharing::joiner`] has joined, own datagrams included.
    /// Of a group that it receives from already, the membership is given back.
    ///
    /// # Errors
    /// The system has no memory left, or no own address is of that family.
    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError>;

    /// Undoes [`Sharing::add_membership`]. To drop the membership may block.
    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership>;

    /// Joins a group and receives datagrams to it. Joining again changes nothing. May block.
    ///
    /// # Errors
    /// The interface cannot join it, or this backend has no multicast.
    fn join(&mut self, group: IpAddr) -> Result<(), NetError> {
        let membership = self.joiner().join(group)?;
        self.add_membership(membership).map(drop)
    }

    /// Undoes [`Sharing::join`]. May block.
    fn leave(&mut self, group: IpAddr) {
        drop(self.remove_membership(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::fabric::Hub;
    use crate::wrappers::fault::Fault;

    #[test]
    fn a_wrapper_offers_what_the_backend_inside_shares() {
        let [a, group]: [IpAddr; 2] = ["10.0.0.1", "239.1.2.3"].map(|ip| ip.parse().unwrap());
        let port = Hub::new(1, &[]).port(&[a]).unwrap();
        let mut all: Box<dyn Backend> = Box::new(Fault::new(port, 1, &[]).unwrap());
        let sharing = all.sharing().expect("a port can join groups");
        sharing.join(group).unwrap();
        assert!(sharing.port_groups().is_none(), "it shares no address");
        sharing.leave(group);
    }
}

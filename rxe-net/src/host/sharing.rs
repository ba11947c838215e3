//! The control path of a backend that shares its addresses. It covers QPN blocks, QP1, services and
//! multicast groups. Calls that may block are in [`PortGroups`] and [`MulticastJoiner`], which are
//! used without the backend.

use std::net::IpAddr;
use std::sync::Arc;

use crate::error::NetError;
use crate::host::PortGroups;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::peer_probes::PeerProbes;
use rxe_sys::Epoll;

/// The control path of a backend that shares its addresses. They are shared with other processes
/// (QPN blocks, QP1, services) and other hosts (multicast groups), and may change with the
/// interface.
///
/// A backend returns it from [`crate::Backend::sharing`]. Most methods have a default for a backend
/// that lacks the feature.
pub trait Sharing {
    /// Returns the backend's QPN blocks and addresses, as shared with other processes. `None` if
    /// every packet to its addresses reaches this process.
    fn port_groups(&self) -> Option<Arc<PortGroups>> {
        None
    }

    /// Returns the epoll descriptor among the backend's descriptors, or `None` if it has none. A
    /// wrapper may add descriptors to it.
    fn epoll(&self) -> Option<Epoll> {
        None
    }

    /// Starts to receive for the QPN blocks that [`PortGroups::lease`] has added.
    ///
    /// # Errors
    /// The kernel has no descriptor or no memory left.
    fn take_up(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    /// Replaces the addresses to receive on, after those of the interface have changed.
    /// [`PortGroups::enter`] must have entered the new ones; afterwards
    /// [`PortGroups::release_left`] releases the resources of those that are gone.
    ///
    /// # Errors
    /// A new address cannot be used; the others are in use nevertheless.
    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), NetError> {
        let _ = addresses;
        Ok(())
    }

    /// Starts or stops receiving packets to QP1. If several processes share the address
    /// ([`crate::Capabilities::qpn_block`]), each gets the answers to communication and request IDs
    /// whose high 8 bits are its block, and the requests for services that it listens to
    /// ([`PortGroups::listen`]). A packet for no particular process goes to the first process that
    /// reads it.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        let _ = open;
        Ok(())
    }

    /// Returns the path for QP1 datagrams whose sender wants to learn if no process receives them.
    /// `None` if the backend has none.
    fn peer_probes(&mut self) -> Option<&mut PeerProbes> {
        None
    }

    /// Returns the joiner of multicast groups for this backend.
    fn joiner(&self) -> MulticastJoiner;

    /// Starts to receive datagrams to a group that [`Sharing::joiner`] has joined. Datagrams that
    /// this backend sends are included. If it already receives from the group, returns the
    /// membership.
    ///
    /// # Errors
    /// The kernel has no memory left, or the backend has no address of that family.
    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError>;

    /// Undoes [`Sharing::add_membership`]. Dropping the returned membership may block.
    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership>;

    /// Joins a group and receives datagrams to it. Joining again has no effect. May block.
    ///
    /// # Errors
    /// The interface cannot join the group, or this backend has no multicast.
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

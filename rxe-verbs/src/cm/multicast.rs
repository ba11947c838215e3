//! Joining multicast groups with the queue pair of a datagram identifier. `rdma_join_multicast`.

use std::net::IpAddr;

use rxe_core::qp::AddressVector;
use rxe_core::types::{Gid, Qpn};

use super::error::{invalid, os};
use super::event::{CmEventKind, CmParam, UdParam};
use super::id::CmId;
use super::state::Stage;
use crate::error::Result;

impl CmId {
    /// Joins a multicast group. A [`CmEventKind::MulticastJoin`] tells where to send to reach the
    /// group. The identifier's queue pair, if it has one, receives packets that are sent to the
    /// group.
    ///
    /// # Errors
    /// The identifier has no device (bind it or resolve an address first), or the address is not a
    /// group address of the same family.
    pub fn join_multicast(&self, group: IpAddr) -> Result<()> {
        let mut state = self.state();
        let (Some(local), Some(device)) = (state.local, state.device.clone()) else {
            return Err(invalid("bind it to an address or resolve one first"));
        };
        if state.stage == Stage::Listening {
            return Err(invalid("one that listens cannot join groups"));
        }
        // getaddrinfo(3) may return IPv4 addresses mapped into IPv6; their GIDs are the same.
        let (group, own) = (group.to_canonical(), local.ip().to_canonical());
        if !group.is_multicast() || group.is_ipv4() != own.is_ipv4() {
            return Err(invalid("that is no group of the own address's family"));
        }
        let gid = Gid::from(group);
        let joined = match &state.qp {
            Some(qp) => qp.attach_multicast(gid),
            None => Ok(()),
        };
        let index = device.gid_index_of(own);
        let result = joined.and_then(|()| {
            let sgid_index =
                index.ok_or_else(|| os("find the own address", libc::EADDRNOTAVAIL))?;
            Ok(UdParam {
                private_data: Vec::new(),
                ah: AddressVector {
                    sgid_index,
                    dgid: gid,
                    flow_label: 0,
                    traffic_class: state.options.tos,
                    hop_limit: 64,
                },
                qpn: Qpn::MULTICAST,
                qkey: super::UDP_QKEY,
            })
        });
        if result.is_ok() {
            state.groups.push(gid);
        }
        drop(state);
        match result {
            Ok(param) => self.post(CmEventKind::MulticastJoin, 0, CmParam::Ud(param)),
            Err(e) => self.post(CmEventKind::MulticastError, -e.errno(), CmParam::None),
        }
        Ok(())
    }

    /// Leaves a multicast group. If the program has not taken the event of joining yet, it never
    /// sees it.
    ///
    /// # Errors
    /// The identifier has not joined the group.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<()> {
        let gid = Gid::from(group);
        let mut state = self.state();
        let at = state.groups.iter().position(|g| *g == gid);
        state.groups.remove(at.ok_or_else(|| os("leave the group", libc::EADDRNOTAVAIL))?);
        self.inner.id_queue.take_back(|kind, param| {
            kind == CmEventKind::MulticastJoin
                && matches!(param, CmParam::Ud(param) if param.ah.dgid == gid)
        });
        // A queue pair that was created after the group was joined is not attached.
        match &state.qp {
            Some(qp) if !state.groups.contains(&gid) && qp.multicast_groups().contains(&gid) => {
                qp.detach_multicast(gid)
            }
            _ => Ok(()),
        }
    }
}

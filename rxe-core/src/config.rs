//! What an engine is told about its device.

use crate::types::{Gid, Mtu, Qpn};

/// The device that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The GID table: the addresses that QPs can use, by `sgid_index`.
    pub gids: Vec<Gid>,
    /// How UDP source ports are chosen.
    pub source_port: SourcePort,
    /// The largest path MTU that the link carries.
    pub max_mtu: Mtu,
    /// The most packets that one QP leaves unacknowledged. Kernel rxe's own limit is 128.
    pub window_packets: u32,
    /// The most payload bytes that one QP leaves unacknowledged: what a peer's socket buffer takes.
    pub window_bytes: u32,
    /// The payload bytes that all QPs to one address together leave unacknowledged, in no more packets
    /// than `shared_window_packets`. Each may always send one packet, so with very many it may be more.
    pub shared_window_bytes: u32,
    /// The packets that all QPs to one address together leave unacknowledged: what the queues on the way
    /// take, which count packets.
    pub shared_window_packets: u32,
    /// Whether to answer congestion marks with notifications and to slow down when notified.
    pub congestion_control: bool,
    /// The sizes that programs may ask for.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gids: Vec::new(),
            source_port: SourcePort::PerQp,
            max_mtu: Mtu::M4096,
            window_packets: 256,
            window_bytes: 256 << 10,
            shared_window_bytes: 2 << 20,
            shared_window_packets: 256,
            congestion_control: true,
            limits: Limits::default(),
        }
    }
}

impl Config {
    /// How many packets all QPs to one address together leave unacknowledged.
    pub(crate) fn shared_window(&self, mtu: Mtu) -> u32 {
        (self.shared_window_bytes >> mtu.bytes().ilog2()).min(self.shared_window_packets)
    }
}

/// The limits of a device, by their verbs names; at least kernel rxe's. The engine enforces those
/// on queue pairs, requests and groups, each engine for itself; whoever makes other objects, or has several
/// engines, enforces those of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// QPs.
    pub max_qp: u32,
    /// Requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// Elements of a scatter/gather list.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
    /// READs and atomics outstanding per QP, in each direction.
    pub max_rd_atomic: u8,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Elements of a request's scatter list in a shared receive queue.
    pub max_srq_sge: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// QPs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// The same over all groups.
    pub max_total_mcast_qp_attach: u32,
    /// Bytes of a message.
    pub max_message: u64,
}

/// What kernel rxe says where only memory sets a limit.
const KERNEL_LIMIT: u32 = 1 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: KERNEL_LIMIT,
            max_qp_wr: KERNEL_LIMIT,
            max_sge: 32,
            max_inline_data: 512,
            max_rd_atomic: 128,
            max_cq: KERNEL_LIMIT,
            max_cqe: KERNEL_LIMIT,
            max_mr: KERNEL_LIMIT,
            max_mw: KERNEL_LIMIT,
            max_pd: KERNEL_LIMIT,
            max_ah: KERNEL_LIMIT,
            max_srq: KERNEL_LIMIT,
            max_srq_wr: KERNEL_LIMIT,
            max_srq_sge: 32,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
            max_total_mcast_qp_attach: 8192 * 56,
            max_message: 1 << 31,
        }
    }
}

/// The UDP source port of what is sent. The ICRC covers it, so it must be known beforehand. Switches and
/// receivers with several queues spread packets by it, so each QP has one of its own by preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// The same for all.
    Fixed(u16),
    /// One per QP, from 0xC000 on.
    PerQp,
    /// One of these per QP: the first QP has the first of them, the next QP the next, and so on.
    InTurn {
        /// The first.
        first: u16,
        /// How many there are.
        count: u16,
    },
}

impl SourcePort {
    /// That of a QP, before which the engine has had `earlier` others.
    pub(crate) fn of(self, qpn: Qpn, earlier: u16) -> u16 {
        match self {
            Self::Fixed(port) => port,
            Self::PerQp => {
                // Any function that scatters will do.
                let hash = qpn.value().wrapping_mul(0x9e37_79b1) >> 18;
                0xc000 | u16::try_from(hash & 0x3fff).unwrap_or(0)
            }
            Self::InTurn { first, count } => first.saturating_add(earlier % count.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_have_the_ports_of_a_range_in_turn() {
        let qpn = Qpn::from_wire;
        let ports = SourcePort::InTurn { first: 0xfff0, count: 16 };
        let of = |nth| ports.of(qpn(0x12_3456), nth);
        assert_eq!([of(0), of(1), of(15), of(16)], [0xfff0, 0xfff1, 0xffff, 0xfff0]);
        assert_eq!(SourcePort::InTurn { first: 7, count: 0 }.of(qpn(2), 3), 7);
        assert_eq!(SourcePort::Fixed(7).of(qpn(2), 3), 7);
        let scattered = [2, 3, 4].map(|n| SourcePort::PerQp.of(qpn(n), 0));
        assert!(scattered.iter().all(|port| *port >= 0xc000));
        assert!(scattered[0] != scattered[1] && scattered[1] != scattered[2]);
    }
}

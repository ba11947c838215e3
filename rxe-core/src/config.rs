//! The configuration of an engine: addresses, send windows and limits of its device.

use crate::types::{Gid, Mtu, Qpn};

/// The configuration of the device that an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The GID table: the addresses that QPs can use, by `sgid_index`.
    pub gids: Vec<Gid>,
    /// How UDP source ports are chosen.
    pub source_port: SourcePort,
    /// The largest path MTU that the link carries.
    pub max_mtu: Mtu,
    /// The maximum number of packets that one QP leaves unacknowledged. The limit of kernel
    /// `rdma_rxe` is 128.
    pub window_packets: u32,
    /// The maximum payload bytes that one QP leaves unacknowledged: as many as a peer's socket
    /// buffer takes.
    pub window_bytes: u32,
    /// The maximum payload bytes that all QPs to one address together leave unacknowledged. Each QP
    /// may always send one packet, so a large number of QPs can exceed this value.
    pub shared_window_bytes: u32,
    /// The maximum number of packets that all QPs to one address together leave unacknowledged. The
    /// queues on the path count packets: a TAP device takes 500, and the default of 256 fills a
    /// link (decision 006).
    pub shared_window_packets: u32,
    /// Whether the device takes part in congestion control. It then answers congestion marks with
    /// CNPs and slows down when notified.
    pub congestion_control: bool,
    /// The limits that the device reports and enforces.
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
    /// Returns how many packets of `mtu` all QPs to one address together leave unacknowledged.
    pub(crate) fn shared_window(&self, mtu: Mtu) -> u32 {
        (self.shared_window_bytes >> mtu.bytes().ilog2()).min(self.shared_window_packets)
    }
}

/// The limits of a device, under their verbs names. Each is at least that of kernel `rdma_rxe`.
/// Each engine enforces the limits on its own queue pairs, requests and groups. The caller that
/// creates other objects, or runs several engines, enforces the limits of the device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of QPs.
    pub max_qp: u32,
    /// Maximum number of requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Maximum number of elements of a scatter/gather list.
    pub max_sge: u32,
    /// Maximum bytes of inline data.
    pub max_inline_data: u32,
    /// Maximum number of outstanding READs and atomics per QP, in each direction.
    pub max_rd_atomic: u8,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of completions in a completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter elements of a request in a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of multicast groups.
    pub max_mcast_grp: u32,
    /// Maximum number of QPs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of attachments of QPs to all multicast groups together.
    pub max_total_mcast_qp_attach: u32,
    /// Maximum bytes of a message.
    pub max_message: u64,
}

/// The limit that kernel `rdma_rxe` reports where only memory is the limit.
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

/// The choice of the UDP source port of outgoing packets. The ICRC covers the port, so it must be
/// known before a packet is written. Switches and receivers with several queues distribute packets
/// by the source port, so by default each QP has a port of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// One port for all QPs.
    Fixed(u16),
    /// One port per QP, 0xC000 or above, derived from the QPN.
    PerQp,
    /// One port of a range per QP, in the order of creation of the QPs. After the last port the
    /// first is used again.
    InTurn {
        /// The first port of the range.
        first: u16,
        /// The number of ports in the range.
        count: u16,
    },
}

impl SourcePort {
    /// Returns the port of QP `qpn`. `earlier` is the number of QPs that the engine created before
    /// it.
    pub(crate) fn of(self, qpn: Qpn, earlier: u16) -> u16 {
        match self {
            Self::Fixed(port) => port,
            Self::PerQp => {
                // Any hash that spreads QPNs over the 2^14 ports would do.
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

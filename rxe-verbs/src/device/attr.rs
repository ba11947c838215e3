//! Attributes of a device and its port: the values of `ibv_query_device` and `ibv_query_port`,
//! under their names in verbs. IBTA 11.2.1.2.
//!
//! Limits are at least those of kernel `rdma_rxe`, and each is enforced. The limit of a feature
//! that does not exist is 0. Applications recognise a software RoCE device by its vendor ID, so the
//! vendor ID is that of kernel `rdma_rxe`.

use std::{fmt, thread};

use rxe_core::engine::Limits;
use rxe_core::types::Mtu;
use rxe_net::{GidTable, Interface};

use super::OdpCaps;

/// The capabilities and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// The version of this software.
    pub fw_ver: &'static str,
    /// The GUID of the device.
    pub node_guid: Guid,
    /// The GUID of the adapter. Each device is an adapter of its own, so it equals `node_guid`.
    pub sys_image_guid: Guid,
    /// The largest memory region, in bytes.
    pub max_mr_size: u64,
    /// The supported page sizes, a bit for each.
    pub page_size_cap: u64,
    /// 0xffffff, software RoCE, as for kernel `rdma_rxe`.
    pub vendor_id: u32,
    /// The part ID of the vendor: 0.
    pub vendor_part_id: u32,
    /// The hardware version: 0.
    pub hw_ver: u32,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// The optional features.
    pub device_cap_flags: DeviceCap,
    /// The most scatter/gather elements in a work request.
    pub max_sge: u32,
    /// The most scatter elements in a READ.
    pub max_sge_rd: u32,
    /// The most bytes of inline data in a send request. (Verbs reports this for each queue pair.)
    pub max_inline_data: u32,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most entries in a completion queue.
    pub max_cqe: u32,
    /// The most memory regions.
    pub max_mr: u32,
    /// The most protection domains.
    pub max_pd: u32,
    /// The most outstanding READs and atomics that a queue pair accepts from its peer.
    pub max_qp_rd_atom: u32,
    /// The most outstanding READs and atomics that all queue pairs together accept.
    pub max_res_rd_atom: u32,
    /// The most READs and atomics that a queue pair may have outstanding.
    pub max_qp_init_rd_atom: u32,
    /// With which accesses atomics are atomic.
    pub atomic_cap: AtomicCap,
    /// The most memory windows.
    pub max_mw: u32,
    /// The most multicast groups.
    pub max_mcast_grp: u32,
    /// The most queue pairs in a multicast group.
    pub max_mcast_qp_attach: u32,
    /// The most attachments to all multicast groups.
    pub max_total_mcast_qp_attach: u32,
    /// The most address handles.
    pub max_ah: u32,
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// The most scatter elements in a request of a shared receive queue.
    pub max_srq_sge: u32,
    /// The size of the partition key table.
    pub max_pkeys: u16,
    /// The longest time until the device acknowledges, encoded as n: 4.096 µs · 2ⁿ.
    pub local_ca_ack_delay: u8,
    /// The number of ports.
    pub phys_port_cnt: u8,
    /// The operations that may use on-demand paging regions.
    pub odp_caps: OdpCaps,
    /// The device memory, in bytes, for all allocations together.
    pub max_dm_size: u64,
    /// The number of completion vectors: one for each CPU that this process may use. (Verbs reports
    /// this with the context.)
    pub num_comp_vectors: u32,
}

impl DeviceAttr {
    /// Bytes of device memory. Adapters have between 100 KiB and a few MiB.
    pub(super) const MAX_DM_SIZE: u32 = 1 << 20;

    /// Returns the attributes of the device on this interface, with these limits.
    pub fn of(interface: &Interface, limits: &Limits) -> Self {
        let guid = Guid(u64::from_be_bytes(interface.eui64()));
        let rd_atom = u32::from(limits.max_rd_atomic);
        Self {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            device_cap_flags: DeviceCap::OURS,
            max_sge: limits.max_sge,
            max_sge_rd: limits.max_sge,
            max_inline_data: limits.max_inline_data,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_pd: limits.max_pd,
            max_qp_rd_atom: rd_atom,
            // Queue pairs share no resource for these that could run out earlier.
            max_res_rd_atom: rd_atom.saturating_mul(limits.max_qp),
            max_qp_init_rd_atom: rd_atom,
            // Atomics are those of the CPU, so `Glob` would be true. Programs check for exactly the
            // value of kernel `rdma_rxe`; without it, UCX does not use atomics.
            atomic_cap: AtomicCap::Hca,
            max_mw: limits.max_mw,
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            max_total_mcast_qp_attach: limits.max_total_mcast_qp_attach,
            max_ah: limits.max_ah,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_srq_sge,
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            phys_port_cnt: 1,
            odp_caps: OdpCaps::OURS,
            max_dm_size: Self::MAX_DM_SIZE.into(),
            num_comp_vectors: comp_vectors(),
        }
    }
}

/// Returns the number of completion vectors: one for each CPU that this process may use.
pub(super) fn comp_vectors() -> u32 {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// The optional features of a device, with the bits of `enum ibv_device_cap_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCap(u64);

impl DeviceCap {
    const BAD_PKEY_CNTR: u64 = 1 << 1;
    const BAD_QKEY_CNTR: u64 = 1 << 2;
    const PORT_ACTIVE_EVENT: u64 = 1 << 10;
    const SYS_IMAGE_GUID: u64 = 1 << 11;
    const RC_RNR_NAK_GEN: u64 = 1 << 12;
    const SRQ_RESIZE: u64 = 1 << 13;
    const MEM_WINDOW: u64 = 1 << 17;
    const XRC: u64 = 1 << 20;
    const MEM_WINDOW_TYPE_2B: u64 = 1 << 24;
    const FLUSH_GLOBAL: u64 = 1 << 38;
    const ATOMIC_WRITE: u64 = 1 << 40;

    /// The features of this engine.
    const OURS: Self = Self(
        Self::BAD_PKEY_CNTR
            | Self::BAD_QKEY_CNTR
            | Self::PORT_ACTIVE_EVENT
            | Self::SYS_IMAGE_GUID
            | Self::RC_RNR_NAK_GEN
            | Self::SRQ_RESIZE
            | Self::MEM_WINDOW
            | Self::XRC
            | Self::MEM_WINDOW_TYPE_2B
            | Self::FLUSH_GLOBAL
            | Self::ATOMIC_WRITE,
    );

    /// The names in `ibv_devinfo`, by bit.
    const NAMES: [(u64, &'static str); 11] = [
        (Self::BAD_PKEY_CNTR, "BAD_PKEY_CNTR"),
        (Self::BAD_QKEY_CNTR, "BAD_QKEY_CNTR"),
        (Self::PORT_ACTIVE_EVENT, "PORT_ACTIVE_EVENT"),
        (Self::SYS_IMAGE_GUID, "SYS_IMAGE_GUID"),
        (Self::RC_RNR_NAK_GEN, "RC_RNR_NAK_GEN"),
        (Self::SRQ_RESIZE, "SRQ_RESIZE"),
        (Self::MEM_WINDOW, "MEM_WINDOW"),
        (Self::XRC, "XRC"),
        (Self::MEM_WINDOW_TYPE_2B, "MEM_WINDOW_TYPE_2B"),
        (Self::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (Self::ATOMIC_WRITE, "ATOMIC_WRITE"),
    ];

    /// Returns the bits as verbs define them: 32 bits in `device_cap_flags`, all 64 in
    /// `device_cap_flags_ex`.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the features in the 32 bits of `device_cap_flags`.
    #[must_use]
    pub const fn basic(self) -> Self {
        Self(self.0 & 0xffff_ffff)
    }

    /// Returns the features beyond the 32 bits of `device_cap_flags`.
    #[must_use]
    pub const fn extended(self) -> Self {
        Self(self.0 & !0xffff_ffff)
    }

    /// Returns the names of the features.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let set = move |&(bit, _): &(u64, _)| self.0 & bit != 0;
        Self::NAMES.into_iter().filter(set).map(|(_, name)| name)
    }
}

/// With which accesses atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCap {
    /// There are no atomics.
    None = 0,
    /// Atomic with other atomics of this device.
    Hca = 1,
    /// Atomic with accesses of the CPUs too.
    Glob = 2,
}

impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "ATOMIC_NONE",
            Self::Hca => "ATOMIC_HCA",
            Self::Glob => "ATOMIC_GLOB",
        })
    }
}

/// The present attributes of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttr {
    /// Whether the port carries packets.
    pub state: PortState,
    /// The largest path MTU that RoCE defines.
    pub max_mtu: Mtu,
    /// The largest path MTU that the link carries. If the link carries less than 256 bytes, this is
    /// 256 and the port is down.
    pub active_mtu: Mtu,
    /// The capacity of the GID table.
    pub gid_tbl_len: u32,
    /// The bits of `enum ibv_port_cap_flags`.
    pub port_cap_flags: u32,
    /// The bits of `enum ibv_port_cap_flags2`.
    pub port_cap_flags2: u16,
    /// The largest message, in bytes.
    pub max_msg_sz: u32,
    /// Packets with a wrong P_Key. Hardware counts them for each port; always 0 here.
    pub bad_pkey_cntr: u32,
    /// Packets with a wrong Q_Key; always 0 here.
    pub qkey_viol_cntr: u32,
    /// The size of the partition key table.
    pub pkey_tbl_len: u16,
    /// The InfiniBand local identifier; 0 on Ethernet, as are `sm_lid`, `lmc` and `sm_sl`.
    pub lid: u16,
    /// The local identifier of the subnet manager.
    pub sm_lid: u16,
    /// The LID mask control.
    pub lmc: u8,
    /// The number of virtual lanes, encoded.
    pub max_vl_num: u8,
    /// The service level of the subnet manager.
    pub sm_sl: u8,
    /// The subnet timeout, encoded.
    pub subnet_timeout: u8,
    /// The kind of initialization that the subnet manager did.
    pub init_type_reply: u8,
    /// The number of lanes, as a bit: 1 is one lane.
    pub active_width: u8,
    /// The speed of a lane, as a bit: 1 is 2.5 Gb/s, as for kernel `rdma_rxe`. The actual speed is
    /// not limited.
    pub active_speed: u8,
    /// The physical state of the link.
    pub phys_state: PhysState,
    /// `IBV_QPF_GRH_REQUIRED` (1): addresses are GIDs.
    pub flags: u8,
}

impl PortAttr {
    /// Returns the attributes of the port on this interface.
    pub fn of(interface: &Interface) -> Self {
        let mtu = Mtu::largest_for_link(interface.mtu);
        let active = interface.running && mtu.is_some();
        Self {
            state: if active { PortState::Active } else { PortState::Down },
            max_mtu: Mtu::M4096,
            active_mtu: mtu.unwrap_or(Mtu::M256),
            gid_tbl_len: u32::try_from(GidTable::CAPACITY).unwrap_or(u32::MAX),
            port_cap_flags: PORT_CM_SUP,
            port_cap_flags2: 0,
            max_msg_sz: 1 << 31,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: 1,
            active_speed: 1,
            phys_state: match (interface.up, interface.running) {
                (false, _) => PhysState::Disabled,
                (true, false) => PhysState::Polling,
                (true, true) => PhysState::LinkUp,
            },
            flags: 1,
        }
    }
}

/// `IBV_PORT_CM_SUP`: the port has a communication manager.
const PORT_CM_SUP: u32 = 1 << 16;

/// Whether a port carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The interface is down or has no carrier.
    Down = 1,
    /// The port carries packets.
    Active = 4,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "PORT_DOWN",
            Self::Active => "PORT_ACTIVE",
        })
    }
}

/// The physical state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysState {
    /// The interface is up and waits for a carrier.
    Polling = 2,
    /// The interface is down.
    Disabled = 3,
    /// The interface has a carrier.
    LinkUp = 5,
}

impl fmt::Display for PhysState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Polling => "POLLING",
            Self::Disabled => "DISABLED",
            Self::LinkUp => "LINK_UP",
        })
    }
}

/// A globally unique identifier (EUI-64). Displayed as four groups of four hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| self.0 >> shift & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_net::MacAddr;

    fn interface(mtu: u32, up: bool, running: bool) -> Interface {
        Interface {
            name: "eth0".into(),
            index: 2,
            mac: Some(MacAddr([0x52, 0x54, 0x00, 0x12, 0x34, 0x56])),
            mtu,
            up,
            running,
            loopback: false,
            addresses: Vec::new(),
        }
    }

    #[test]
    fn guid_is_the_eui64_of_the_mac() {
        let attr = DeviceAttr::of(&interface(1500, true, true), &Limits::default());
        assert_eq!(attr.node_guid.to_string(), "5054:00ff:fe12:3456");
        assert_eq!(attr.sys_image_guid, attr.node_guid);
    }

    #[test]
    fn atomics_are_told_as_kernel_rxe_tells_them() {
        let attr = DeviceAttr::of(&interface(1500, true, true), &Limits::default());
        assert_eq!(attr.atomic_cap, AtomicCap::Hca);
    }

    #[test]
    fn port_follows_the_interface() {
        let port = |mtu, up, running| {
            let p = PortAttr::of(&interface(mtu, up, running));
            (p.state, p.phys_state, p.active_mtu)
        };
        assert_eq!(port(1500, true, true), (PortState::Active, PhysState::LinkUp, Mtu::M1024));
        assert_eq!(port(9000, true, false), (PortState::Down, PhysState::Polling, Mtu::M4096));
        assert_eq!(port(1500, false, false), (PortState::Down, PhysState::Disabled, Mtu::M1024));
        assert_eq!(port(300, true, true), (PortState::Down, PhysState::LinkUp, Mtu::M256));
    }

    #[test]
    fn every_capability_has_a_name() {
        let named = DeviceCap::NAMES.iter().fold(0, |all, (bit, _)| all | bit);
        assert_eq!(named, DeviceCap::OURS.bits());
        assert_eq!(DeviceCap::OURS.names().count(), DeviceCap::NAMES.len());
    }
}

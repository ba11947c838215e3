//! Errors of the `xdp` backend.

use std::fmt;

/// The reason why the `xdp` backend cannot be used on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdpRefusal {
    /// The process lacks a capability. Capabilities of a user namespace are not enough.
    NotPermitted,
    /// The kernel is built without AF_XDP.
    NotInKernel,
    /// The kernel does not run XDP programs on this interface.
    NotOnInterface,
    /// The driver of the interface does not run XDP programs.
    NotInDriver,
    /// The driver of the interface has no zero copy for AF_XDP.
    NoZeroCopy,
    /// With this MTU the driver runs no XDP program, or has no zero copy.
    LargeMtu {
        /// The MTU, in bytes.
        mtu: usize,
    },
    /// The interface is loopback, or its frames have no Ethernet header.
    NotEthernet,
    /// The interface is down.
    Down,
    /// The interface is a port of another, which takes its frames.
    Port {
        /// The name of the other interface: a bridge, a bond or similar.
        owner: String,
    },
    /// The interface already has an XDP program.
    Occupied {
        /// Where the kernel runs the program, as ip-link(8) calls it: `xdpdrv` or `xdpgeneric`.
        place: &'static str,
        /// The ID of the program, as in `bpftool prog show`.
        id: u32,
    },
    /// An interface on top of this one has an XDP program, or other AF_XDP sockets use one of its
    /// queues.
    InUse,
    /// The MTU of the interface is too small for any path MTU.
    SmallMtu {
        /// The MTU, in bytes.
        mtu: usize,
    },
    /// The process may not lock as much memory as the frames need.
    LockedMemory,
    /// All shards that the interface was opened for exist already.
    Shards {
        /// The number of shards that the interface was opened for.
        most: u32,
    },
}

impl XdpRefusal {
    pub(super) fn describe(&self, netdev: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str(
                "the xdp backend needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, outside of any user \
                 namespace: run it as root, `setcap cap_bpf,cap_net_admin,cap_net_raw+ep` the \
                 program, or choose the udp backend",
            ),
            Self::NotInKernel => f.write_str(
                "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS, CONFIG_BPF_SYSCALL): choose the \
                 packet or the udp backend",
            ),
            Self::NotOnInterface => write!(
                f,
                "the kernel runs no XDP program on interface {netdev}: choose another interface, \
                 or the packet or the udp backend"
            ),
            Self::NotInDriver => write!(
                f,
                "the driver of interface {netdev} runs no XDP program: choose the xdp:generic backend"
            ),
            Self::NoZeroCopy => write!(
                f,
                "the driver of interface {netdev} has no zero copy for AF_XDP: choose the xdp:driver \
                 or the xdp backend"
            ),
            Self::LargeMtu { mtu } => write!(
                f,
                "the MTU of interface {netdev} is {mtu}, which is too large for its driver's XDP or zero \
                 copy: `ip link set {netdev} mtu 3000`, or choose the xdp or the xdp:generic backend"
            ),
            Self::NotEthernet => write!(
                f,
                "the xdp backend needs an Ethernet interface, and {netdev} is none: choose the \
                 packet or the udp backend"
            ),
            Self::Down => {
                write!(f, "interface {netdev} is down: `ip link set {netdev} up`")
            }
            Self::Port { owner } => write!(
                f,
                "interface {netdev} is a port of {owner}, which takes its frames, so no neighbour \
                 can be found there: give {owner} the address (`ip address add`) and use {owner}"
            ),
            Self::Occupied { place, id } => write!(
                f,
                "interface {netdev} has an XDP program already ({place}, id {id}), of another program or \
                 of another process with the xdp backend: end that, and if it stays, `ip link set {netdev} \
                 {place} off`; or choose the packet or the udp backend, which can be used beside it"
            ),
            Self::InUse => write!(
                f,
                "interface {netdev} is in use for XDP already: another process has AF_XDP sockets on it \
                 (see `ss --xdp -p`), or an interface on top of it has an XDP program (see `ip -d link`): \
                 end that, or choose the packet or the udp backend, which can be used beside it"
            ),
            Self::SmallMtu { mtu } => write!(
                f,
                "the MTU of interface {netdev} is {mtu}, which is too small for packets with the \
                 path MTU 256: `ip link set {netdev} mtu 1500`"
            ),
            Self::LockedMemory => f.write_str(
                "the process may not lock enough memory for the frames of the xdp backend: raise \
                 the limit (`ulimit -l`), or give it CAP_IPC_LOCK",
            ),
            Self::Shards { most } => write!(
                f,
                "interface {netdev} was opened for {most} shard(s), and has them: open it for more \
                 (several need Linux 6.0, or 6.15 in generic mode)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NetError;

    #[test]
    fn each_is_one_line_that_says_what_to_do() {
        for (reason, remedy) in [
            (XdpRefusal::NotPermitted, "setcap cap_bpf,cap_net_admin,cap_net_raw+ep"),
            (XdpRefusal::NotInKernel, "choose the packet"),
            (XdpRefusal::NotOnInterface, "choose another interface"),
            (XdpRefusal::NotInDriver, "choose the xdp:generic"),
            (XdpRefusal::NoZeroCopy, "choose the xdp:driver"),
            (XdpRefusal::LargeMtu { mtu: 4200 }, "ip link set eth7 mtu 3000"),
            (XdpRefusal::NotEthernet, "choose the packet"),
            (XdpRefusal::Down, "ip link set eth7 up"),
            (XdpRefusal::Port { owner: "br0".into() }, "use br0"),
            (
                XdpRefusal::Occupied { place: "xdpgeneric", id: 12 },
                "ip link set eth7 xdpgeneric off",
            ),
            (XdpRefusal::InUse, "ss --xdp -p"),
            (XdpRefusal::SmallMtu { mtu: 300 }, "ip link set eth7 mtu 1500"),
            (XdpRefusal::LockedMemory, "ulimit -l"),
            (XdpRefusal::Shards { most: 1 }, "open it for more"),
        ] {
            let line = NetError::Xdp { netdev: "eth7".into(), reason }.to_string();
            assert!(line.contains(remedy) && !line.contains('\n'), "{line}");
        }
    }
}

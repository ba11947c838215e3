//! Capabilities for on-demand paging: the values of `ibv_query_device_ex`. IBTA does not define
//! them.

/// The operations that can use on-demand paging regions, for each transport. `struct ibv_odp_caps`
/// and `xrc_odp_caps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OdpCaps {
    /// The bits of `enum ibv_odp_general_caps`: 1 for on-demand regions, 2 for implicit ones.
    pub general: u64,
    /// Operations of reliable connections.
    pub rc: OdpTransportCaps,
    /// Operations of unreliable connections.
    pub uc: OdpTransportCaps,
    /// Operations of datagrams.
    pub ud: OdpTransportCaps,
    /// Operations of XRC.
    pub xrc: OdpTransportCaps,
}

impl OdpCaps {
    /// The capabilities of this engine: every operation of each transport.
    pub(super) const OURS: Self = {
        use OdpTransportCaps as T;
        let datagrams = T::SEND | T::RECV | T::SRQ_RECV;
        let reliable = datagrams | T::WRITE | T::READ | T::ATOMIC | T::FLUSH | T::ATOMIC_WRITE;
        Self {
            general: 0b11,
            rc: T(reliable),
            uc: T(datagrams | T::WRITE),
            ud: T(datagrams),
            xrc: T(reliable & !T::RECV),
        }
    };

    /// Returns the names of the general capabilities, as `ibv_devinfo` prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [(1, "ODP_SUPPORT"), (2, "ODP_SUPPORT_IMPLICIT")];
        names.into_iter().filter(move |(bit, _)| self.general & bit != 0).map(|(_, name)| name)
    }
}

/// The operations of a transport that can use on-demand regions, with the bits of
/// `enum ibv_odp_transport_cap_bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OdpTransportCaps(u32);

impl OdpTransportCaps {
    const SEND: u32 = 1 << 0;
    const RECV: u32 = 1 << 1;
    const WRITE: u32 = 1 << 2;
    const READ: u32 = 1 << 3;
    const ATOMIC: u32 = 1 << 4;
    const SRQ_RECV: u32 = 1 << 5;
    const FLUSH: u32 = 1 << 6;
    const ATOMIC_WRITE: u32 = 1 << 7;

    /// The names in `ibv_devinfo`, by bit.
    const NAMES: [(u32, &'static str); 8] = [
        (Self::SEND, "SUPPORT_SEND"),
        (Self::RECV, "SUPPORT_RECV"),
        (Self::WRITE, "SUPPORT_WRITE"),
        (Self::READ, "SUPPORT_READ"),
        (Self::ATOMIC, "SUPPORT_ATOMIC"),
        (Self::SRQ_RECV, "SUPPORT_SRQ"),
        (Self::FLUSH, "SUPPORT_FLUSH"),
        (Self::ATOMIC_WRITE, "SUPPORT_ATOMIC_WRITE"),
    ];

    /// Returns the bits as verbs define them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the names of the operations.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, name)| name)
    }
}

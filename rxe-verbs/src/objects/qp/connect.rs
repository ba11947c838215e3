//! Connecting two queue pairs whose programs have exchanged their endpoints.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rxe_core::VerbsError;
use rxe_core::mem::Access;
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rxe_core::types::{AckTimeout, Gid, Mtu, Psn, Qpn, RnrTimer};

use super::QueuePair;
use crate::error::{Error, Result};

/// What one side of a connection must know about the other. As text, one line: `qpn=0x000011
/// psn=0x0a0b0c mtu=1024 gid=127.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair number.
    pub qpn: Qpn,
    /// The PSN of the queue pair's first request.
    pub psn: Psn,
    /// The address of the queue pair's device.
    pub gid: Gid,
    /// The largest path MTU of the device's link.
    pub mtu: Mtu,
}

/// The attributes of a connection. The defaults suit most connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The path MTU, which must be the same at both ends. If `None`, the smaller of both ends'
    /// maximum.
    pub mtu: Option<Mtu>,
    /// How long to wait for an acknowledgement before a retransmission.
    pub timeout: AckTimeout,
    /// How often to retransmit before giving up, 0 to 7.
    pub retry_cnt: u8,
    /// How often to retry if the peer has no receive posted, 0 to 6; 7 retries without limit.
    pub rnr_retry: u8,
    /// How long the peer shall wait before a retry if no receive is posted here.
    pub min_rnr_timer: RnrTimer,
    /// How many READs and atomics this side may have outstanding.
    pub max_rd_atomic: u8,
    /// How many outstanding READs and atomics of the peer this side accepts; at least the peer's
    /// `max_rd_atomic`.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do through this queue pair, if the memory region allows it too.
    pub access: Access,
    /// The index of the local address; the builder's if `None`.
    pub gid_index: Option<u16>,
    /// The IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// The IPv6 flow label.
    pub flow_label: u32,
    /// The IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            mtu: None,
            // 67 ms.
            timeout: AckTimeout::new(14).unwrap_or_default(),
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: RnrTimer::new(12).unwrap_or_default(),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            gid_index: None,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }
}

impl QueuePair {
    /// Returns what the peer must know to connect to this queue pair.
    pub fn endpoint(&self) -> Endpoint {
        let gid = self.device().gid(self.gid_index).unwrap_or_default();
        Endpoint { qpn: self.qpn(), psn: self.psn, gid, mtu: self.device().active_mtu() }
    }

    /// Moves from RESET to INIT: receives may be posted from now on.
    ///
    /// `access` is what the peer may do. Datagram queue pairs ignore it and use the Q_Key instead.
    ///
    /// # Errors
    /// Fails in states other than RESET and INIT.
    pub fn to_init(&self, access: Access) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: access,
            qkey: self.qkey,
            pkey_index: 0,
            port_num: 1,
            ..QpAttr::default()
        };
        let of_service = match self.service() {
            QpType::Ud => AttrMask::QKEY,
            _ => AttrMask::ACCESS_FLAGS,
        };
        self.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | of_service)
    }

    /// Moves from INIT to RTR: requests of the peer are answered from now on.
    ///
    /// # Errors
    /// Fails in another state, for a datagram queue pair, and if an option does not fit the device
    /// or the peer.
    pub fn to_rtr(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.check_connected()?;
        if !self.device().reaches(peer.gid.to_ip()) {
            return Err(super::invalid(
                "this device has no address of the peer's family (IPv4 or IPv6)",
            ));
        }
        let attr = QpAttr {
            qp_state: QpState::Rtr,
            ah_attr: AddressVector {
                sgid_index: options.gid_index.unwrap_or(self.gid_index),
                dgid: peer.gid,
                flow_label: options.flow_label,
                traffic_class: options.traffic_class,
                hop_limit: options.hop_limit,
            },
            path_mtu: options.mtu.unwrap_or_else(|| self.device().active_mtu().min(peer.mtu)),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            qp_access_flags: options.access,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::ACCESS_FLAGS;
        let of_responder = match self.service() {
            QpType::Rc | QpType::XrcRecv => AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
            QpType::Uc | QpType::Ud | QpType::XrcSend => AttrMask::empty(),
        };
        self.modify(&attr, mask | of_responder)
    }

    /// Moves from RTR to RTS: requests may be sent from now on.
    ///
    /// # Errors
    /// Fails in another state, for a datagram queue pair, and if an option does not fit the device.
    pub fn to_rts(&self, options: &ConnectOptions) -> Result<()> {
        self.check_connected()?;
        let attr = QpAttr {
            qp_state: QpState::Rts,
            timeout: options.timeout,
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            sq_psn: self.psn,
            max_rd_atomic: options.max_rd_atomic,
            ..QpAttr::default()
        };
        let of_requester = match self.service() {
            QpType::Rc | QpType::XrcSend => {
                AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC
            }
            QpType::XrcRecv => AttrMask::TIMEOUT,
            QpType::Uc | QpType::Ud => AttrMask::empty(),
        };
        self.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN | of_requester)
    }

    /// Connects to a peer: moves from RESET or INIT to RTS.
    ///
    /// The peer does the same with this side's endpoint, before or after. Requests sent before the
    /// peer is connected are retransmitted until it is; on UC, they are lost.
    ///
    /// # Errors
    /// Fails in another state, for a datagram queue pair, and if an option does not fit the device
    /// or the peer. The state is unchanged then.
    pub fn connect(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<()> {
        self.check_connected()?;
        // Checked first, because a failure of the last step could not be undone without losing
        // posted receives.
        self.check_sending(options)?;
        let new = self.state() == QpState::Reset;
        if new {
            self.to_init(options.access)?;
        }
        self.to_rtr(peer, options).inspect_err(|_| {
            if new {
                // This fails only if the device has failed.
                let _ = self.to_reset();
            }
        })?;
        self.to_rts(options)
    }

    fn check_sending(&self, options: &ConnectOptions) -> Result<()> {
        let reads = self.device().limits().max_rd_atomic;
        for (name, value, limit) in [
            ("retry_cnt", options.retry_cnt, 7),
            ("rnr_retry", options.rnr_retry, 7),
            ("max_rd_atomic", options.max_rd_atomic, reads),
        ] {
            if value > limit {
                let why = format!("{value}: at most {limit}");
                return Err(VerbsError::InvalidAttribute { name, why }.into());
            }
        }
        Ok(())
    }

    fn check_connected(&self) -> Result<()> {
        if self.service() == QpType::Ud {
            return Err(super::invalid("a datagram QP has no peer of its own: use activate()"));
        }
        Ok(())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, psn, gid, mtu } = self;
        write!(f, "qpn={qpn} psn={psn} mtu={mtu} gid={}", gid.to_ip())
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| Error::Endpoint { text: text.chars().take(200).collect() })
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    let (mut qpn, mut psn, mut mtu, mut gid) = (None, None, None, None);
    for word in text.split_ascii_whitespace() {
        let (name, value) = word.split_once('=')?;
        match name {
            "qpn" => qpn = Some(Qpn::new(hex(value)?)?),
            "psn" => psn = Some(Psn::new(hex(value).filter(|n| *n < Psn::SPACE)?)),
            "mtu" => mtu = Some(Mtu::from_bytes(value.parse().ok()?)?),
            "gid" => gid = Some(Gid::from(value.parse::<IpAddr>().ok()?)),
            _ => return None,
        }
    }
    Some(Endpoint { qpn: qpn?, psn: psn?, gid: gid?, mtu: mtu? })
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_survives_being_text() {
        for ip in ["127.0.0.1", "fe80::1", "fd00::2:3"] {
            let endpoint = Endpoint {
                qpn: Qpn::new(0x11).unwrap(),
                psn: Psn::new(0xa_0b0c),
                gid: ip.parse::<IpAddr>().unwrap().into(),
                mtu: Mtu::M1024,
            };
            let text = endpoint.to_string();
            assert_eq!(text, format!("qpn=0x000011 psn=0x0a0b0c mtu=1024 gid={ip}"));
            assert_eq!(text.parse::<Endpoint>().unwrap(), endpoint);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "hello",
            "qpn=0x11 psn=0x1 mtu=1024",
            "qpn=0x1000000 psn=0x1 mtu=1024 gid=::1",
            "qpn=0x11 psn=0x1000000 mtu=1024 gid=::1",
            "qpn=17 psn=0x1 mtu=1024 gid=::1",
            "qpn=0x11 psn=0x1 mtu=1500 gid=::1",
            "qpn=0x11 psn=0x1 mtu=1024 gid=localhost",
        ] {
            assert!(matches!(text.parse::<Endpoint>(), Err(Error::Endpoint { .. })), "{text}");
        }
    }
}

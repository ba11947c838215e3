//! The hosts of a scenario: engines, memory and queue pairs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{CompletionQueue, Sge, SharedReceiveQueue, XrcDomain};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Psn, Qkey, Qpn, RnrTimer, Time};
use toml::Spanned;

use super::Bounds;
use super::description::{Description, Host, Qp, Right, Service};
use super::error::{Mistake, Result};
use crate::replay::Receive;

pub(super) const PD: PdId = PdId(1);

/// The depth of each queue, in requests.
const DEPTH: u32 = 1024;

/// The memory region of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) key: Key,
    pub(super) access: Access,
}

impl Region {
    /// Returns a scatter/gather element in the region, with another key if one is given.
    pub(super) fn sge(self, offset: u64, length: u32, key: Option<u32>) -> Sge {
        let lkey = key.map_or(self.key, Key::new);
        Sge { addr: self.start.wrapping_add(offset), length, lkey }
    }
}

/// A host: its engine, memory region and completion queue.
pub(super) struct Device {
    pub(super) address: IpAddr,
    pub(super) engine: Engine,
    pub(super) region: Region,
    pub(super) answers: bool,
    /// The completion queue of all its queue pairs.
    pub(super) cq: Arc<CompletionQueue>,
}

/// A queue pair. `made` is `None` if its host has no engine.
pub(super) struct Pair {
    pub(super) host: usize,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) service: Service,
    pub(super) qkey: u32,
    pub(super) peer: Option<String>,
    pub(super) path_mtu: Option<usize>,
    /// The receives, each with the time at which it was posted.
    pub(super) receives: RefCell<Vec<(Time, Receive)>>,
    pub(super) made: Option<Made>,
}

/// The engine's part of a queue pair.
pub(super) struct Made {
    pub(super) handle: Arc<QpHandle>,
    pub(super) srq: Option<Arc<SharedReceiveQueue>>,
}

/// Checks that no two hosts have the same address.
/// A packet to such an address would have two receivers.
pub(super) fn check_addresses(hosts: &BTreeMap<String, Host>) -> Result<()> {
    let mut all: Vec<_> = hosts.iter().map(|(name, host)| (name, &host.address)).collect();
    all.sort_by_key(|(_, address)| address.span().start);
    // An IPv4-mapped IPv6 address and the IPv4 address are one GID, so compare the canonical form.
    let mut known = BTreeMap::new();
    for (name, address) in all {
        let ip = address.get_ref().to_canonical();
        if ip.is_unspecified() {
            return Err(Mistake::at(address, format!("{ip} is not the address of a host")));
        }
        if let Some(other) = known.insert(ip, name) {
            let text = format!("[hosts.{other}] has the address {ip} too: give each host its own");
            return Err(Mistake::at(address, text));
        }
    }
    Ok(())
}

/// Checks that packets can go from one address to the other.
pub(super) fn check_versions(from: IpAddr, to: IpAddr) -> std::result::Result<(), String> {
    let [from, to] = [from, to].map(|address| address.to_canonical());
    if from.is_ipv4() == to.is_ipv4() {
        return Ok(());
    }
    Err(format!(
        "no packet can go from {from} to {to}: give both hosts IPv4 or both IPv6 addresses"
    ))
}

/// Creates the host with this index.
pub(super) fn device(index: u32, host: &Host, memory_left: &mut usize) -> Result<Device> {
    let size = host.memory.as_ref().map_or(1 << 16, |size| *size.get_ref());
    *memory_left = memory_left.checked_sub(size.max(1)).ok_or_else(|| {
        let most = Bounds::default().memory;
        let span = host.memory.as_ref().map_or(0..0, Spanned::span);
        Mistake::new(span, format!("the hosts have too much memory: at most {most} bytes together"))
    })?;
    let memory = Arc::new(Memory::new());
    let buffer = Buffer::zeroed(size.max(1));
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
    if let Some(span) = buffer.span(0, size as u64) {
        // The write cannot fail: this process owns the memory.
        let _ = span.write(&bytes);
    }
    let key = host.rkey.unwrap_or(0x100 * (index + 1));
    let access = access(host.access.as_ref());
    let mut candidate = key;
    let registered = memory.register(PD, buffer, host.va, access, || {
        // `register` asks for another key if this one is not possible.
        let this = candidate;
        candidate = candidate.wrapping_add(1);
        this
    });
    let key = registered.map_err(|e| {
        let span = host.access.as_ref().map_or(0..0, Spanned::span);
        Mistake::new(span, format!("the memory cannot be registered so: {}", e.explain()))
    })?;
    let config = Config { gids: vec![Gid::from(*host.address.get_ref())], ..Config::default() };
    let mut engine = Engine::new(config, memory);
    engine.set_gsi(true);
    let region = Region { start: host.va, len: size as u64, key, access };
    // No bound is needed: the queues of each queue pair are bounded.
    let cq = Arc::new(CompletionQueue::new(u32::MAX, None));
    let address = *host.address.get_ref();
    Ok(Device { address, engine, region, answers: host.engine, cq })
}

/// Returns the access rights; all if none are named.
fn access(rights: Option<&Spanned<Vec<Right>>>) -> Access {
    let Some(rights) = rights else {
        return Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT;
    };
    rights.get_ref().iter().fold(Access::empty(), |all, right| {
        all | match right {
            Right::LocalWrite => Access::LOCAL_WRITE,
            Right::RemoteWrite => Access::REMOTE_WRITE,
            Right::RemoteRead => Access::REMOTE_READ,
            Right::RemoteAtomic => Access::REMOTE_ATOMIC,
            Right::FlushGlobal => Access::FLUSH_GLOBAL,
            Right::FlushPersistent => Access::FLUSH_PERSISTENT,
        }
    })
}

/// Creates the queue pairs and connects them as the scenario says.
pub(super) fn pairs(
    it: &Description,
    names: &[&String],
    devices: &mut [Device],
    now: Time,
) -> Result<BTreeMap<String, Pair>> {
    let mut pairs = BTreeMap::new();
    for (index, (name, qp)) in (0..).zip(&it.qps) {
        let host = names.iter().position(|host| *host == qp.host.get_ref());
        let host = host.ok_or_else(|| {
            let text = format!("there is no [hosts.{}]", qp.host.get_ref());
            Mistake::at(&qp.host, text)
        })?;
        let qpn = match &qp.qpn {
            Some(number) => Qpn::new(*number.get_ref())
                .ok_or_else(|| Mistake::at(number, "a queue pair number has 24 bits"))?,
            None => Qpn::from_wire(0x11 + index),
        };
        let psn = Psn::new(match &qp.psn {
            Some(psn) if *psn.get_ref() >= 1 << 24 => {
                return Err(Mistake::at(psn, "a PSN has 24 bits"));
            }
            Some(psn) => *psn.get_ref(),
            None => 0x1000 * (index + 1),
        });
        let made = match devices[host].answers {
            true => Some(create(&mut devices[host], qpn, qp)?),
            false => None,
        };
        let peer = qp.peer.as_ref().map(|peer| peer.get_ref().clone());
        let (service, qkey) = (qp.service, qp.qkey);
        let path_mtu = qp.mtu.as_ref().map(|mtu| *mtu.get_ref());
        let receives = RefCell::default();
        let pair = Pair { host, qpn, psn, service, qkey, peer, path_mtu, receives, made };
        pairs.insert(name.clone(), pair);
    }
    for (name, qp) in &it.qps {
        let peer = match &qp.peer {
            None => None,
            Some(peer) => {
                let missing = || Mistake::at(peer, format!("there is no [qps.{}]", peer.get_ref()));
                let peer: &Pair = pairs.get(peer.get_ref()).ok_or_else(missing)?;
                Some((peer.qpn, peer.psn, devices[peer.host].address))
            }
        };
        let pair = &pairs[name];
        if pair.made.is_some() {
            connect(&mut devices[pair.host], now, qp, pair, peer)?;
        }
    }
    Ok(pairs)
}

/// Creates a queue pair, and for XRC its shared receive queue.
fn create(device: &mut Device, qpn: Qpn, qp: &Qp) -> Result<Made> {
    let cq = &device.cq;
    let (mut srq, mut xrcd) = (None, None);
    if qp.service == Service::XrcRecv {
        let queue = SharedReceiveQueue::new_xrc(qpn.value(), PD, DEPTH, 4, Arc::clone(cq));
        let (queue, domain) = (Arc::new(queue), XrcDomain::new());
        domain.add(Arc::clone(&queue));
        (srq, xrcd) = (Some(queue), Some(Arc::new(domain)));
    }
    let init = QpInit {
        service: match qp.service {
            Service::Rc => QpType::Rc,
            Service::Uc => QpType::Uc,
            Service::Ud => QpType::Ud,
            Service::XrcSend => QpType::XrcSend,
            Service::XrcRecv => QpType::XrcRecv,
        },
        pd: if xrcd.is_some() { PdId(0) } else { PD },
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        cap: QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpCap::default() },
        srq: None,
        xrcd,
        sq_sig_all: true,
    };
    let handle = device.engine.create_qp(qpn, init).map_err(|e| refused(qp, &e))?;
    Ok(Made { handle, srq })
}

fn refused(qp: &Qp, e: &rxe_core::VerbsError) -> Mistake {
    Mistake::at(&qp.host, format!("this queue pair cannot be made: {e}"))
}

/// Brings a queue pair to RTS.
fn connect(
    device: &mut Device,
    now: Time,
    qp: &Qp,
    pair: &Pair,
    peer: Option<(Qpn, Psn, IpAddr)>,
) -> Result<()> {
    let mut attr = QpAttr {
        qp_access_flags: access(qp.access.as_ref()),
        sq_psn: pair.psn,
        qkey: Qkey::new(qp.qkey),
        max_rd_atomic: qp.max_rd_atomic.unwrap_or(16),
        max_dest_rd_atomic: qp.max_dest_rd_atomic.unwrap_or(16),
        ..QpAttr::default()
    };
    if let Some(mtu) = &qp.mtu {
        let none = || Mistake::at(mtu, "a path MTU is 256, 512, 1024, 2048 or 4096");
        attr.path_mtu = Mtu::from_bytes(*mtu.get_ref()).ok_or_else(none)?;
    }
    let five_bits = |value: &Spanned<u8>| Mistake::at(value, "this code has 5 bits: 0 to 31");
    if let Some(code) = &qp.timeout {
        attr.timeout = AckTimeout::new(*code.get_ref()).ok_or_else(|| five_bits(code))?;
    }
    if let Some(code) = &qp.min_rnr_timer {
        attr.min_rnr_timer = RnrTimer::new(*code.get_ref()).ok_or_else(|| five_bits(code))?;
    }
    attr.retry_cnt = qp.retry_cnt.as_ref().map_or(7, |n| *n.get_ref());
    attr.rnr_retry = qp.rnr_retry.as_ref().map_or(7, |n| *n.get_ref());
    attr.ah_attr.traffic_class = qp.traffic_class.unwrap_or(0);
    let (init, rtr, rts) = masks(qp.service);
    if let Some((qpn, psn, address)) = peer {
        check_versions(device.address, address)
            .map_err(|text| Mistake::at(qp.peer.as_ref().unwrap_or(&qp.host), text))?;
        (attr.dest_qp_num, attr.rq_psn) = (qpn, psn);
        attr.ah_attr.dgid = Gid::from(address);
    } else if qp.service != Service::Ud {
        return Err(Mistake::at(&qp.host, "this queue pair needs a peer: peer = \"NAME\""));
    }
    let init = init | AttrMask::PKEY_INDEX | AttrMask::PORT;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.qp_state = state;
        let done = device.engine.modify_qp(now, pair.qpn, &attr, mask | AttrMask::STATE);
        done.map_err(|e| refused(qp, &e))?;
    }
    Ok(())
}

/// Returns the attributes required for the transitions to INIT, RTR and RTS.
fn masks(service: Service) -> (AttrMask, AttrMask, AttrMask) {
    let way = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let asks = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let psn = AttrMask::SQ_PSN;
    match service {
        Service::Rc => (AttrMask::ACCESS_FLAGS, way | answers, psn | AttrMask::TIMEOUT | asks),
        Service::XrcSend => (AttrMask::ACCESS_FLAGS, way, psn | AttrMask::TIMEOUT | asks),
        Service::XrcRecv => (AttrMask::ACCESS_FLAGS, way | answers, psn | AttrMask::TIMEOUT),
        Service::Uc => (AttrMask::ACCESS_FLAGS, way, psn),
        Service::Ud => (AttrMask::QKEY, AttrMask::empty(), psn),
    }
}

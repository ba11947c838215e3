//! Draws requests and attributes, correct and wrong ones.

use std::sync::Arc;

use rxe_core::mem::{Access, Binding};
use rxe_core::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rxe_core::queue::{
    Datagram, Payload, Placement, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, SgeList,
};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Psn, Qkey, Qpn, RnrTimer};

use super::node::{Node, RECEIVE};
use crate::fuzz::input::Input;
use crate::fuzz::ladder::ladder;

const QKEY: Qkey = Qkey::new(0x77);

/// Draws the elements of a scatter/gather list, most of them good.
fn sges(input: &mut Input<'_>, node: &Node) -> SgeList {
    let mut list = SgeList::new();
    for _ in 0..input.pick(&[1, 1, 1, 2, 0, 4, 5]) {
        let region = &node.regions[input.index(node.regions.len())];
        let length = input.pick(&[8, 100, 0, 1, 600, 1024, 1200, 1 << 20, u32::MAX]);
        let wrong = input.chance(8);
        let base = if wrong { input.bits() } else { region.base };
        let addr = base.wrapping_add(input.pick(&[0, 0, 8, 64, 3]));
        let lkey = if input.chance(8) { Key::new(input.word()) } else { region.key };
        list.push(Sge { addr, length, lkey });
    }
    list
}

fn remote(input: &mut Input<'_>, peer: &Node) -> Remote {
    let region = &peer.regions[input.index(peer.regions.len())];
    let rkey = match peer.windows.get(usize::from(input.byte())) {
        Some(&window) => peer.memory.window_key(window).unwrap_or(window),
        None => region.key,
    };
    Remote { addr: region.base.wrapping_add(input.pick(&[0, 0, 8, 64, 3, 1200])), rkey }
}

pub(super) fn send(input: &mut Input<'_>, node: &Node, peer: &Node, pair: usize) -> SendRequest {
    let service = node.qps[pair].handle.init().service;
    let remote = remote(input, peer);
    let imm = input.chance(80).then(|| input.word());
    let window = node.windows.get(usize::from(input.byte() % 4));
    let window = window.map_or(Key::new(5), |&w| node.memory.window_key(w).unwrap_or(w));
    let op = match input.byte() % 12 {
        0..=1 => SendOp::Send { imm },
        2 => SendOp::Write { remote, imm },
        3 => SendOp::Read { remote },
        4 => SendOp::CompareSwap { remote, compare: 0, swap: input.bits() },
        5 => SendOp::FetchAdd { remote, add: input.bits() },
        6 => SendOp::SendInvalidate { rkey: remote.rkey },
        7 => SendOp::AtomicWrite { remote },
        8 => {
            let (length, whole_region) = (input.word(), input.chance(128));
            let placement = Placement::from_bits_truncate(input.byte());
            SendOp::Flush { remote, length, placement, whole_region }
        }
        9 => {
            let region = &node.regions[input.index(node.regions.len())];
            let (addr, length) =
                (region.base.wrapping_add(input.pick(&[0, 8])), input.pick(&[64, 0, 9999]));
            let access = Access::from_bits_truncate(input.word());
            let binding = Binding { region: region.key, addr, length, access };
            SendOp::BindWindow { window, new_key: input.byte(), binding }
        }
        10 => SendOp::LocalInvalidate { key: window },
        _ => SendOp::Write { remote, imm: None },
    };
    let payload = match input.byte() {
        0..=159 if op.is_atomic() || matches!(op, SendOp::AtomicWrite { .. }) => {
            let region = &node.regions[input.index(node.regions.len())];
            let sge = Sge { addr: region.base, length: 8, lkey: region.key };
            Payload::Sges([sge].into_iter().collect())
        }
        0..=159 if op.is_local() || matches!(op, SendOp::Flush { .. }) => {
            Payload::Sges(SgeList::new())
        }
        0..=199 => Payload::Sges(sges(input, node)),
        _ => Payload::Inline(input.pick(&[&b"12345678"[..], &[7; 200], &[7; 600], &[]]).into()),
    };
    let wrong = input.chance(8);
    let is_ud = (service == QpType::Ud) != wrong;
    let ah = node.ahs.get(input.index(node.ahs.len().max(1)));
    let to = ah.filter(|_| is_ud).map(|ah| Datagram {
        ah: Arc::clone(ah),
        qpn: match peer.qps.get(usize::from(input.byte() % 8)) {
            Some(pair) => pair.handle.qpn(),
            None => Qpn::MULTICAST,
        },
        qkey: input.pick(&[QKEY, QKEY, Qkey::new(0x8000_0000), Qkey::new(1)]),
    });
    let flags = SendFlags::from_bits_truncate(u32::from(input.byte()));
    let is_xrc = (service == QpType::XrcSend) != input.chance(4);
    let xrc_srq = is_xrc.then(|| u32::from(input.pick(&[1u8, 1, 2, 9])));
    SendRequest { id: node.ids, op, payload, flags, to, xrc_srq }
}

pub(super) fn receive(input: &mut Input<'_>, node: &Node) -> RecvRequest {
    RecvRequest { id: node.ids | RECEIVE, sges: sges(input, node) }
}

/// Returns the attributes for a connection to a queue pair of the peer.
pub(super) fn attributes(to: Gid, qpn: Qpn) -> QpAttr {
    let mut attr = QpAttr {
        qp_access_flags: Access::all() - Access::ZERO_BASED,
        path_mtu: Mtu::M256,
        timeout: AckTimeout::new(8).expect("1 ms"),
        max_rd_atomic: 3,
        max_dest_rd_atomic: 3,
        retry_cnt: 3,
        rnr_retry: 3,
        qkey: QKEY,
        rq_psn: Psn::new(0xff_fffe),
        sq_psn: Psn::new(0xff_fffe),
        dest_qp_num: qpn,
        ..QpAttr::default()
    };
    attr.ah_attr.dgid = to;
    attr
}

/// Draws any attributes.
pub(super) fn any_attributes(input: &mut Input<'_>, to: Gid) -> QpAttr {
    let state = |input: &mut Input<'_>| input.pick(&QpState::ALL);
    QpAttr {
        qp_state: state(input),
        cur_qp_state: state(input),
        en_sqd_async_notify: input.chance(128),
        sq_draining: false,
        qp_access_flags: Access::from_bits_truncate(input.word()),
        pkey_index: u16::from(input.pick(&[0u8, 0, 1])),
        port_num: input.pick(&[1, 1, 0, 2]),
        qkey: Qkey::new(input.word()),
        ah_attr: any_address(input, to),
        path_mtu: input.pick(&Mtu::ALL),
        timeout: AckTimeout::new(input.byte() % 32).unwrap_or(AckTimeout::INFINITE),
        retry_cnt: input.byte() % 9,
        rnr_retry: input.byte() % 9,
        rq_psn: Psn::new(input.word()),
        max_rd_atomic: input.byte(),
        max_dest_rd_atomic: input.byte(),
        min_rnr_timer: RnrTimer::from_wire(input.byte()),
        sq_psn: Psn::new(input.word()),
        dest_qp_num: Qpn::from_wire(input.word()),
    }
}

pub(super) fn any_address(input: &mut Input<'_>, to: Gid) -> AddressVector {
    let group = Gid::from(std::net::IpAddr::from([239, 0, 0, 1]));
    AddressVector {
        sgid_index: u16::from(input.pick(&[0u8, 0, 0, 1, 2, 200])),
        dgid: input.pick(&[to, to, to, group, Gid::ZERO, Gid::from_bytes([0xff; 16])]),
        flow_label: input.word(),
        traffic_class: input.byte(),
        hop_limit: input.byte(),
    }
}

/// Draws a mask: one of the usual ones, sometimes with one bit changed.
pub(super) fn any_mask(input: &mut Input<'_>, service: QpType) -> AttrMask {
    let usual = ladder(service).map(|(_, mask)| mask);
    let usual = input.pick(&[usual[0], usual[1], usual[2], AttrMask::STATE]);
    let spoiled = input.chance(100);
    if spoiled { usual ^ AttrMask::from_bits_truncate(1 << (input.byte() % 26)) } else { usual }
}

//! The structures of `rdma/rdma_cma.h`, as programs were compiled with them.

#![allow(non_camel_case_types, reason = "the header's own names")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::ibverbs::abi::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq,
};

#[repr(C)]
pub(super) struct rdma_event_channel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct rdma_ib_addr {
    pub(super) sgid: ibv_gid,
    pub(super) dgid: ibv_gid,
    pub(super) pkey: u16,
}

#[repr(C)]
pub(super) struct rdma_addr {
    pub(super) src: libc::sockaddr_storage,
    pub(super) dst: libc::sockaddr_storage,
    pub(super) ib: rdma_ib_addr,
}

#[repr(C)]
pub(super) struct rdma_route {
    pub(super) addr: rdma_addr,
    pub(super) path_rec: *mut ibv_sa_path_rec,
    pub(super) num_paths: c_int,
}

#[repr(C)]
pub(super) struct ibv_sa_path_rec {
    pub(super) dgid: ibv_gid,
    pub(super) sgid: ibv_gid,
    pub(super) dlid: u16,
    pub(super) slid: u16,
    pub(super) raw_traffic: c_int,
    pub(super) flow_label: u32,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) reversible: c_int,
    pub(super) numb_path: u8,
    pub(super) pkey: u16,
    pub(super) sl: u8,
    pub(super) mtu_selector: u8,
    pub(super) mtu: u8,
    pub(super) rate_selector: u8,
    pub(super) rate: u8,
    pub(super) packet_life_time_selector: u8,
    pub(super) packet_life_time: u8,
    pub(super) preference: u8,
}

#[repr(C)]
pub(super) struct rdma_cm_id {
    pub(super) verbs: *mut ibv_context,
    pub(super) channel: *mut rdma_event_channel,
    pub(super) context: *mut c_void,
    pub(super) qp: *mut ibv_qp,
    pub(super) route: rdma_route,
    pub(super) ps: c_uint,
    pub(super) port_num: u8,
    pub(super) event: *mut rdma_cm_event,
    pub(super) send_cq_channel: *mut ibv_comp_channel,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq_channel: *mut ibv_comp_channel,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) pd: *mut ibv_pd,
    pub(super) qp_type: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma_conn_param {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma_ud_param {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) qp_num: u32,
    pub(super) qkey: u32,
}

#[repr(C)]
pub(super) union event_param {
    pub(super) conn: rdma_conn_param,
    pub(super) ud: rdma_ud_param,
    /// The argument of `rdma_write_cm_event`, in rdma-core 61 and later.
    pub(super) arg: u64,
}

#[repr(C)]
pub(super) struct rdma_cm_event {
    pub(super) id: *mut rdma_cm_id,
    pub(super) listen_id: *mut rdma_cm_id,
    pub(super) event: c_uint,
    pub(super) status: c_int,
    pub(super) param: event_param,
}

#[repr(C)]
pub(super) struct rdma_addrinfo {
    pub(super) ai_flags: c_int,
    pub(super) ai_family: c_int,
    pub(super) ai_qp_type: c_int,
    pub(super) ai_port_space: c_int,
    pub(super) ai_src_len: libc::socklen_t,
    pub(super) ai_dst_len: libc::socklen_t,
    pub(super) ai_src_addr: *mut libc::sockaddr,
    pub(super) ai_dst_addr: *mut libc::sockaddr,
    pub(super) ai_src_canonname: *mut c_char,
    pub(super) ai_dst_canonname: *mut c_char,
    pub(super) ai_route_len: usize,
    pub(super) ai_route: *mut c_void,
    pub(super) ai_connect_len: usize,
    pub(super) ai_connect: *mut c_void,
    pub(super) ai_next: *mut rdma_addrinfo,
}

pub(super) const RAI_PASSIVE: c_int = 0x1;
pub(super) const RAI_NUMERICHOST: c_int = 0x2;
pub(super) const RAI_SA: c_int = 0x10;

#[repr(C)]
pub(super) struct rdma_cm_join_mc_attr_ex {
    pub(super) comp_mask: u32,
    pub(super) join_flags: u32,
    pub(super) addr: *mut libc::sockaddr,
}

/// Reads an address of a program. Returns `None` if its family is neither IPv4 nor IPv6.
///
/// # Safety
/// `address` is null or points to an address with the size of its family.
pub(super) unsafe fn read_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the caller's promise, for this family.
            let sin = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the caller's promise, for this family.
            let sin = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
            let port = u16::from_be(sin.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, sin.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Writes an address for programs. Returns its size in bytes.
pub(super) fn write_address(
    address: SocketAddr,
    to: &mut libc::sockaddr_storage,
) -> libc::socklen_t {
    // SAFETY: all zeros is an address of no family.
    *to = unsafe { std::mem::zeroed() };
    let to: *mut libc::sockaddr_storage = to;
    let size = match address.ip() {
        IpAddr::V4(ip) => {
            let sin = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough, and aligned, for every family.
            unsafe { to.cast::<libc::sockaddr_in>().write(sin) };
            size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(ip) => {
            let scope = match address {
                SocketAddr::V6(six) => six.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            let sin = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: scope,
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(sin) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    libc::socklen_t::try_from(size).unwrap_or(0)
}

fn family(number: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).unwrap_or_default()
}

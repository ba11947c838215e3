//! Tests of queries that programs make before they create objects: the list of devices, and the
//! device to which an address leads. libfabric's verbs provider lists its devices with them.

use std::ffi::{CStr, c_int};
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr;

use super::abi::{rdma_addrinfo, rdma_cm_id, read_address, write_address};
use super::devices::{rdma_free_devices, rdma_get_devices};
use super::getaddrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
use super::id::{rdma_bind_addr, rdma_create_id, rdma_destroy_id, rdma_resolve_addr};
use super::verbs::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PS_TCP: u32 = 0x0106;

fn sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros is an address of no family.
    let mut storage = unsafe { std::mem::zeroed() };
    let len = write_address(address, &mut storage);
    (storage, len)
}

#[test]
fn devices_are_listed_in_one_order_by_verbs_and_by_rdma_cm() {
    let (mut verbs_count, mut cm_count): (c_int, c_int) = (0, 0);
    // SAFETY: the lists are as long as they say, and end with null.
    let (of_verbs, of_cm) = unsafe {
        let devices = ibv_get_device_list(&raw mut verbs_count);
        let contexts = rdma_get_devices(&raw mut cm_count);
        let name = |device| CStr::from_ptr(ibv_get_device_name(device)).to_owned();
        let count = usize::try_from(verbs_count).unwrap();
        let of_verbs: Vec<_> = (0..count).map(|at| name(*devices.add(at))).collect();
        let count = usize::try_from(cm_count).unwrap();
        let of_cm: Vec<_> = (0..count).map(|at| name((**contexts.add(at)).device)).collect();
        ibv_free_device_list(devices);
        rdma_free_devices(contexts);
        (of_verbs, of_cm)
    };
    assert_eq!(of_verbs, of_cm);
}

#[test]
fn addresses_alone_are_an_answer() {
    let (peer, own) = ("192.0.2.9:7471".parse().unwrap(), "192.0.2.2:0".parse().unwrap());
    let ((mut peer_storage, peer_len), (mut own_storage, own_len)) =
        (sockaddr(peer), sockaddr(own));
    let mut found: *mut rdma_addrinfo = ptr::null_mut();
    // SAFETY: all zeros is an empty hint; the answer is read before it is freed.
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        hints.ai_family = libc::AF_INET;
        (hints.ai_dst_addr, hints.ai_dst_len) = ((&raw mut peer_storage).cast(), peer_len);
        (hints.ai_src_addr, hints.ai_src_len) = ((&raw mut own_storage).cast(), own_len);
        assert_eq!(rdma_getaddrinfo(ptr::null(), ptr::null(), &raw const hints, &raw mut found), 0);
        assert_eq!((*found).ai_family, libc::AF_INET);
        assert_eq!(read_address((*found).ai_dst_addr), Some(peer));
        assert_eq!(read_address((*found).ai_src_addr), Some(own));
        rdma_freeaddrinfo(found);
        assert_eq!(rdma_getaddrinfo(ptr::null(), ptr::null(), ptr::null(), &raw mut found), -1);
    }
}

#[test]
fn a_family_in_the_hints_is_the_family_of_the_answer() {
    let mut found: *mut rdma_addrinfo = ptr::null_mut();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // SAFETY: as above.
        unsafe {
            let mut hints: rdma_addrinfo = std::mem::zeroed();
            hints.ai_family = family;
            let service = c"7471".as_ptr();
            assert_eq!(rdma_getaddrinfo(ptr::null(), service, &raw const hints, &raw mut found), 0);
            assert_eq!((*found).ai_family, family);
            rdma_freeaddrinfo(found);
        }
    }
}

#[test]
fn an_identifier_bound_to_loopback_shows_no_device_until_it_has_a_peer() {
    let (mut own, _) = sockaddr((LOOPBACK, 0).into());
    let (mut peer, _) = sockaddr((LOOPBACK, 7471).into());
    let mut id: *mut rdma_cm_id = ptr::null_mut();
    // SAFETY: an identifier, from its creation to its destruction.
    unsafe {
        assert_eq!(rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), PS_TCP), 0);
        assert_eq!(rdma_bind_addr(id, (&raw mut own).cast()), 0);
        assert!((*id).verbs.is_null() && (*id).pd.is_null());
        assert_eq!(rdma_resolve_addr(id, ptr::null_mut(), (&raw mut peer).cast(), 1000), 0);
        assert!(!(*id).verbs.is_null() && !(*id).pd.is_null());
        assert_eq!(rdma_destroy_id(id), 0);
    }
}

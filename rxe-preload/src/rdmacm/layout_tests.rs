//! Compares the layout of every structure with the C compiler's for the installed header.

use std::mem::offset_of;

use super::abi::*;
use crate::c_header::values_in_c;

macro_rules! layouts {
    ($($name:ident { $($field:ident $(as $c:literal)?),* $(,)? })*) => {
        vec![$(
            (format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()),
            $((
                format!("offsetof(struct {}, {})", stringify!($name), layouts!(@ $field $($c)?)),
                offset_of!($name, $field),
            ),)*
        )*]
    };
    (@ $field:ident $c:literal) => { $c };
    (@ $field:ident) => { stringify!($field) };
}

fn ours() -> Vec<(String, usize)> {
    layouts! {
        rdma_event_channel { fd }
        rdma_ib_addr { sgid, dgid, pkey }
        rdma_addr { src as "src_addr", dst as "dst_addr", ib as "addr" }
        rdma_route { addr, path_rec, num_paths }
        ibv_sa_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
            numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference,
        }
        rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type,
        }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }
        rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route,
            ai_connect_len, ai_connect, ai_next,
        }
        rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    }
}

#[test]
fn every_structure_is_laid_out_as_the_header_s() {
    let ours = ours();
    let expressions = ours.iter().map(|(expression, _)| expression.clone());
    let Some(theirs) = values_in_c("rdma/rdma_cma.h", expressions) else { return };
    assert_eq!(theirs.len(), ours.len());
    let wrong: Vec<_> = ours.iter().zip(&theirs).filter(|((_, own), c)| own != *c).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

//! Compares the layout of every structure with the C compiler's for the installed header.

use std::mem::offset_of;

use super::*;
use crate::c_header::values_in_c;

/// Expands `Name { rust_field as c_field, … }` to lines of the structure, the C field, and Rust's
/// value.
macro_rules! layouts {
    ($($kind:literal $name:ident { $($field:ident $(. $sub:ident)* $(as $c:literal)?),* $(,)? })*) => {
        vec![$(
            (concat!($kind, " ", stringify!($name)).to_owned(), None, size_of::<$name>()),
            $((
                concat!($kind, " ", stringify!($name)).to_owned(),
                Some(layouts!(@field $field $(. $sub)* $(as $c)?).to_owned()),
                offset_of!($name, $field $(. $sub)*),
            ),)*
        )*]
    };
    (@field $field:ident $(. $sub:ident)* as $c:literal) => { $c };
    (@field $field:ident $(. $sub:ident)*) => { concat!(stringify!($field) $(, ".", stringify!($sub))*) };
}

type Line = (String, Option<String>, usize);

#[rustfmt::skip]
fn ours() -> Vec<Line> {
    layouts! {
        "union" ibv_gid { raw }
        "struct" ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        "struct" ibv_context_ops {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }
        "struct" ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        "struct" verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, reg_dm_mr, alloc_dm, free_dm,
            modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops,
            destroy_rwq_ind_table, create_wq, query_rt_values, create_cq_ex, r#priv as "priv",
            query_device_ex, ibv_destroy_flow, ibv_create_flow, open_qp, create_qp_ex, get_srq_num,
            create_srq_ex, open_xrcd, close_xrcd, sz, context,
        }
        "struct" ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
            max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah,
            max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt,
        }
        "struct" ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        "struct" ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        "struct" ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
            phys_port_cnt_ex,
        }
        "struct" ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2,
        }
        "struct" ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct" ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        "struct" ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct" ibv_srq_attr { max_wr, max_sge, srq_limit }
        "struct" ibv_srq_init_attr { srq_context, attr }
        "struct" ibv_srq_init_attr_ex {
            srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap,
        }
        "struct" ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        "struct" ibv_qp_init_attr {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        }
        "struct" ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        "struct" ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        "struct" ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        "struct" ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
        }
        "struct" ibv_xrcd_init_attr { comp_mask, fd, oflags }
        "struct" ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        "struct" ibv_td_init_attr { comp_mask }
        "struct" ibv_values_ex { comp_mask, raw_clock }
        "struct" ibv_ece { vendor_id, options, comp_mask }
        "struct" ibv_async_event { element, event_type }
        "struct" ibv_sge { addr, length, lkey }
        "struct" ibv_data_buf { addr, length }
        "struct" ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct" ibv_mw_bind { wr_id, send_flags, bind_info }
        "struct" ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_or_rkey as "imm_data",
            wr, remote_srqn as "qp_type.xrc.remote_srqn", bind_mw, bind_mw.rkey, bind_mw.bind_info,
        }
        "struct" ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct" ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_or_rkey as "imm_data", qp_num, src_qp,
            wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        "struct" ibv_grh {}
        "struct" ibv_pd { context, handle }
        "struct" ibv_td { context }
        "struct" ibv_xrcd { context }
        "struct" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct" ibv_mw { context, pd, rkey, handle, r#type as "type" }
        "struct" ibv_ah { context, pd, handle }
        "struct" ibv_srq { context, srq_context, pd, handle, unused as "mutex", events_completed }
        "struct" ibv_comp_channel { context, fd, refcnt }
        "struct" ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
            unused as "mutex", events_completed,
        }
        "struct" ibv_cq {
            context, channel, cq_context, handle, cqe, unused as "mutex", comp_events_completed,
            async_events_completed,
        }
        "struct" ibv_cq_ex {
            base.context as "context", base.cqe as "cqe", comp_mask, status, wr_id, start_poll,
            next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data,
            read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
            read_completion_wallclock_ns,
        }
        "struct" ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
            wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
            wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
            wr_atomic_write,
        }
    }
}

#[test]
fn every_structure_is_laid_out_as_the_header_s() {
    let mut ours = ours();
    // New versions of the header add fields at its end. Programs do not use fields that their header
    // lacks.
    ours.retain(|(name, field, _)| name != "struct ibv_qp_ex" || field.is_some());
    let expressions = ours.iter().map(|(name, field, _)| match field {
        Some(field) => format!("offsetof({name}, {field})"),
        None => format!("sizeof({name})"),
    });
    let Some(theirs) = values_in_c("infiniband/verbs.h", expressions) else { return };
    assert_eq!(theirs.len(), ours.len());
    let wrong: Vec<_> = ours
        .iter()
        .zip(&theirs)
        .filter(|((_, _, own), c)| own != *c)
        .map(|((name, field, own), c)| format!("{name} {field:?}: {own}, in C {c}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

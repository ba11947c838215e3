//! The attributes of a device and its port, named and ordered as by `ibv_devinfo`.

use std::fmt::Display;

use rxe_core::types::Mtu;
use rxe_verbs::device::{DeviceInfo, PortAttr};
use serde_json::Value;

/// A line of the output.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The value as `ibv_devinfo` formats it.
    pub(super) text: String,
    pub(super) json: Value,
    /// Whether the line is shown only with `-v`.
    pub(super) verbose: bool,
    /// Further lines below this one.
    pub(super) below: Vec<&'static str>,
}

pub(super) fn device_fields(device: &DeviceInfo) -> Vec<Field> {
    let a = device.attr();
    let caps = a.device_cap_flags;
    let atomic_cap = a.atomic_cap as u8;
    let basic = [
        plain("hca_id", device.name()),
        coded("transport", "InfiniBand", 0),
        plain("fw_ver", a.fw_ver),
        plain("node_guid", a.node_guid.to_string()),
        plain("sys_image_guid", a.sys_image_guid.to_string()),
        hex("vendor_id", a.vendor_id, format!("0x{:04x}", a.vendor_id)),
        plain("vendor_part_id", a.vendor_part_id),
        hex("hw_ver", a.hw_ver, format!("0x{:X}", a.hw_ver)),
        plain("phys_port_cnt", a.phys_port_cnt),
    ];
    let all = [
        hex("max_mr_size", a.max_mr_size, format!("0x{:x}", a.max_mr_size)),
        hex("page_size_cap", a.page_size_cap, format!("0x{:x}", a.page_size_cap)),
        plain("max_qp", a.max_qp),
        plain("max_qp_wr", a.max_qp_wr),
        Field {
            below: caps.basic().names().collect(),
            json: caps.names().collect(),
            ..plain("device_cap_flags", format!("0x{:08x}", caps.basic().bits()))
        },
        plain("max_sge", a.max_sge),
        plain("max_sge_rd", a.max_sge_rd),
        plain("max_cq", a.max_cq),
        plain("max_cqe", a.max_cqe),
        plain("max_mr", a.max_mr),
        plain("max_pd", a.max_pd),
        plain("max_qp_rd_atom", a.max_qp_rd_atom),
        plain("max_ee_rd_atom", 0),
        plain("max_res_rd_atom", a.max_res_rd_atom),
        plain("max_qp_init_rd_atom", a.max_qp_init_rd_atom),
        plain("max_ee_init_rd_atom", 0),
        coded("atomic_cap", a.atomic_cap, atomic_cap),
        plain("max_ee", 0),
        plain("max_rdd", 0),
        plain("max_mw", a.max_mw),
        plain("max_raw_ipv6_qp", 0),
        plain("max_raw_ethy_qp", 0),
        plain("max_mcast_grp", a.max_mcast_grp),
        plain("max_mcast_qp_attach", a.max_mcast_qp_attach),
        plain("max_total_mcast_qp_attach", a.max_total_mcast_qp_attach),
        plain("max_ah", a.max_ah),
        plain("max_fmr", 0),
        plain("max_srq", a.max_srq),
        plain("max_srq_wr", a.max_srq_wr),
        plain("max_srq_sge", a.max_srq_sge),
        plain("max_pkeys", a.max_pkeys),
        plain("local_ca_ack_delay", a.local_ca_ack_delay),
    ];
    let without_srq = |f: &Field| a.max_srq > 0 || !f.name.starts_with("max_srq_");
    basic.into_iter().chain(all.into_iter().filter(without_srq).map(Field::verbose)).collect()
}

pub(super) fn port_fields(a: &PortAttr) -> Vec<Field> {
    let basic = [
        coded("state", a.state, a.state as u8),
        mtu("max_mtu", a.max_mtu),
        mtu("active_mtu", a.active_mtu),
        plain("sm_lid", a.sm_lid),
        plain("port_lid", a.lid),
        hex("port_lmc", a.lmc, format!("0x{:02x}", a.lmc)),
        plain("link_layer", "Ethernet"),
    ];
    let all = [
        hex("max_msg_sz", a.max_msg_sz, format!("0x{:x}", a.max_msg_sz)),
        hex("port_cap_flags", a.port_cap_flags, format!("0x{:08x}", a.port_cap_flags)),
        hex("port_cap_flags2", a.port_cap_flags2, format!("0x{:04x}", a.port_cap_flags2)),
        coded("max_vl_num", 1, a.max_vl_num),
        hex("bad_pkey_cntr", a.bad_pkey_cntr, format!("0x{:x}", a.bad_pkey_cntr)),
        hex("qkey_viol_cntr", a.qkey_viol_cntr, format!("0x{:x}", a.qkey_viol_cntr)),
        plain("sm_sl", a.sm_sl),
        plain("pkey_tbl_len", a.pkey_tbl_len),
        plain("gid_tbl_len", a.gid_tbl_len),
        plain("subnet_timeout", a.subnet_timeout),
        plain("init_type_reply", a.init_type_reply),
        coded("active_width", "1X", a.active_width),
        coded("active_speed", "2.5 Gbps", a.active_speed),
        coded("phys_state", a.phys_state, a.phys_state as u8),
    ];
    basic.into_iter().chain(all.map(Field::verbose)).collect()
}

impl Field {
    fn verbose(self) -> Self {
        Self { verbose: true, ..self }
    }
}

fn plain(name: &'static str, value: impl Display + Into<Value>) -> Field {
    let text = value.to_string();
    Field { name, text, json: value.into(), verbose: false, below: Vec::new() }
}

/// Returns a number whose text differs from its JSON.
fn hex(name: &'static str, value: impl Into<Value>, text: String) -> Field {
    Field { name, text, json: value.into(), verbose: false, below: Vec::new() }
}

/// Returns a word with its number in verbs. JSON has only the word.
fn coded(name: &'static str, word: impl Display, code: u8) -> Field {
    let json = word.to_string().into();
    Field { name, text: format!("{word} ({code})"), json, verbose: false, below: Vec::new() }
}

/// Returns an MTU with its number in verbs. JSON has the bytes.
fn mtu(name: &'static str, mtu: Mtu) -> Field {
    Field { json: mtu.bytes().into(), ..coded(name, mtu, mtu.to_verbs()) }
}

//! The layout of `ibv_devinfo`: names and values, separated by tabs. The values of a device are in
//! column 40, and those of a port in column 48.

use std::thread;

use rxe_core::types::Gid;
use rxe_verbs::device::{DeviceCap, OdpCaps, OdpTransportCaps};

use super::{Field, Report};
use crate::common::tab_to;

/// Formats the output of `-l`.
pub(super) fn names(names: &[&str]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let lines: String = names.iter().map(|name| format!("\t{name}\n")).collect();
    format!("{} HCA{plural} found:\n{lines}\n", names.len())
}

/// Formats the report on a device.
pub(super) fn report(report: &Report, verbose: bool) -> String {
    let mut out = String::new();
    let shown = |f: &&Field| verbose || !f.verbose;
    for field in report.device.iter().filter(shown) {
        match field.name {
            "hca_id" => out += &format!("hca_id:\t{}\n", field.text),
            _ => line(&mut out, "\t", &format!("{}:", field.name), &field.text, 40),
        }
        for word in &field.below {
            out += &format!("\t\t\t\t\t{word}\n");
        }
    }
    if verbose {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        out += &odp_caps(report.odp_caps);
        out += &EXTENDED
            .replace("{CAPS}", &cap_flags(report.cap_flags))
            .replace("{DM}", &report.max_dm_size.to_string())
            .replace("{CPUS}", &cpus.to_string());
    }
    out += "\t\tport:\t1\n";
    for field in report.port.iter().filter(shown) {
        line(&mut out, "\t\t\t", &format!("{}:", field.name), &field.text, 48);
    }
    if verbose {
        for (index, gid) in &report.gids {
            line(&mut out, "\t\t\t", &format!("GID[{index:3}]:"), &format!("{gid}, RoCE v2"), 48);
        }
    }
    out.push('\n');
    out
}

/// Formats all flags in hexadecimal, and the names of the extended ones.
/// No other line names these.
fn cap_flags(flags: DeviceCap) -> String {
    let value = format!("0x{:X}", flags.bits());
    flags.extended().names().fold(value, |out, name| out + "\n\t\t\t\t\t" + name)
}

/// Returns the on-demand paging flags by transport, in the order of `ibv_devinfo`.
pub(super) fn of_transports(caps: OdpCaps) -> [(&'static str, OdpTransportCaps); 4] {
    let OdpCaps { rc, uc, ud, xrc, .. } = caps;
    [("rc_odp_caps", rc), ("uc_odp_caps", uc), ("ud_odp_caps", ud), ("xrc_odp_caps", xrc)]
}

/// Formats the uses of on-demand paging, one per line.
fn odp_caps(caps: OdpCaps) -> String {
    let lines = |name: &str, words: Vec<&str>| {
        let words = words.iter().map(|word| format!("\t\t\t\t\t{word}\n")).collect::<String>();
        format!("\t{name}:\n{words}")
    };
    let general = lines("general_odp_caps", caps.names().collect());
    of_transports(caps).iter().fold(general, |out, (name, of)| {
        let words: Vec<_> = of.names().collect();
        out + &lines(name, if words.is_empty() { vec!["NO SUPPORT"] } else { words })
    })
}

/// Formats a GID like `ibv_devinfo` for RoCE v2: as an IPv6 address, with IPv4 mapped.
pub(super) fn gid(gid: &Gid) -> String {
    std::net::Ipv6Addr::from(*gid.as_bytes()).to_string()
}

fn line(out: &mut String, indent: &str, name: &str, value: &str, column: usize) {
    *out += indent;
    *out += name;
    *out += &tab_to(indent.len() * 8 + name.len(), column);
    *out += value;
    out.push('\n');
}

/// The lines of `ibv_devinfo -v` for a device without hardware extensions. The exceptions are
/// timestamps in nanoseconds, and a completion vector per CPU. The 64-bit capability flags repeat
/// the basic ones.
const EXTENDED: &str = "\
\tcompletion timestamp_mask:\t\t\t0xffffffffffffffff
\thca_core_clock:\t\t\t1000000kHZ
\tdevice_cap_flags_ex:\t\t{CAPS}
\ttso_caps:
\t\tmax_tso:\t\t\t0
\trss_caps:
\t\tmax_rwq_indirection_tables:\t\t\t0
\t\tmax_rwq_indirection_table_size:\t\t\t0
\t\trx_hash_function:\t\t\t\t0x0
\t\trx_hash_fields_mask:\t\t\t\t0x0
\tmax_wq_type_rq:\t\t\t0
\tpacket_pacing_caps:
\t\tqp_rate_limit_min:\t0kbps
\t\tqp_rate_limit_max:\t0kbps
\ttag matching not supported
\tmaximum available device memory:\t{DM}Bytes

\tnum_comp_vectors:\t\t{CPUS}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_line_up_as_in_ibv_devinfo() {
        let mut out = String::new();
        line(&mut out, "\t", "max_qp:", "1", 40);
        line(&mut out, "\t", "max_total_mcast_qp_attach:", "2", 40);
        line(&mut out, "\t\t\t", "sm_lid:", "3", 48);
        line(&mut out, "\t\t\t", "init_type_reply:", "4", 48);
        let expected = "\tmax_qp:\t\t\t\t1\n\tmax_total_mcast_qp_attach:\t2\n\
                        \t\t\tsm_lid:\t\t\t3\n\t\t\tinit_type_reply:\t4\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn gids_are_written_as_inet_ntop_does() {
        let mapped = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid(&mapped), "::ffff:10.0.0.1");
    }
}

//! `rxe gids`: the output of the script `show_gids`.

use std::net::Ipv6Addr;

use rxe_net::GidEntry;
use rxe_verbs::device::DeviceInfo;
use serde::Serialize;

use crate::common::{
    Align, Error, TabTable, Table, chosen_devices, print, print_json, terminal_width,
};

/// List the GIDs of the devices, as show_gids does
///
/// They have the kernel's order: first the link-local address made from the MAC address (even if the
/// interface does not have it), then each address of the interface.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this device (or interface)
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Only this device (or interface)
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV", conflicts_with = "device")]
    ib_dev: Option<String>,
    /// Print JSON; "usable" tells what can be sent from
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let devices = chosen_devices(self.device.or(self.ib_dev).as_deref())?;
        let rows = devices.iter().flat_map(|device| {
            let of = move |(index, entry)| Row::of(device, index, entry);
            device.gids().iter().enumerate().map(of)
        });
        let rows: Vec<_> = rows.collect();
        if self.json { print_json(&rows) } else { print(&text(&rows, terminal_width())) }
    }
}

/// Formats the rows like show_gids, or shorter for a narrower terminal.
fn text(rows: &[Row<'_>], columns: Option<usize>) -> String {
    let table = table(rows);
    let table = match columns {
        Some(columns) if table.width() > columns => narrow(rows).to_string(),
        _ => table.to_string(),
    };
    format!("{table}n_gids_found={}\n", rows.len())
}

fn table(rows: &[Row<'_>]) -> TabTable<7> {
    let heads = ["DEV", "PORT", "INDEX", "GID", "IPv4", "VER", "DEV"];
    let mut table = TabTable::new([8, 8, 8, 40, 16, 8, 8]);
    table.row(heads.map(String::from));
    table.row(["---", "----", "-----", "---", "------------", "---", "---"].map(String::from));
    for row in rows {
        table.row([
            row.device.into(),
            row.port.to_string(),
            row.index.to_string(),
            row.gid.clone(),
            row.ipv4.clone().unwrap_or_default(),
            "v2".into(),
            row.netdev.into(),
        ]);
    }
    table
}

/// Returns a table with short GIDs, which include the IPv4 addresses.
fn narrow(rows: &[Row<'_>]) -> Table<6> {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("DEV", Left),
        ("PORT", Right),
        ("INDEX", Right),
        ("GID", Left),
        ("VER", Left),
        ("DEV", Left),
    ]);
    for row in rows {
        table.row([
            row.device.into(),
            row.port.to_string(),
            row.index.to_string(),
            row.short.clone(),
            "v2".into(),
            row.netdev.into(),
        ]);
    }
    table
}

#[derive(Serialize)]
struct Row<'a> {
    device: &'a str,
    port: u8,
    index: usize,
    gid: String,
    /// The GID as a short IPv6 address.
    #[serde(skip)]
    short: String,
    ipv4: Option<String>,
    r#type: &'static str,
    netdev: &'a str,
    usable: bool,
}

impl<'a> Row<'a> {
    fn of(device: &'a DeviceInfo, index: usize, entry: &GidEntry) -> Self {
        let ip = entry.gid.to_ip();
        Self {
            device: device.name(),
            port: DeviceInfo::PORT,
            index,
            gid: entry.gid.to_string(),
            short: Ipv6Addr::from(*entry.gid.as_bytes()).to_string(),
            ipv4: ip.is_ipv4().then(|| ip.to_string()),
            r#type: "RoCE v2",
            netdev: &device.interface().name,
            usable: entry.is_usable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn row(device: &'static str, index: usize, ip: &str) -> Row<'static> {
        let ip: IpAddr = ip.parse().unwrap();
        Row {
            device,
            port: 1,
            index,
            gid: rxe_core::types::Gid::from(ip).to_string(),
            short: format!("::ffff:{ip}"),
            ipv4: ip.is_ipv4().then(|| ip.to_string()),
            r#type: "RoCE v2",
            netdev: "eth0",
            usable: true,
        }
    }

    #[test]
    fn short_names_stand_as_the_script_prints_them() {
        let rows = [row("rxe_lo", 0, "fe80::1"), row("rxe_lo", 1, "192.168.1.10")];
        let expected = "\
DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4\t\tVER\tDEV
---\t----\t-----\t---\t\t\t\t\t------------\t---\t---
rxe_lo\t1\t0\tfe80:0000:0000:0000:0000:0000:0000:0001\t\t\tv2\teth0
rxe_lo\t1\t1\t0000:0000:0000:0000:0000:ffff:c0a8:010a\t192.168.1.10\tv2\teth0
n_gids_found=2
";
        assert_eq!(text(&rows, None), expected);
        assert_eq!(text(&rows, Some(104)), expected);
    }

    #[test]
    fn long_names_widen_their_column() {
        let got = text(&[row("rxe_eth0", 0, "10.0.0.1")], None);
        let lines: Vec<_> = got.lines().collect();
        assert!(lines[0].starts_with("DEV\t\tPORT\t"));
        assert!(lines[2].starts_with("rxe_eth0\t1\t"));
    }

    #[test]
    fn a_narrow_terminal_gets_a_narrow_table() {
        let expected = "\
DEV       PORT  INDEX  GID                VER  DEV
rxe_eth0     1      0  ::ffff:10.0.0.1    v2   eth0
rxe_eth0     1      1  ::ffff:10.0.0.100  v2   eth0
n_gids_found=2
";
        let rows = [row("rxe_eth0", 0, "10.0.0.1"), row("rxe_eth0", 1, "10.0.0.100")];
        assert_eq!(text(&rows, Some(80)), expected);
    }
}

//! Results in the format of perftest, and as JSON.

use std::net::IpAddr;

use rxe_core::types::Mtu;
use rxe_verbs::Endpoint;
use serde::Serialize;

use super::Args;
use super::columns::Columns;
use super::control::Ends;
use super::plan::{Kind, Plan};
use super::side::Side;
use super::stats::{Bandwidth, Latency, Loss, Row};
use crate::common::{Error, Opened, print, print_json, terminal_width};

/// Prints that the server is waiting.
pub(super) fn waiting(port: u16) -> Result<(), Error> {
    print(&format!(
        "\n************************************\n* Waiting for client on port {port} \
                    *\n************************************\n"
    ))
}

/// Prints rows as they arrive, or all as JSON at the end.
pub(super) struct Report {
    json: bool,
    columns: Columns,
    whole: Whole,
}

#[derive(Serialize)]
struct Whole {
    test: String,
    role: &'static str,
    device: String,
    backend: &'static str,
    gid_index: u16,
    mtu: usize,
    local: Vec<End>,
    remote: Vec<End>,
    #[serde(flatten)]
    plan: Plan,
    results: Vec<Line>,
}

#[derive(Serialize)]
struct End {
    qpn: u32,
    psn: u32,
    gid: IpAddr,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    Bw {
        bytes: u32,
        iterations: u64,
        seconds: f64,
        bw_peak_bytes_per_second: f64,
        bw_average_bytes_per_second: f64,
        messages_per_second: f64,
        /// The messages that did not arrive, for services that lose messages.
        #[serde(skip_serializing_if = "Option::is_none")]
        lost: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        lost_percent: Option<f64>,
        /// The packets that the sending sides sent, for services that retransmit.
        #[serde(skip_serializing_if = "Option::is_none")]
        sent_pkts: Option<u64>,
        /// The retransmissions among these packets.
        #[serde(skip_serializing_if = "Option::is_none")]
        retransmitted_pkts: Option<u64>,
    },
    Lat(Latency),
}

impl Report {
    /// Creates the report, and prints its header unless the report is JSON.
    pub(super) fn new(
        args: &Args,
        opened: &Opened,
        plan: &Plan,
        mtu: Mtu,
        side: &Side,
        peer: &Ends,
    ) -> Result<Self, Error> {
        let report = Self {
            json: args.wire.json,
            columns: Columns::new(plan, args.report_gbits, terminal_width()),
            whole: Whole {
                test: format!("{} {}", plan.op.name(), plan.kind.name()),
                role: if args.host.is_some() { "client" } else { "server" },
                device: opened.device.name().into(),
                backend: opened.device.backend_name(),
                gid_index: opened.gid_number,
                mtu: mtu.bytes(),
                local: ends(&side.ends())?,
                remote: ends(peer)?,
                plan: plan.clone(),
                results: Vec::new(),
            },
        };
        if !report.json {
            print(&report.head(side.events))?;
        }
        Ok(report)
    }

    /// Prints the result of one size.
    pub(super) fn row(&mut self, row: &Row) -> Result<(), Error> {
        if self.json {
            self.whole.results.push(row.into());
            return Ok(());
        }
        print(&self.columns.row(row))
    }

    /// Prints the end of the report when all sizes were measured.
    pub(super) fn end(&self) -> Result<(), Error> {
        if self.json { print_json(&self.whole) } else { print(&self.columns.line()) }
    }

    fn head(&self, events: bool) -> String {
        let Whole { plan, device, backend, mtu, gid_index, .. } = &self.whole;
        let (columns, line) = (self.columns, self.columns.line());
        let both = if plan.bidirectional { "Bidirectional " } else { "" };
        let mut out = format!(
            "{line}                    {} {both}{} Test\n",
            plan.op.title(),
            plan.kind.title()
        );
        let mut pair = |name: &str, value: &str, name2: &str, value2: &str| {
            let left = format!(" {name:<16}: {value}");
            out += &format!("{left:<40} {name2:<15}: {value2}\n");
        };
        pair("Device", device, "Backend", backend);
        pair("Number of qps", &plan.qps.to_string(), "Transport type", "RoCE v2");
        pair(
            "Connection type",
            plan.transport.title(),
            "Completions by",
            if events { "events" } else { "polling" },
        );
        pair("TX depth", &plan.tx_depth.to_string(), "RX depth", &plan.rx_depth.to_string());
        let moderation = if plan.kind == Kind::Bw { plan.cq_mod } else { 1 };
        pair("CQ Moderation", &moderation.to_string(), "Outstand reads", &plan.outs.to_string());
        pair("Mtu", &format!("{mtu}[B]"), "GID index", &gid_index.to_string());
        pair("Max inline data", &format!("{}[B]", plan.inline), "Data ex. method", "Ethernet");
        out += &line;
        for (whose, ends) in [("local", &self.whole.local), ("remote", &self.whole.remote)] {
            for End { qpn, psn, gid } in ends {
                out += &format!(" {whose} address: QPN 0x{qpn:06x} PSN 0x{psn:06x} GID {gid}\n");
            }
        }
        out += &line;
        out + &columns.head()
    }
}

impl From<&Row> for Line {
    fn from(row: &Row) -> Self {
        match *row {
            Row::Lat(lat) => Self::Lat(lat),
            Row::Bw(Bandwidth { bytes, iterations, seconds, average, peak, loss, packets }) => {
                Self::Bw {
                    sent_pkts: packets.map(|packets| packets.sent),
                    retransmitted_pkts: packets.map(|packets| packets.again),
                    lost: loss.map(|loss| loss.lost),
                    lost_percent: loss.map(Loss::percent),
                    bytes,
                    iterations,
                    seconds,
                    bw_peak_bytes_per_second: peak * f64::from(bytes),
                    bw_average_bytes_per_second: average * f64::from(bytes),
                    messages_per_second: average,
                }
            }
        }
    }
}

fn ends(ends: &Ends) -> Result<Vec<End>, Error> {
    let end = |text: &String| {
        let Endpoint { qpn, psn, gid, .. } = text.parse()?;
        Ok(End { qpn: qpn.value(), psn: psn.value(), gid: gid.to_ip() })
    };
    ends.qps.iter().map(end).collect()
}

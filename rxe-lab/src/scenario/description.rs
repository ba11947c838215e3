//! The format of a scenario, as TOML.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::error::{Mistake, Result};

/// A whole scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    /// The seed of faults and random bytes.
    #[serde(default = "one")]
    pub(super) seed: u64,
    /// The time of the beginning, in seconds since the Unix epoch.
    #[serde(default = "start")]
    pub(super) start: u32,
    /// The names of all findings that `rxe check` reports for the packets.
    #[serde(default)]
    pub(super) findings: Vec<Spanned<String>>,
    /// How long to wait for outstanding requests at `wait = ""` and after the last step.
    pub(super) limit: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) network: Network,
    #[serde(default)]
    pub(super) hosts: BTreeMap<String, Host>,
    #[serde(default)]
    pub(super) qps: BTreeMap<String, Qp>,
    #[serde(default)]
    pub(super) steps: Vec<Spanned<Step>>,
}

/// The network between the hosts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Network {
    /// The time that a packet travels from one host to another.
    pub(super) delay: Option<Spanned<String>>,
    /// The rate at which a host sends, in bits per second.
    pub(super) rate: Option<Spanned<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Host {
    pub(super) address: Spanned<IpAddr>,
    /// Whether an engine answers packets to this host.
    #[serde(default = "yes")]
    pub(super) engine: bool,
    /// The size of the memory region, in bytes.
    pub(super) memory: Option<Spanned<usize>>,
    /// The virtual address of the memory region.
    #[serde(default = "region_start")]
    pub(super) va: u64,
    pub(super) rkey: Option<u32>,
    /// The access rights of the memory region; all if none are named.
    pub(super) access: Option<Spanned<Vec<Right>>>,
    pub(super) faults: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Right {
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
    FlushGlobal,
    FlushPersistent,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Qp {
    pub(super) host: Spanned<String>,
    #[serde(default)]
    pub(super) service: Service,
    pub(super) qpn: Option<Spanned<u32>>,
    pub(super) psn: Option<Spanned<u32>>,
    /// The queue pair to which this one is connected.
    pub(super) peer: Option<Spanned<String>>,
    pub(super) mtu: Option<Spanned<usize>>,
    pub(super) timeout: Option<Spanned<u8>>,
    pub(super) retry_cnt: Option<Spanned<u8>>,
    pub(super) rnr_retry: Option<Spanned<u8>>,
    pub(super) min_rnr_timer: Option<Spanned<u8>>,
    pub(super) max_rd_atomic: Option<u8>,
    pub(super) max_dest_rd_atomic: Option<u8>,
    pub(super) traffic_class: Option<u8>,
    /// The remote operations that the peer may request; all if none are named.
    pub(super) access: Option<Spanned<Vec<Right>>>,
    #[serde(default)]
    pub(super) qkey: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Service {
    #[default]
    Rc,
    Uc,
    Ud,
    XrcSend,
    XrcRecv,
}

/// A step: a table with one key, its name.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    /// Posts receives.
    Receive(Receive),
    Send(Operation),
    SendInvalidate(Operation),
    Write(Operation),
    Read(Operation),
    CompareSwap(Operation),
    FetchAdd(Operation),
    AtomicWrite(Operation),
    Flush(Operation),
    /// Sends a packet that is built header by header.
    Packet(Box<Packet>),
    /// Lets this much time pass; if empty, waits until nothing is in flight.
    Wait(Spanned<String>),
    Repeat(Repeat),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repeat {
    pub(super) times: u32,
    pub(super) steps: Vec<Spanned<Step>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    pub(super) qp: Spanned<String>,
    pub(super) bytes: Spanned<u32>,
    #[serde(default)]
    pub(super) offset: u64,
    #[serde(default = "once")]
    pub(super) count: u32,
    pub(super) lkey: Option<u32>,
}

/// A work request. Whether an operation uses a field is checked when it is posted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Operation {
    pub(super) qp: Spanned<String>,
    pub(super) bytes: Option<Spanned<u32>>,
    /// The offset of the local buffer in the host's own memory region.
    #[serde(default)]
    pub(super) offset: u64,
    #[serde(default = "once")]
    pub(super) count: u32,
    pub(super) imm: Option<Spanned<u32>>,
    /// The offset in the peer's memory region.
    /// `va` is an absolute address instead, which may be invalid.
    pub(super) remote_offset: Option<Spanned<u64>>,
    pub(super) va: Option<Spanned<u64>>,
    pub(super) rkey: Option<Spanned<u32>>,
    pub(super) compare: Option<Spanned<u64>>,
    pub(super) swap: Option<Spanned<u64>>,
    pub(super) add: Option<Spanned<u64>>,
    /// The destination queue pair of a datagram.
    pub(super) to: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) solicited: bool,
    #[serde(default)]
    pub(super) fence: bool,
}

/// Values of header fields, by the names of the fields.
pub(super) type Fields = BTreeMap<Spanned<String>, Spanned<Value>>;

/// A packet that is built header by header.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packet {
    /// The sending queue pair, which gives the addresses and the destination queue pair.
    pub(super) qp: Option<Spanned<String>>,
    pub(super) from: Option<Spanned<String>>,
    pub(super) to: Option<Spanned<String>>,
    #[serde(default = "once")]
    pub(super) count: u32,
    /// The time to wait before the packet.
    pub(super) after: Option<Spanned<String>>,
    /// The headers after UDP, if they differ from those of the opcode.
    pub(super) headers: Option<Vec<Spanned<String>>>,
    pub(super) bytes: Option<Spanned<usize>>,
    pub(super) pattern: Option<Spanned<Pattern>>,
    pub(super) data: Option<Spanned<String>>,
    /// The number of bytes after the payload; by default the pad that the payload needs.
    pub(super) pad: Option<Spanned<usize>>,
    /// `right`, `wrong`, `none`, or a number of 32 bits.
    #[serde(rename = "ICRC")]
    pub(super) icrc: Option<Spanned<Value>>,
    /// The number of bytes cut off the end of the packet.
    #[serde(default)]
    pub(super) cut: usize,
    #[serde(rename = "Ethernet", default)]
    pub(super) ethernet: Fields,
    #[serde(rename = "VLAN")]
    pub(super) vlan: Option<Fields>,
    #[serde(rename = "IPv4", default)]
    pub(super) ipv4: Fields,
    #[serde(rename = "IPv6", default)]
    pub(super) ipv6: Fields,
    #[serde(rename = "UDP", default)]
    pub(super) udp: Fields,
    #[serde(rename = "BTH", default)]
    pub(super) bth: Fields,
    #[serde(rename = "DETH")]
    pub(super) deth: Option<Spanned<Fields>>,
    #[serde(rename = "XRCETH")]
    pub(super) xrceth: Option<Spanned<Fields>>,
    #[serde(rename = "FETH")]
    pub(super) feth: Option<Spanned<Fields>>,
    #[serde(rename = "RETH")]
    pub(super) reth: Option<Spanned<Fields>>,
    #[serde(rename = "AtomicETH")]
    pub(super) atomic_eth: Option<Spanned<Fields>>,
    #[serde(rename = "AETH")]
    pub(super) aeth: Option<Spanned<Fields>>,
    #[serde(rename = "AtomicAckETH")]
    pub(super) atomic_ack_eth: Option<Spanned<Fields>>,
    #[serde(rename = "ImmDt")]
    pub(super) imm_dt: Option<Spanned<Fields>>,
    #[serde(rename = "IETH")]
    pub(super) ieth: Option<Spanned<Fields>>,
    #[serde(rename = "CNP")]
    pub(super) cnp: Option<Spanned<Fields>>,
    /// The header of a management datagram. The fields below are its CM message.
    #[serde(rename = "MAD")]
    pub(super) mad: Option<Spanned<Fields>>,
    #[serde(rename = "REQ")]
    pub(super) req: Option<Spanned<Fields>>,
    /// The header of RDMA CM at the start of the private data of a REQ or SIDR_REQ.
    #[serde(rename = "IP_CM")]
    pub(super) ip_cm: Option<Spanned<Fields>>,
    #[serde(rename = "MRA")]
    pub(super) mra: Option<Spanned<Fields>>,
    #[serde(rename = "REJ")]
    pub(super) rej: Option<Spanned<Fields>>,
    #[serde(rename = "REP")]
    pub(super) rep: Option<Spanned<Fields>>,
    #[serde(rename = "RTU")]
    pub(super) rtu: Option<Spanned<Fields>>,
    #[serde(rename = "DREQ")]
    pub(super) dreq: Option<Spanned<Fields>>,
    #[serde(rename = "DREP")]
    pub(super) drep: Option<Spanned<Fields>>,
    #[serde(rename = "SIDR_REQ")]
    pub(super) sidr_req: Option<Spanned<Fields>>,
    #[serde(rename = "SIDR_REP")]
    pub(super) sidr_rep: Option<Spanned<Fields>>,
    #[serde(rename = "LAP")]
    pub(super) lap: Option<Spanned<Fields>>,
    #[serde(rename = "APR")]
    pub(super) apr: Option<Spanned<Fields>>,
}

/// The bytes of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pattern {
    Zero,
    /// 0, 1, 2, …
    Count,
    /// Random bytes from the seed.
    Random,
}

fn one() -> u64 {
    1
}

fn once() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn start() -> u32 {
    1_700_000_000
}

fn region_start() -> u64 {
    0x10_0000
}

pub(super) fn read(text: &str) -> Result<Description> {
    toml::from_str(text).map_err(|e| Mistake::of_toml(&e, text))
}

/// Parses a duration: `250ns`, `10us`, `1.5ms`, `2s`.
pub(super) fn time(text: &Spanned<String>) -> Result<Duration> {
    let wrong = || {
        let said = text.get_ref();
        Mistake::at(text, format!("{said:?} is no time: write it as 250ns, 10us, 1.5ms or 2s"))
    };
    let it = text.get_ref().trim();
    let number = it.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == 'µ');
    let unit = match &it[number.len()..] {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let nanos = (number * unit).round();
    if !(0.0..=1e15).contains(&nanos) {
        return Err(wrong());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    Ok(Duration::from_nanos(nanos as u64))
}

//! The objects of the devices, as the kernel reports them to `rdma resource`.
//! They belong to all processes of this user (for root, of all users) that have the device open in
//! this network namespace.

use std::net::{IpAddr, Ipv4Addr};

use rxe_verbs::DeviceInfo;
use rxe_verbs::observe::{DeviceReport, Record, Subject, TIMEOUT, ask_device};

use super::message::Attributes;
use crate::ibverbs::device::Present;

/// The attributes of objects (`enum rdma_nldev_attr`).
mod attribute {
    pub(super) const SUMMARY: u16 = 15;
    pub(super) const SUMMARY_ENTRY: u16 = 16;
    pub(super) const SUMMARY_ENTRY_NAME: u16 = 17;
    pub(super) const SUMMARY_ENTRY_CURR: u16 = 18;
    pub(super) const LQPN: u16 = 21;
    pub(super) const RQPN: u16 = 22;
    pub(super) const RQ_PSN: u16 = 23;
    pub(super) const SQ_PSN: u16 = 24;
    pub(super) const PATH_MIG_STATE: u16 = 25;
    pub(super) const TYPE: u16 = 26;
    pub(super) const STATE: u16 = 27;
    pub(super) const PID: u16 = 28;
    pub(super) const PS: u16 = 32;
    pub(super) const SRC_ADDR: u16 = 33;
    pub(super) const DST_ADDR: u16 = 34;
    pub(super) const CQE: u16 = 37;
    pub(super) const USECNT: u16 = 38;
    pub(super) const MRLEN: u16 = 45;
    pub(super) const PDN: u16 = 60;
    pub(super) const CQN: u16 = 61;
    pub(super) const CTXN: u16 = 64;
    pub(super) const SRQN: u16 = 90;
}
use attribute::*;
/// The attribute `RDMA_NLDEV_ATTR_PORT_INDEX`.
pub(super) const PORT_INDEX: u16 = 3;

/// The most bytes of a list in one message. Programs read into buffers of 8 KiB.
const PIECE: usize = 3500;

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Qp,
    CmId,
    Cq,
    Mr,
    Pd,
    Ctx,
    Srq,
}

impl Kind {
    /// Returns the kind of objects that an operation requests (`enum rdma_nldev_command`).
    pub(super) fn of_command(command: u16) -> Option<Self> {
        Some(match command {
            10 => Self::Qp,
            11 => Self::CmId,
            12 => Self::Cq,
            13 => Self::Mr,
            14 => Self::Pd,
            22 => Self::Ctx,
            23 => Self::Srq,
            _ => return None,
        })
    }

    fn subject(self) -> Subject {
        match self {
            Self::Qp => Subject::Qp,
            Self::CmId => Subject::CmId,
            Self::Cq => Subject::Cq,
            Self::Mr => Subject::Mr,
            Self::Pd => Subject::Pd,
            Self::Ctx => Subject::Summary,
            Self::Srq => Subject::Srq,
        }
    }

    /// Returns the attribute of the table and that of an entry.
    fn table(self) -> (u16, u16) {
        match self {
            Self::Qp => (19, 20),
            Self::CmId => (30, 31),
            Self::Cq => (35, 36),
            Self::Mr => (40, 41),
            Self::Pd => (46, 47),
            Self::Ctx => (86, 87),
            Self::Srq => (88, 89),
        }
    }

    /// Returns the attribute by which one object is requested.
    /// Keys and numbers of regions are not reported.
    pub(super) fn number_attribute(self) -> Option<u16> {
        match self {
            Self::Qp => Some(LQPN),
            Self::Cq => Some(CQN),
            Self::Pd => Some(PDN),
            Self::Ctx => Some(CTXN),
            Self::Srq => Some(SRQN),
            Self::CmId | Self::Mr => None,
        }
    }

    fn entry(self, entry: Attributes, record: &Record, number: u32) -> Attributes {
        let number_of = |field| number_in(record, field);
        match self {
            Self::Qp => qp(entry, record),
            Self::CmId => cm_id(entry, record),
            Self::Cq => entry
                .u32(CQE, number_of("cqe"))
                .u64(USECNT, number_of("users").into())
                .u32(CQN, number_of("cqn")),
            Self::Mr => {
                entry.u64(MRLEN, record.number("mrlen").unwrap_or(0)).u32(PDN, number_of("pdn"))
            }
            Self::Pd => entry.u64(USECNT, number_of("users").into()).u32(PDN, number_of("pdn")),
            Self::Ctx => entry.u32(CTXN, number),
            Self::Srq => entry
                .u32(SRQN, number_of("srqn"))
                .u8(TYPE, u8::from(record.get("type") == Some("XRC")))
                .u32(PDN, number_of("pdn")),
        }
    }
}

/// Returns the messages of a list. Each begins with `head`.
pub(super) fn list(head: &Attributes, device: &Present, kind: Kind) -> Vec<Attributes> {
    let (table, entry) = kind.table();
    let mut pieces = Vec::new();
    let mut piece = Attributes::default();
    for object in objects(&Attributes::default(), device, kind) {
        if piece.len() + object.len() > PIECE {
            pieces.push(std::mem::take(&mut piece));
        }
        piece = piece.nested(entry, &object);
    }
    pieces.push(piece);
    pieces.iter().map(|piece| head.clone().nested(table, piece)).collect()
}

/// Returns one message for each object with this number.
pub(super) fn one(head: &Attributes, device: &Present, kind: Kind, number: u32) -> Vec<Attributes> {
    let attribute = kind.number_attribute();
    let mut found = objects(head, device, kind);
    found
        .retain(|object| attribute.and_then(|attribute| object.get_u32(attribute)) == Some(number));
    found
}

/// Returns all objects of a kind, each preceded by `head`.
fn objects(head: &Attributes, device: &Present, kind: Kind) -> Vec<Attributes> {
    let reports = reports(device, kind.subject());
    let records = reports
        .iter()
        .flat_map(|report| report.objects().iter().map(|record| (record, report.pid)));
    let objects = records.zip(0..).map(|((record, pid), number)| {
        let object = kind.entry(head.clone(), record, number);
        pid.into_iter().fold(object, |object, pid| object.u32(PID, pid))
    });
    objects.collect()
}

/// Returns the number of objects of each kind.
pub(super) fn summary(head: Attributes, device: &Present) -> Attributes {
    let reports = reports(device, Subject::Summary);
    let table = ["pd", "cq", "qp", "cm_id", "mr", "ctx", "srq"].iter().fold(
        Attributes::default(),
        |table, name| {
            let records = reports.iter().filter_map(|report| report.objects().first());
            let count = records
                .fold(0, |sum: u64, record| sum.saturating_add(record.number(name).unwrap_or(0)));
            let entry = Attributes::default().text(SUMMARY_ENTRY_NAME, name);
            table.nested(SUMMARY_ENTRY, &entry.u64(SUMMARY_ENTRY_CURR, count))
        },
    );
    head.nested(SUMMARY, &table)
}

fn reports(device: &Present, subject: Subject) -> Vec<DeviceReport> {
    ask_device(device.info.name(), subject, TIMEOUT)
}

fn qp(entry: Attributes, record: &Record) -> Attributes {
    // The values of `enum ib_qp_type` and `enum ib_qp_state`.
    let service = match record.get("type").unwrap_or_default() {
        "RC" => 2,
        "UC" => 3,
        "UD" => 4,
        "XRC_INI" => 9,
        "XRC_TGT" => 10,
        _ => 0xfe,
    };
    let states = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    let state = states.iter().zip(0..).find(|(name, _)| record.get("state") == Some(*name));
    let mut entry = entry
        .u32(PORT_INDEX, DeviceInfo::PORT.into())
        .u32(LQPN, number_in(record, "lqpn"))
        .u32(SQ_PSN, number_in(record, "sq-psn"));
    if record.get("rqpn").is_some() {
        entry = entry.u32(RQPN, number_in(record, "rqpn")).u8(PATH_MIG_STATE, 0);
    }
    if record.get("rq-psn").is_some() {
        entry = entry.u32(RQ_PSN, number_in(record, "rq-psn"));
    }
    entry
        .u8(TYPE, service)
        .u8(STATE, state.map_or(u8::MAX, |(_, number)| number))
        .u32(PDN, number_in(record, "pdn"))
}

fn cm_id(entry: Attributes, record: &Record) -> Attributes {
    // States and port spaces of rdma_cm are derived from those of the communication manager.
    const RDMA_PS_TCP: u32 = 0x0106;
    const RDMA_PS_UDP: u32 = 0x0111;
    let state = record.get("state").unwrap_or_default();
    let number = match state {
        "LISTEN" => 8,
        "DREQ_SENT" | "DREQ_RCVD" | "TIMEWAIT" => 6,
        _ => 5,
    };
    let datagrams = state.starts_with("SIDR") || record.get("ps") == Some("UDP");
    let mut entry = entry
        .u32(PORT_INDEX, DeviceInfo::PORT.into())
        .u8(STATE, number)
        .u32(PS, if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP });
    if record.get("lqpn").is_some() {
        entry = entry.u32(LQPN, number_in(record, "lqpn"));
    }
    let port = u16::try_from(number_in(record, "port")).unwrap_or(0);
    let address = |field| record.get(field).and_then(|text| text.parse::<IpAddr>().ok());
    let source = address("src").or((state == "LISTEN").then_some(Ipv4Addr::UNSPECIFIED.into()));
    if let Some(source) = source {
        entry = entry.bytes(SRC_ADDR, &socket_address(source, port));
    }
    if let Some(destination) = address("dst") {
        entry = entry.bytes(DST_ADDR, &socket_address(destination, 0));
    }
    entry
}

/// Returns the bytes of a `sockaddr_storage`.
fn socket_address(address: IpAddr, port: u16) -> [u8; 128] {
    let mut bytes = [0; 128];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    match address {
        IpAddr::V4(address) => bytes[4..8].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes[8..24].copy_from_slice(&address.octets()),
    }
    bytes
}

/// Returns a numeric field, which is decimal or, after 0x, hexadecimal.
/// Another process has written the field, so an invalid one is 0.
fn number_in(record: &Record, field: &str) -> u32 {
    let text = record.get(field).unwrap_or_default();
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap_or(0),
        None => text.parse().unwrap_or(0),
    }
}

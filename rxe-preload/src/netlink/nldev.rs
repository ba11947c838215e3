//! Answers requests to the kernel's RDMA device service for the present devices.
//! The service is `RDMA_NL_NLDEV` in `rdma/rdma_netlink.h`; the command `rdma` of iproute2 sends
//! such requests.
//!
//! Each device has one port, and belongs to one network namespace.

use std::time::Duration;

use rxe_verbs::DeviceInfo;
use rxe_verbs::device::links;
use rxe_verbs::observe::{PORT_COUNTERS, port_counters};

use super::message::{Attributes, Request};
use super::resources::{self, Kind, PORT_INDEX};
use crate::ibverbs::device::{Present, present};

/// The netlink service for devices.
const RDMA_NL_NLDEV: u16 = 5;

/// The operations of the service (`enum rdma_nldev_command`).
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const NEWLINK: u16 = 3;
    pub(super) const DELLINK: u16 = 4;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const STAT_GET: u16 = 17;
    pub(super) const STAT_GET_STATUS: u16 = 24;
}

/// The attributes of the service (`enum rdma_nldev_attr`).
mod attribute {
    pub(crate) const DEV_INDEX: u16 = 1;
    pub(crate) const DEV_NAME: u16 = 2;
    pub(crate) const CAP_FLAGS: u16 = 4;
    pub(crate) const FW_VERSION: u16 = 5;
    pub(crate) const NODE_GUID: u16 = 6;
    pub(crate) const SYS_IMAGE_GUID: u16 = 7;
    pub(crate) const PORT_STATE: u16 = 12;
    pub(crate) const PORT_PHYS_STATE: u16 = 13;
    pub(crate) const DEV_NODE_TYPE: u16 = 14;
    pub(crate) const NDEV_INDEX: u16 = 50;
    pub(crate) const NDEV_NAME: u16 = 51;
    pub(crate) const LINK_TYPE: u16 = 65;
    pub(crate) const SYS_NETNS_MODE: u16 = 66;
    pub(crate) const DEV_PROTOCOL: u16 = 67;
    pub(crate) const STAT_MODE: u16 = 74;
    pub(crate) const STAT_RES: u16 = 75;
    pub(crate) const STAT_HWCOUNTERS: u16 = 80;
    pub(crate) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(crate) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(crate) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(crate) const SYS_COPY_ON_FORK: u16 = 93;
}
use attribute::*;

/// The node type `RDMA_NODE_IB_CA`.
const NODE_TYPE_CA: u8 = 1;
/// How long the processes that have a device open may take to report their counters.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The devices that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// One of our devices, or none.
    Ours,
    /// A device that is not ours.
    Other,
    /// All devices.
    All,
}

impl About {
    /// Returns the devices that a request concerns.
    pub(super) fn of(request: &Request<'_>) -> Self {
        match request.u32(DEV_INDEX) {
            Some(index) if present().iter().any(|device| device.index == index) => Self::Ours,
            Some(_) => Self::Other,
            None if request.wants_list() => Self::All,
            None => Self::Ours,
        }
    }
}

/// Returns the messages of the answer, or an errno.
pub(super) fn answer(request: &Request<'_>) -> Result<Vec<Attributes>, i32> {
    // The upper 6 bits are the service, the lower 10 the operation.
    let (service, command) = (request.kind >> 10, request.kind & 0x3ff);
    if service != RDMA_NL_NLDEV {
        return Err(libc::EINVAL);
    }
    if let Some(kind) = Kind::of_command(command) {
        let of = asked(request)?;
        if request.wants_list() {
            let lists = of.iter().map(|device| resources::list(&named(device), device, kind));
            return Ok(lists.flatten().collect());
        }
        // Object numbers are unique only within a process, so several objects may have this number.
        // A kernel has one.
        let number = kind.number_attribute().and_then(|attribute| request.u32(attribute));
        let number = number.ok_or(libc::EOPNOTSUPP)?;
        let found = of.iter().map(|device| resources::one(&named(device), device, kind, number));
        return Ok(found.flatten().collect());
    }
    match command {
        command::GET => Ok(asked(request)?.iter().map(device).collect()),
        command::PORT_GET => Ok(asked(request)?.iter().map(port).collect()),
        // Devices belong to this network namespace alone (0), and are usable after fork(), as
        // registered memory is not pinned.
        command::SYS_GET => {
            Ok(vec![Attributes::default().u8(SYS_NETNS_MODE, 0).u8(SYS_COPY_ON_FORK, 1)])
        }
        command::RES_GET => {
            let of = asked(request)?;
            Ok(of.iter().map(|device| resources::summary(named(device), device)).collect())
        }
        command::STAT_GET if request.get(STAT_MODE).is_some() => {
            // No counter is bound to a queue pair, so the mode is none (0).
            Ok(asked(request)?.iter().map(|device| on_port(device).u32(STAT_MODE, 0)).collect())
        }
        command::STAT_GET if request.get(STAT_RES).is_some() => {
            asked(request)?;
            Ok(Vec::new())
        }
        command::STAT_GET => Ok(asked(request)?.iter().map(counters).collect()),
        command::STAT_GET_STATUS => {
            let none = Attributes::default();
            Ok(asked(request)?
                .iter()
                .map(|of| on_port(of).nested(STAT_HWCOUNTERS, &none))
                .collect())
        }
        command::NEWLINK => add_link(request),
        command::DELLINK => {
            let device = asked(request)?.into_iter().next().ok_or(libc::ENODEV)?;
            let deleted = links::delete(device.info.name());
            deleted.map(|()| Vec::new()).map_err(|_| libc::EINVAL)
        }
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Returns the devices that a request concerns: all, or the one with the index that it names.
fn asked(request: &Request<'_>) -> Result<Vec<Present>, i32> {
    let mut all = present();
    match request.u32(DEV_INDEX) {
        Some(index) => {
            all.retain(|device| device.index == index);
            if all.is_empty() {
                return Err(libc::ENODEV);
            }
        }
        None if request.wants_list() => {}
        None => return Err(libc::EINVAL),
    }
    match request.u32(PORT_INDEX) {
        // Port 0 stands for objects that belong to no port.
        Some(port) if port > u32::from(DeviceInfo::PORT) => Err(libc::EINVAL),
        _ => Ok(all),
    }
}

/// Returns the attributes with which every message begins.
fn named(device: &Present) -> Attributes {
    Attributes::default().u32(DEV_INDEX, device.index).text(DEV_NAME, &device.name)
}

fn on_port(device: &Present) -> Attributes {
    named(device).u32(PORT_INDEX, DeviceInfo::PORT.into())
}

fn device(device: &Present) -> Attributes {
    let attr = device.info.attr();
    // Here the attribute is the number of ports, not the index of one.
    named(device)
        .u32(PORT_INDEX, attr.phys_port_cnt.into())
        .u64(CAP_FLAGS, attr.device_cap_flags.bits())
        .text(FW_VERSION, attr.fw_ver)
        .u64(NODE_GUID, attr.node_guid.0)
        .u64(SYS_IMAGE_GUID, attr.sys_image_guid.0)
        .u8(DEV_NODE_TYPE, NODE_TYPE_CA)
        .text(DEV_PROTOCOL, "roce")
}

/// Returns the attributes of a port.
/// LIDs and port capabilities are InfiniBand's, and the kernel leaves them out too.
fn port(device: &Present) -> Attributes {
    let (attr, interface) = (device.info.port_attr(), device.info.interface());
    on_port(device)
        .u8(PORT_STATE, attr.state as u8)
        .u8(PORT_PHYS_STATE, attr.phys_state as u8)
        .u32(NDEV_INDEX, interface.index)
        .text(NDEV_NAME, &interface.name)
}

/// Returns the counters of kernel `rdma_rxe`, summed over all processes of this user.
fn counters(device: &Present) -> Attributes {
    let values = port_counters(device.info.name(), TIMEOUT);
    let hardware =
        PORT_COUNTERS.iter().zip(values).filter(|((files, _), _)| *files == "hw_counters");
    let table = hardware.fold(Attributes::default(), |table, ((_, name), value)| {
        let entry = Attributes::default()
            .text(STAT_HWCOUNTER_ENTRY_NAME, name)
            .u64(STAT_HWCOUNTER_ENTRY_VALUE, value);
        table.nested(STAT_HWCOUNTER_ENTRY, &entry)
    });
    on_port(device).nested(STAT_HWCOUNTERS, &table)
}

/// Executes `rdma link add NAME type rxe netdev NETDEV`.
fn add_link(request: &Request<'_>) -> Result<Vec<Attributes>, i32> {
    let text = |attribute| request.text(attribute).ok_or(libc::EINVAL);
    let (name, kind, netdev) = (text(DEV_NAME)?, text(LINK_TYPE)?, text(NDEV_NAME)?);
    if kind != "rxe" {
        return Err(libc::EOPNOTSUPP);
    }
    links::add(name, netdev).map(|()| Vec::new()).map_err(|error| {
        crate::explain::once("rdma link add", &error.to_string());
        libc::EINVAL
    })
}

//! `rxe devinfo`: the output of `ibv_devinfo`.

mod fields;
mod text;

use rxe_verbs::device::{DeviceCap, DeviceInfo, OdpCaps};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::common::{Error, check_port, chosen_devices, print, print_json};
use fields::{Field, device_fields, port_fields};

/// Print the attributes of the devices, as ibv_devinfo does
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this device (or interface); without it, all
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Only this device (or interface)
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV", conflicts_with = "device")]
    ib_dev: Option<String>,
    /// Only this port; each device has the one port 1
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = DeviceInfo::PORT)]
    ib_port: u8,
    /// Only the names of the devices
    #[arg(short, long, conflicts_with_all = ["verbose", "device", "ib_dev"])]
    list: bool,
    /// All attributes
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON, all attributes
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.list {
            let devices = DeviceInfo::list()?;
            let names: Vec<_> = devices.iter().map(DeviceInfo::name).collect();
            return if self.json { print_json(&names) } else { print(&text::names(&names)) };
        }
        let devices = chosen_devices(self.device.or(self.ib_dev).as_deref())?;
        for device in &devices {
            check_port(device, self.ib_port)?;
        }
        let reports: Vec<_> = devices.iter().map(Report::of).collect();
        if self.json {
            return print_json(&reports);
        }
        print(&reports.iter().map(|r| text::report(r, self.verbose)).collect::<String>())
    }
}

/// The values that are printed for a device, as text or as JSON.
struct Report {
    device: Vec<Field>,
    port: Vec<Field>,
    cap_flags: DeviceCap,
    odp_caps: OdpCaps,
    max_dm_size: u64,
    /// The index and the address of each GID.
    gids: Vec<(usize, String)>,
}

impl Report {
    fn of(device: &DeviceInfo) -> Self {
        let gids = device.gids().iter().enumerate();
        Self {
            device: device_fields(device),
            cap_flags: device.attr().device_cap_flags,
            odp_caps: device.attr().odp_caps,
            max_dm_size: device.attr().max_dm_size,
            port: port_fields(&device.port_attr()),
            gids: gids.map(|(i, e)| (i, text::gid(&e.gid))).collect(),
        }
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for field in &self.device {
            map.serialize_entry(field.name, &field.json)?;
        }
        let odp = self.odp_caps;
        map.serialize_entry("general_odp_caps", &odp.names().collect::<Vec<_>>())?;
        for (name, caps) in text::of_transports(odp) {
            map.serialize_entry(name, &caps.names().collect::<Vec<_>>())?;
        }
        map.serialize_entry("max_dm_size", &self.max_dm_size)?;
        map.serialize_entry("ports", &[Port(self)])?;
        map.end()
    }
}

struct Port<'a>(&'a Report);

impl Serialize for Port<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("port", &DeviceInfo::PORT)?;
        for field in &self.0.port {
            map.serialize_entry(field.name, &field.json)?;
        }
        map.serialize_entry("gids", &self.0.gids.iter().map(|(_, gid)| gid).collect::<Vec<_>>())?;
        map.end()
    }
}

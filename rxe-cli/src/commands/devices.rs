//! `rxe devices`: the output of `ibv_devices`.

use rxe_verbs::device::{DeviceError, DeviceInfo};
use serde::Serialize;

use crate::common::{Error, print, print_json};

/// List the devices, as ibv_devices does
///
/// Each network interface with an address is a device, without any set-up.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let devices = DeviceInfo::list()?;
        if self.json {
            return print_json(&devices.iter().map(Row::of).collect::<Vec<_>>());
        }
        if devices.is_empty() {
            return Err(DeviceError::None.into());
        }
        print(&text(&devices))
    }
}

fn text(devices: &[DeviceInfo]) -> String {
    let mut out =
        format!("    {:<16}\t   node GUID\n    {:<16}\t----------------\n", "device", "------");
    for device in devices {
        out += &format!("    {:<16}\t{:016x}\n", device.name(), device.guid().0);
    }
    out
}

#[derive(Serialize)]
struct Row<'a> {
    device: &'a str,
    node_guid: String,
    netdev: &'a str,
}

impl<'a> Row<'a> {
    fn of(device: &'a DeviceInfo) -> Self {
        Self {
            device: device.name(),
            node_guid: device.guid().to_string(),
            netdev: &device.interface().name,
        }
    }
}

//! `rxe link`: what `rdma link` of iproute2 does for kernel devices, with its syntax and output.

use clap::Subcommand;
use rxe_verbs::DeviceInfo;
use rxe_verbs::device::links;
use serde::Serialize;

use crate::common::{Error, check_port, chosen_devices, print, print_json};

/// Show the devices' links, or give devices names, as `rdma link` does
///
/// Devices need no link to be added: each interface with an address is one, named rxe_NETDEV.
#[derive(clap::Args)]
#[command(infer_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print JSON, as `rdma -j` does
    #[arg(short = 'j', long, global = true)]
    json: bool,
    /// Print JSON with one field in each line
    #[arg(short = 'p', long, global = true)]
    pretty: bool,
    /// Accepted and ignored: there are no more details
    #[arg(short = 'd', long, global = true)]
    details: bool,
    /// Show only these devices
    #[arg(long, value_name = "DEV", value_delimiter = ',', hide = true)]
    only: Vec<String>,
    /// Without `--only`: show the devices that programs list, not all that can be named
    #[arg(long, hide = true)]
    offered: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show all links, or one
    #[command(alias = "list")]
    Show {
        /// The device (or interface), with or without /PORT
        #[arg(value_name = "DEV[/PORT]")]
        dev: Option<String>,
    },
    /// Name a device: add NAME type rxe netdev NETDEV
    Add {
        /// The name to give to the interface's device, as in rxe0
        name: String,
        /// `type rxe netdev NETDEV`
        #[arg(required = true, value_name = "type rxe netdev NETDEV")]
        what: Vec<String>,
    },
    /// Remove a name: the device is then named rxe_NETDEV again
    Delete {
        /// The name that was added
        name: String,
    },
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        match &self.command {
            None => self.show(None),
            Some(Command::Show { dev }) => self.show(dev.as_deref()),
            Some(Command::Add { name, what }) => Ok(links::add(name, netdev_of(what)?)?),
            Some(Command::Delete { name }) => Ok(links::delete(name)?),
        }
    }

    fn show(&self, dev: Option<&str>) -> Result<(), Error> {
        let only: Vec<_> = self.only.iter().filter(|name| !name.is_empty()).collect();
        let named = !only.is_empty();
        let mut devices = match dev {
            None if self.offered && !named => DeviceInfo::offered()?,
            None => DeviceInfo::list()?,
            Some(dev) => one(dev)?,
        };
        if named {
            devices.retain(|device| only.iter().any(|name| device.is_called(name)));
        }
        let rows: Vec<_> = devices.iter().map(Row::of).collect();
        if self.pretty {
            print_json(&rows)
        } else if self.json {
            let json = serde_json::to_string(&rows);
            print(&(json.map_err(|e| Error::new("cannot make JSON of the output", e))? + "\n"))
        } else {
            print(&rows.iter().map(Row::text).collect::<String>())
        }
    }
}

/// The device of `DEV` or `DEV/PORT`.
fn one(dev: &str) -> Result<Vec<DeviceInfo>, Error> {
    let (name, port) = dev.split_once('/').map_or((dev, None), |(name, port)| (name, Some(port)));
    let devices = chosen_devices(Some(name))?;
    if let (Some(port), Some(device)) = (port, devices.first()) {
        // No device has port 0.
        check_port(device, port.parse().unwrap_or(0))?;
    }
    Ok(devices)
}

/// The interface in the words after a name.
fn netdev_of(words: &[String]) -> Result<&str, Error> {
    const FORM: &str = "the form is `rxe link add NAME type rxe netdev NETDEV`";
    let (mut kind, mut netdev) = (None, None);
    for pair in words.chunks(2) {
        match pair {
            [key, value] if key == "type" => kind = Some(value.as_str()),
            [key, value] if key == "netdev" => netdev = Some(value.as_str()),
            [key, _] => {
                return Err(Error::new(format!("{key:?} is neither type nor netdev"), FORM));
            }
            _ => return Err(Error::new(format!("nothing stands after {:?}", pair[0]), FORM)),
        }
    }
    match (kind, netdev) {
        (Some("rxe"), Some(netdev)) => Ok(netdev),
        (Some("rxe"), None) => Err(Error::new("no netdev is named", FORM)),
        (Some(other), _) => {
            Err(Error::new(format!("there are no links of type {other:?}"), "use `type rxe`"))
        }
        (None, _) => Err(Error::new("no type is named", FORM)),
    }
}

/// A link, with the fields of `rdma link show -j`.
#[derive(Serialize)]
struct Row {
    /// The device's number, as in `ibv_get_device_index`.
    ifindex: u32,
    ifname: String,
    port: u8,
    state: String,
    physical_state: String,
    netdev: String,
    netdev_index: u32,
}

impl Row {
    fn of(device: &DeviceInfo) -> Self {
        let (interface, port) = (device.interface(), device.port_attr());
        Self {
            ifindex: interface.index,
            ifname: device.name().into(),
            port: DeviceInfo::PORT,
            state: port.state.to_string().trim_start_matches("PORT_").into(),
            physical_state: port.phys_state.to_string(),
            netdev: interface.name.clone(),
            netdev_index: interface.index,
        }
    }

    fn text(&self) -> String {
        format!(
            "link {}/{} state {} physical_state {} netdev {} \n",
            self.ifname, self.port, self.state, self.physical_state, self.netdev
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(words: &str) -> Result<String, String> {
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        netdev_of(&words).map(String::from).map_err(|e| e.to_string())
    }

    #[test]
    fn the_words_of_add_come_in_any_order() {
        assert_eq!(netdev("type rxe netdev eth0").unwrap(), "eth0");
        assert_eq!(netdev("netdev eth0 type rxe").unwrap(), "eth0");
    }

    #[test]
    fn wrong_words_of_add_are_answered_with_the_right_ones() {
        let form = "the form is `rxe link add NAME type rxe netdev NETDEV`";
        assert_eq!(netdev("type rxe").unwrap_err(), format!("no netdev is named: {form}"));
        assert_eq!(netdev("netdev eth0").unwrap_err(), format!("no type is named: {form}"));
        let alone = "nothing stands after \"netdev\"";
        assert_eq!(netdev("type rxe netdev").unwrap_err(), format!("{alone}: {form}"));
        let other = "\"dev\" is neither type nor netdev";
        assert_eq!(netdev("type rxe dev eth0").unwrap_err(), format!("{other}: {form}"));
        let siw = "there are no links of type \"siw\": use `type rxe`";
        assert_eq!(netdev("type siw netdev eth0").unwrap_err(), siw);
    }
}

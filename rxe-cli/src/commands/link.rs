//! `rxe link`: `rdma link` of iproute2, with its syntax and output, for rxe's devices.

use clap::Subcommand;
use rxe_net::L2Config;
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
    /// Name a device, or make one: add NAME type rxe netdev NETDEV, or type rxe l2 LINK …
    ///
    /// `netdev NETDEV` names the device of an interface. `l2 LINK …` makes a device with an Ethernet
    /// address and IP addresses of its own, beside the host's network stack. LINK is qemu:PATH, the unix
    /// socket of QEMU's `-netdev stream`: connected to if somebody listens there, else listened on;
    /// dgram:OWN,PEER, the two unix sockets of its `-netdev dgram`; tap:NAME, a TAP interface of this
    /// user's (made if there is none, with CAP_NET_ADMIN); if:NAME, the wire of an interface, beside the
    /// host's network stack (with CAP_NET_RAW; this host and the device do not reach each other); or
    /// pnet:NAME, the same by pnet's datalink channel.
    /// After it come `address ADDRESS/LENGTH` (several times), `dhcp`, `gateway ADDRESS`, `mac MAC`,
    /// `mtu BYTES` and `nodad` (do not look for other hosts with its addresses).
    Add {
        /// The name to give to the device, as in rxe0
        name: String,
        /// `type rxe netdev NETDEV`, or `type rxe l2 LINK address ADDRESS/LENGTH …`
        #[arg(required = true, value_name = "type rxe netdev NETDEV | l2 LINK …")]
        what: Vec<String>,
    },
    /// Remove a name or an endpoint: the device of an interface is then named rxe_NETDEV again
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
            Some(Command::Add { name, what }) => {
                let added = match what_of(what)? {
                    What::Netdev(netdev) => links::add(name, netdev),
                    What::Endpoint(config) => links::add_endpoint(name, config),
                };
                Ok(added?)
            }
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

/// Returns the device of `DEV` or `DEV/PORT`.
fn one(dev: &str) -> Result<Vec<DeviceInfo>, Error> {
    let (name, port) = dev.split_once('/').map_or((dev, None), |(name, port)| (name, Some(port)));
    let devices = chosen_devices(Some(name))?;
    if let (Some(port), Some(device)) = (port, devices.first()) {
        let number = port.parse().map_err(|_| {
            let what = format!("{port:?} is no port of {}", device.name());
            Error::new(what, "use port 1, the only one, or leave the port out")
        })?;
        check_port(device, number)?;
    }
    Ok(devices)
}

/// The object that `rxe link add` gives a name to.
enum What<'a> {
    /// The device of this interface.
    Netdev(&'a str),
    /// A new endpoint with addresses of its own.
    Endpoint(L2Config),
}

/// Parses the words after the name of `rxe link add`.
fn what_of(words: &[String]) -> Result<What<'_>, Error> {
    const FORM: &str = "the form is `rxe link add NAME type rxe netdev NETDEV`, or `… type rxe l2 LINK \
                        address ADDRESS/LENGTH`";
    let (mut kind, mut what) = (None, None);
    let mut rest = words;
    while let [key, others @ ..] = rest {
        if key == "l2" {
            let config = L2Config::from_words(others.iter().map(String::as_str));
            what = Some(What::Endpoint(config.map_err(|e| {
                Error::new(e.what, format!("the words after l2 are `{}`", L2Config::FORM))
            })?));
            break;
        }
        let [value, others @ ..] = others else {
            return Err(Error::new(format!("nothing stands after {key:?}"), FORM));
        };
        match key.as_str() {
            "type" => kind = Some(value.as_str()),
            "netdev" => what = Some(What::Netdev(value)),
            _ => return Err(Error::new(format!("{key:?} is neither type nor netdev"), FORM)),
        }
        rest = others;
    }
    match (kind, what) {
        (Some("rxe"), Some(what)) => Ok(what),
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
    /// The device's index, as `ibv_get_device_index` returns it.
    ifindex: u32,
    ifname: String,
    port: u8,
    state: String,
    physical_state: String,
    netdev: String,
    netdev_index: u32,
    /// The configuration of an endpoint with addresses of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    l2: Option<String>,
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
            l2: device.endpoint().map(ToString::to_string),
        }
    }

    fn text(&self) -> String {
        let leads = match &self.l2 {
            Some(l2) => format!("l2 {l2}"),
            None => format!("netdev {}", self.netdev),
        };
        format!(
            "link {}/{} state {} physical_state {} {leads} \n",
            self.ifname, self.port, self.state, self.physical_state
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(words: &str) -> Result<String, String> {
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        let what = what_of(&words).map_err(|e| e.to_string())?;
        Ok(match what {
            What::Netdev(netdev) => netdev.into(),
            What::Endpoint(config) => config.to_string(),
        })
    }

    #[test]
    fn the_words_of_add_come_in_any_order() {
        assert_eq!(what("type rxe netdev eth0").unwrap(), "eth0");
        assert_eq!(what("netdev eth0 type rxe").unwrap(), "eth0");
    }

    #[test]
    fn the_words_after_l2_are_an_endpoints() {
        let words = "qemu:/tmp/x address 10.0.0.2/24 mac 02:00:00:00:00:01 mtu 1500";
        assert_eq!(what(&format!("type rxe l2 {words}")).unwrap(), words);
        let refused = what("type rxe l2 qemu:/tmp/x adress 10.0.0.2/24").unwrap_err();
        assert!(
            refused.starts_with("\"adress\" is no word of an endpoint: the words after l2 are")
        );
        assert!(what("l2 qemu:/tmp/x").unwrap_err().starts_with("no type is named"));
    }

    #[test]
    fn wrong_words_of_add_are_answered_with_the_right_ones() {
        let form = "the form is `rxe link add NAME type rxe netdev NETDEV`, or `… type rxe l2 LINK \
                    address ADDRESS/LENGTH`";
        assert_eq!(what("type rxe").unwrap_err(), format!("no netdev is named: {form}"));
        assert_eq!(what("netdev eth0").unwrap_err(), format!("no type is named: {form}"));
        let alone = "nothing stands after \"netdev\"";
        assert_eq!(what("type rxe netdev").unwrap_err(), format!("{alone}: {form}"));
        let other = "\"dev\" is neither type nor netdev";
        assert_eq!(what("type rxe dev eth0").unwrap_err(), format!("{other}: {form}"));
        let siw = "there are no links of type \"siw\": use `type rxe`";
        assert_eq!(what("type siw netdev eth0").unwrap_err(), siw);
    }
}

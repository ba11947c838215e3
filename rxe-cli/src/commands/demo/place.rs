//! The devices and addresses of the demo's two processes.

use std::net::{IpAddr, Ipv4Addr};

use rxe_verbs::device::{DeviceError, DeviceInfo};
use serde::{Deserialize, Serialize};

use super::DeviceArgs;
use crate::common::Error;

/// The device of one process, and its candidate addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) device: String,
    /// The addresses that may be used. The first free one is.
    pub(super) addresses: Vec<IpAddr>,
}

impl Place {
    /// Chooses the places of this process and of its peer.
    /// They are loopback addresses, or on the devices that the user named.
    pub(super) fn both(args: &DeviceArgs) -> Result<[Self; 2], Error> {
        let Some(own) = &args.dev else {
            let lo = DeviceInfo::list()?.into_iter().find(|d| d.interface().loopback);
            let lo = lo.filter(|d| d.interface().up).ok_or_else(|| {
                Error::new("there is no loopback interface that is up", "`ip link set lo up`")
            })?;
            return Ok(Self::on_loopback(&lo));
        };
        let own = DeviceInfo::find(own)?;
        let peer = match &args.peer_dev {
            Some(name) => DeviceInfo::find(name)?,
            None => own.clone(),
        };
        let same = own.name() == peer.name();
        if same && own.interface().loopback {
            return Ok(Self::on_loopback(&own));
        }
        if same && own.endpoint().is_some() {
            let what = format!("one process at a time can have {} open", own.name());
            let todo =
                "give the second process another endpoint on the same network with --peer-dev";
            return Err(Error::new(what, todo));
        }
        let here = address(&own, own.gids().preferred())?;
        let there = address(&peer, peer.gids().preferred_for(here))?;
        if here.is_loopback() != there.is_loopback() {
            let what = format!("{here} and {there} do not reach each other");
            return Err(Error::new(what, "loopback leads nowhere else: choose another device"));
        }
        let at =
            |device: DeviceInfo, ip| Self { device: device.name().into(), addresses: vec![ip] };
        Ok([at(own, here), at(peer, there)])
    }

    /// Returns two disjoint sets of loopback addresses. Several let several demos run
    /// simultaneously.
    fn on_loopback(lo: &DeviceInfo) -> [Self; 2] {
        [1, 2].map(|first| Self {
            device: lo.name().into(),
            addresses: (first..32)
                .step_by(2)
                .map(|last| Ipv4Addr::new(127, 0, 0, last).into())
                .collect(),
        })
    }

    /// Finds the device by its name.
    pub(super) fn find(&self) -> Result<DeviceInfo, DeviceError> {
        DeviceInfo::find(&self.device)
    }
}

/// Returns the IP address of this entry of the device's GID table.
fn address(device: &DeviceInfo, index: Option<usize>) -> Result<IpAddr, Error> {
    let entry = index.and_then(|index| device.gids().get(index));
    entry.map(|entry| entry.gid.to_ip()).ok_or_else(|| {
        let what = format!("{} has no address that can be used for this", device.name());
        Error::new(what, "see `rxe gids` for those of all devices")
    })
}

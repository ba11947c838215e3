//! Waits for the first address of an interface that has just come up. RFC 4862, section 5.4.
//!
//! For a second or two after a link is up, the kernel checks that no other host has its IPv6
//! addresses. Until then they are tentative, and no socket can be bound to them. If another host
//! has an address, it stays tentative. A kernel device is usable immediately, because it sends
//! frames and needs no socket. Opening a device therefore waits here if the interface has no other
//! address.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rxe_core::types::Gid;
use rxe_net::{Interface, InterfaceMonitor, NetError};

use super::DeviceInfo;
use crate::device_error::DeviceError;
use crate::error::Result;

/// How long to wait. With the kernel's defaults, the check takes at most 2 s.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Returns the device when one of its addresses is usable: immediately, unless all are tentative.
///
/// # Errors
/// Fails if the interface is gone, or if all its addresses stay tentative or belong to another
/// host.
pub(super) fn wait_until_usable(
    mut info: DeviceInfo,
    mut monitor: Option<&mut InterfaceMonitor>,
) -> Result<DeviceInfo> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let interface = info.interface();
        let Some(error) = all_tentative(interface, &info) else { return Ok(info) };
        let left = deadline.saturating_duration_since(Instant::now());
        // Without a carrier, the kernel does not begin the check.
        let waits = matches!(error, NetError::Tentative { running: true, duplicate: false, .. });
        let (Some(monitor), true) = (&mut monitor, waits && !left.is_zero()) else {
            return Err(error.into());
        };
        let index = interface.index;
        let left = Timespec::try_from(left).ok();
        // A message that is older than the list below only costs another iteration.
        let _ = poll(&mut [PollFd::new(&**monitor, PollFlags::IN)], left.as_ref());
        let _ = monitor.changed(index);
        let mut all = DeviceInfo::list()?;
        let Some(same) = all.iter().position(|device| device.interface().index == index) else {
            let devices = all.iter().map(|device| device.name().to_owned()).collect();
            return Err(DeviceError::NoSuch { name: info.name().to_owned(), devices }.into());
        };
        info = all.swap_remove(same);
    }
}

/// Returns an error if the interface has addresses and all are tentative.
fn all_tentative(interface: &Interface, info: &DeviceInfo) -> Option<NetError> {
    let tentative = interface.addresses.iter().filter(|address| address.tentative);
    // An address that another host has stays tentative, so the error names one that may become
    // usable.
    let address = tentative.min_by_key(|address| address.duplicate)?;
    info.gids().usable().iter().all(Gid::is_zero).then(|| NetError::Tentative {
        netdev: interface.name.clone(),
        address: address.ip,
        running: interface.running,
        duplicate: address.duplicate,
    })
}

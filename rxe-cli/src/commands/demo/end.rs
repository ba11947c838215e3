//! One end of the demo's connection. Both processes use this type.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use rxe_core::mem::Access;
use rxe_core::types::{Gid, Mtu};
use rxe_net::NetError;
use rxe_verbs::{
    CompletionQueue, ConnectOptions, Device, Endpoint, MemoryRegion, OpenOptions, QueuePair,
};

use super::PathOptions;
use super::place::Place;
use super::steps::{self, REGION};
use crate::common::{Error, ack_timeout, check_mtu};

/// A device with a queue pair, a completion queue and a memory region.
pub(super) struct End {
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) mr: MemoryRegion,
    pub(super) device: Device,
    mtu: Mtu,
}

/// The time limit of one step. It is longer than all retries take, because their error says more
/// about a silent peer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

impl End {
    /// Opens the device on the first of its addresses whose UDP port 4791 is free.
    pub(super) fn open(
        place: &Place,
        mtu: usize,
        path: PathOptions,
        pcap: Option<&Path>,
    ) -> Result<Self, Error> {
        // The MTU is checked before anything is opened or written.
        let mtu = check_mtu(&place.find()?, mtu)?;
        let mut last = None;
        for &ip in &place.addresses {
            let mut options = OpenOptions::new(&place.device).address(ip);
            options = options.shared_memory(!path.no_shm).segmentation(!path.no_gso);
            if let Some(path) = pcap {
                options = options.pcap(path);
            }
            match options.open() {
                Ok(device) => return Self::on(device, ip, mtu),
                Err(e @ rxe_verbs::Error::Net(NetError::PortInUse { .. })) => last = Some(e),
                Err(e) => return Err(e.into()),
            }
        }
        Err(last.map_or_else(|| Error::new("no address to use", "this is a bug"), Error::from))
    }

    fn on(device: Device, ip: IpAddr, mtu: Mtu) -> Result<Self, Error> {
        let gid = Gid::from(ip);
        let index = device.gids().iter().position(|g| *g == gid);
        let index = index.and_then(|i| u16::try_from(i).ok()).unwrap_or(0);
        let pd = device.create_pd()?;
        let cq = device.create_cq(16)?;
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register(REGION, Access::LOCAL_WRITE | rights)?;
        let qp = pd.qp(&cq).gid_index(index).build()?;
        Ok(Self { qp, cq, mr, device, mtu })
    }

    /// Brings the queue pair to RTS.
    pub(super) fn connect(&self, peer: &Endpoint) -> Result<(), Error> {
        let options = ConnectOptions {
            mtu: Some(self.mtu),
            timeout: ack_timeout(),
            ..ConnectOptions::default()
        };
        Ok(self.qp.connect(peer, &options)?)
    }

    /// Overwrites the whole region.
    pub(super) fn set(&self, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.mr.write_at(0, bytes)?)
    }

    /// Describes the first difference between the region and `want`; `None` if they are equal.
    pub(super) fn difference(&self, want: &[u8]) -> Result<Option<String>, Error> {
        Ok(steps::difference(&self.mr.to_vec(..)?, want))
    }

    pub(super) fn mtu(&self) -> Mtu {
        self.mtu
    }
}

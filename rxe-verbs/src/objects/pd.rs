//! Protection domains: what is in one can be used together. IBTA 11.2.1.5.

use std::sync::Arc;

use rxe_core::mem::PdId;

use crate::device::Device;
use crate::error::Result;
use crate::observe::{Counted, Permit, UseCounters, UseCounts, closed};
use crate::os::Environment;

/// A protection domain. Queue pairs reach the memory regions of their own domain, no others.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    device: Device,
    id: PdId,
    uses: Arc<UseCounters>,
    _permit: Permit,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.device.resources().pd_list.remove(self.id.0.into());
    }
}

impl Counted for ProtectionDomain {
    fn use_counters(&self) -> &UseCounters {
        &self.inner.uses
    }
}

impl ProtectionDomain {
    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// How many others have it: handles, memory regions and windows, queue pairs, address handles.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// What was made in it and still exists.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the protection domain")
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }
}

impl Device {
    /// Makes a protection domain: what is in one can be used together. IBTA 11.2.1.5.
    ///
    /// # Errors
    /// There are as many as the device allows, or it has failed.
    pub fn create_pd(&self) -> Result<ProtectionDomain> {
        self.shard().check()?;
        let (device, id, permit) = (self.clone(), Self::next_pd(), self.resources().pds.take()?);
        let uses = Arc::default();
        self.resources().pd_list.add(id.0.into(), Arc::downgrade(&uses));
        Ok(ProtectionDomain { inner: Arc::new(PdInner { device, id, uses, _permit: permit }) })
    }
}

/// Keys that a stranger cannot guess.
pub(crate) fn keys(environment: &Environment) -> Result<impl FnMut() -> u32> {
    let mut random = environment.random_u64()?;
    Ok(move || {
        let [a, b, c, d, ..] = random.to_le_bytes();
        // Further ones only where a key is taken.
        random = random.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        u32::from_le_bytes([a, b, c, d])
    })
}

//! Protection domains: only objects of one domain can be used together. IBTA 11.2.1.5.

use std::sync::Arc;

use rxe_core::mem::PdId;

use crate::device::Device;
use crate::error::Result;
use crate::observe::{Counted, Permit, UseCounters, UseCounts, closed};
use crate::os::Environment;

/// A protection domain. Its queue pairs may access only its own memory regions.
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
    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns the number of other references: handles, memory regions and windows, queue pairs,
    /// address handles.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns how many objects of each kind exist in the domain.
    pub fn used_by(&self) -> UseCounts {
        self.inner.uses.read()
    }

    /// Closes the domain and reports remaining users.
    ///
    /// # Errors
    /// Fails if the domain is in use. It is then destroyed with its last user.
    pub fn close(self) -> Result<()> {
        closed(self.used_by(), self.users(), "the protection domain")
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }
}

impl Device {
    /// Creates a protection domain. IBTA 11.2.1.5.
    ///
    /// # Errors
    /// Fails if the device allows no more domains or has failed.
    pub fn create_pd(&self) -> Result<ProtectionDomain> {
        self.shard().check()?;
        let (device, id, permit) = (self.clone(), Self::next_pd(), self.resources().pds.take()?);
        let uses = Arc::default();
        self.resources().pd_list.add(id.0.into(), Arc::downgrade(&uses));
        Ok(ProtectionDomain { inner: Arc::new(PdInner { device, id, uses, _permit: permit }) })
    }
}

/// Returns a generator of memory keys that a stranger cannot guess.
pub(crate) fn keys(environment: &Environment) -> Result<impl FnMut() -> u32> {
    let mut random = environment.random_u64()?;
    Ok(move || {
        let [a, b, c, d, ..] = random.to_le_bytes();
        // The caller draws again only if a key is taken.
        random = random.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        u32::from_le_bytes([a, b, c, d])
    })
}

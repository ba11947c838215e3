//! Queue pair 1 of a shard: the connection manager that answers its management datagrams. IBTA 12.
//!
//! The program's connection manager answers, if it uses one. Otherwise a [`Refuser`] is created
//! when a message arrives.

use std::any::Any;

use rxe_core::cm::CmConfig;
use rxe_core::types::Time;

use super::manager::{CmList, ConnectionManager};
use super::refuser::Refuser;
use super::turn::Core;

impl Core {
    /// Calls `f` with the connection manager. The first call creates it with `make`, and opens
    /// queue pair 1.
    pub(crate) fn with_cm<M: ConnectionManager, R>(
        &mut self,
        make: impl FnOnce() -> crate::Result<M>,
        f: impl FnOnce(&mut M, Time) -> R,
    ) -> crate::Result<R> {
        let is_there = |cm: &dyn ConnectionManager| (cm as &dyn Any).is::<M>();
        if !self.cm.as_deref().is_some_and(is_there) {
            let cm = make()?;
            if let Some(sharing) = self.backend.sharing() {
                sharing.set_gsi(true)?;
            }
            self.engine.set_gsi(true);
            self.cm = Some(Box::new(cm));
        }
        let cm = self.cm.as_deref_mut().map(|cm| cm as &mut dyn Any);
        let cm = cm.and_then(<dyn Any>::downcast_mut).expect("it was made, if it was not there");
        Ok(f(cm, self.environment.now()))
    }

    /// Receives messages for queue pair 1, if other processes may share the addresses. A message
    /// may be for a process that is dead.
    pub(crate) fn admit_mads(&mut self) {
        if let Some(sharing) = self.backend.sharing()
            && sharing.port_groups().is_some()
            && sharing.set_gsi(true).is_ok()
        {
            self.engine.admit_mads();
        }
    }

    /// Refuses received messages, if the program has no connection manager.
    #[inline]
    pub(super) fn refuse_mads(&mut self) {
        if self.cm.is_none() && self.engine.has_mad() {
            self.make_refuser();
        }
    }

    #[cold]
    fn make_refuser(&mut self) {
        let Ok(seed) = self.environment.random_u64() else { return };
        let block = self.backend.capabilities().qpn_block.unwrap_or(0);
        self.cm = Some(Box::new(Refuser::new(CmConfig { block, guid: 0, seed })));
    }

    /// Returns whether there is a connection manager.
    pub(crate) fn has_cm(&self) -> bool {
        self.cm.is_some()
    }

    /// Lists services and connections, like [`ConnectionManager::list`]; empty without a manager.
    pub(crate) fn list_cm(&self, max: usize) -> CmList {
        self.cm.as_ref().map(|cm| cm.list(max)).unwrap_or_default()
    }
}

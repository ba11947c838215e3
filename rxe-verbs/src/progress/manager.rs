//! The interface between a connection manager and the turn of its engine.

use std::any::Any;

use rxe_core::cm::ConnectionInfo;
use rxe_core::engine::Engine;
use rxe_core::types::Time;
use rxe_net::PeerProbes;

use super::policy::Timers;

/// A connection manager, which takes its turn with the engine.
pub(crate) trait ConnectionManager: Any + Send {
    /// Returns when [`ConnectionManager::turn`] must be called, if nothing else happens.
    fn poll_timeout(&self) -> Option<Time>;

    /// Handles received MADs and timers, and gives the engine the MADs to send. `timers` says what
    /// to do about timers.
    fn turn(&mut self, now: Time, engine: &mut Engine, timers: Timers);

    /// Exchanges liveness probes and answers with the hosts of peers. Called before and after
    /// timers run.
    fn exchange_probes(&mut self, engine: &mut Engine, probes: Option<&mut PeerProbes>) {
        let _ = (engine, probes);
    }

    /// Lists services and connections, up to `max` of each kind.
    fn list(&self, max: usize) -> CmList;
}

/// The services and connections of a connection manager.
#[derive(Debug, Default)]
pub(crate) struct CmList {
    /// The service IDs with a listener.
    pub(crate) services: Vec<u64>,
    /// Connections and queries.
    pub(crate) connections: Vec<ConnectionInfo>,
    /// The number of services and connections together, including those not listed.
    pub(crate) total: usize,
}

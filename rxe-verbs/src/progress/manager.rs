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

    /// Takes the received MADs, handles timers as `timers` says, and gives the engine the MADs to
    /// send.
    fn turn(&mut self, now: Time, engine: &mut Engine, timers: Timers);

    /// Takes the answers to liveness questions from the hosts of peers, and sends the questions
    /// that are pending. Called before and after timers run.
    fn exchange_questions(&mut self, engine: &mut Engine, questions: Option<&mut PeerProbes>) {
        let _ = (engine, questions);
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

//! What a connection manager is to the turn of its engine.

use std::any::Any;

use rxe_core::cm::ConnectionInfo;
use rxe_core::engine::Engine;
use rxe_core::types::Time;
use rxe_net::PeerProbes;

use super::policy::Timers;

/// A connection manager, which is turned with its engine.
pub(crate) trait ConnectionManager: Any + Send {
    /// When [`ConnectionManager::turn`] must be called, if nothing else happens.
    fn poll_timeout(&self) -> Option<Time>;

    /// Takes what has arrived for it, then does about its timers what `timers` says, and hands the engine
    /// what it has to send.
    fn turn(&mut self, now: Time, engine: &mut Engine, timers: Timers);

    /// Takes what the hosts of peers have said about its questions, and sends those that it has now:
    /// before and after its timers run.
    fn exchange_questions(&mut self, engine: &mut Engine, questions: Option<&mut PeerProbes>) {
        let _ = (engine, questions);
    }

    /// What there is, up to `max` of each kind.
    fn list(&self, max: usize) -> CmList;
}

/// What a connection manager has.
#[derive(Debug, Default)]
pub(crate) struct CmList {
    /// The service IDs that are listened to.
    pub(crate) services: Vec<u64>,
    /// Connections and queries.
    pub(crate) connections: Vec<ConnectionInfo>,
    /// How many there are of both.
    pub(crate) total: usize,
}

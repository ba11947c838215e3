//! Answers management datagrams for a program that uses no connection manager.
//!
//! All processes that share an address read queue pair 1, so a message may reach a process that has
//! no connections. The message then has no recipient, or that process would have received it. The
//! peer must be told, above all if it asks about a connection of a process that was killed
//! ([`rxe_core::cm`], keepalive).

use rxe_core::cm::mad::Mad;
use rxe_core::cm::{CmConfig, Manager, Route};
use rxe_core::engine::Engine;
use rxe_core::types::Time;

use super::manager::{CmList, ConnectionManager};
use super::policy::Timers;

/// A connection manager that has no listeners and refuses every message.
pub(super) struct Refuser(Manager);

impl Refuser {
    pub(super) fn new(config: CmConfig) -> Self {
        Self(Manager::new(config))
    }
}

impl ConnectionManager for Refuser {
    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }

    fn turn(&mut self, now: Time, engine: &mut Engine, timers: Timers) {
        while let Some(received) = engine.poll_mad() {
            let (local, remote) = (received.dst, received.src);
            let route = Route { local, remote, traffic_class: received.traffic_class };
            self.0.handle_mad(now, route, &Mad::from_array(&received.mad));
        }
        if matches!(timers, Timers::Run | Timers::ExcuseAndRun) {
            self.0.handle_timeout(now);
        }
        while let Some(out) = self.0.poll_transmit() {
            let Route { local, remote, traffic_class } = out.route;
            // If the own address is gone, no reply can be sent.
            let _ = engine.send_mad(local, remote, traffic_class, &out.mad);
        }
    }

    fn list(&self, _: usize) -> CmList {
        CmList::default()
    }
}

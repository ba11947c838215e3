//! What changes about an open device, and who keeps it up to date: its interface goes down and up,
//! its addresses come and go. IBTA 11.6.3.3, A17.4.4.
//!
//! Queue pairs keep the addresses that they were connected with: where such an address is gone,
//! their requests are sent in vain until the retries are used up, as when a cable is pulled.
//!
//! An interface that was removed and made anew is another one, though it has the same name: open its
//! device again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::RwLock;
use rxe_core::types::Gid;
use rxe_net::{GidTable, Interface, InterfaceMonitor};

use super::{PortAttr, PortState};
use crate::drive::Shard;
use crate::error::{Error, Result};
use crate::event::{AsyncEvents, AsyncKind};

/// What changes.
#[derive(Debug)]
pub(super) struct Live(RwLock<State>);

#[derive(Clone, Debug)]
struct State {
    interface: Interface,
    /// `None` where the program has named the addresses.
    table: Option<GidTable>,
    /// By `sgid_index`; zero where nothing can be sent from.
    gids: Arc<[Gid]>,
}

impl Live {
    pub(super) fn new(interface: Interface, table: Option<GidTable>, gids: Arc<[Gid]>) -> Self {
        Self(RwLock::new(State { interface, table, gids }))
    }

    pub(super) fn interface(&self) -> Interface {
        self.0.read().interface.clone()
    }

    pub(super) fn table(&self) -> Option<GidTable> {
        self.0.read().table.clone()
    }

    pub(super) fn gids(&self) -> Arc<[Gid]> {
        Arc::clone(&self.0.read().gids)
    }
}

/// Keeps a device up to date. Its descriptor is readable when there may be something to do.
#[derive(Debug)]
pub(crate) struct Follow {
    monitor: InterfaceMonitor,
    live: Arc<Live>,
    asyncs: Arc<AsyncEvents>,
}

impl Follow {
    pub(super) fn new(
        monitor: InterfaceMonitor,
        live: Arc<Live>,
        asyncs: Arc<AsyncEvents>,
    ) -> Self {
        Self { monitor, live, asyncs }
    }

    /// Looks whether the interface has changed, and does what follows from it.
    ///
    /// # Errors
    /// The device has failed, or the system can not be asked any more.
    pub(crate) fn update(&mut self, shard: &Shard) -> Result<()> {
        let ask = |e| Error::io("ask for interfaces", e);
        let before = self.live.0.read().clone();
        if !self.monitor.changed(before.interface.index).map_err(ask)? {
            return Ok(());
        }
        let interface = match Interface::by_index(before.interface.index) {
            Ok(Some(interface)) => interface,
            Ok(None) => removed(&before.interface),
            // The tables change faster than they can be read: another message will come.
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => return Ok(()),
            Err(e) => return Err(ask(e)),
        };
        let mut now = State { interface, ..before.clone() };
        if let Some(table) = &mut now.table {
            table.follow(&now.interface);
            now.gids = table.usable().into();
        }
        let mut trouble = None;
        if now.gids != before.gids {
            trouble = shard.with(|core| core.set_gids(&now.gids))?.err();
        }
        let events = events(&before, &now, trouble.map(|e| e.to_string()));
        *self.live.0.write() = now;
        for (kind, text) in events {
            self.asyncs.of_device(kind, text);
        }
        Ok(())
    }
}

impl AsFd for Follow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

/// What is left of an interface that is gone.
fn removed(interface: &Interface) -> Interface {
    Interface { up: false, running: false, addresses: Vec::new(), ..interface.clone() }
}

/// What programs are told of a change.
fn events(before: &State, now: &State, trouble: Option<String>) -> Vec<(AsyncKind, String)> {
    let mut events = Vec::new();
    let name = &now.interface.name;
    let port = |state: &State| PortAttr::of(&state.interface).state;
    match (port(before), port(now)) {
        (PortState::Active, PortState::Down) => {
            let why = if now.interface.up { "has no carrier" } else { "is down" };
            events.push((AsyncKind::PortErr, format!("{name} {why}")));
        }
        (PortState::Down, PortState::Active) => {
            events.push((AsyncKind::PortActive, format!("{name} is up")));
        }
        _ => {}
    }
    if now.gids != before.gids {
        let not_in = |a: &State, b: &State| -> Vec<String> {
            let only = a.gids.iter().filter(|g| !g.is_zero() && !b.gids.contains(g));
            only.map(|g| g.to_ip().to_string()).collect()
        };
        let list = |what: &str, gids: Vec<String>| {
            (!gids.is_empty()).then(|| format!("{what}: {}", gids.join(", ")))
        };
        let parts = [list("new", not_in(now, before)), list("gone", not_in(before, now)), trouble];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        events.push((AsyncKind::GidChange, format!("addresses of {name}: {}", parts.join("; "))));
    }
    events
}
